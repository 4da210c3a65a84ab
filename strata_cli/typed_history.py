"""The history of what was typed at the prompt: one private file of bounded length.

Owns the file's format (a JSON string a line, oldest first) and its bound. A history that cannot be kept is none: typing
goes on without it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .errors import StrataError
from .files import Files, ensure_folder, read_bytes, storage_errors, write_new

FILE_NAME = "history"
LIMIT_BYTES = 16 << 20
ENTRY_LIMIT_CHARS = 100_000  # a longer paste is not kept
SLACK = 100  # entries beyond the bound before the file is written anew


def wanted(environ: Mapping[str, str], *, setting: bool, entries: int, save: bool) -> bool:
    """Whether a history is kept: not where a flag, STRATA_NO_HISTORY or the configuration says no."""
    return save and setting and entries > 0 and not environ.get("STRATA_NO_HISTORY")


class TypedHistory:
    """The entries of one file. `trouble` says, once, why nothing can be kept."""

    def __init__(self, path: Path, limit: int, files: Files) -> None:
        self.path, self._limit, self._files = path, limit, files
        self._count = 0
        self.trouble = ""

    def entries(self) -> list[str]:
        """What was typed, oldest first, at most the limit; lines that are no entries are passed over."""
        found = self._read()
        self._count = len(found)
        return found[-self._limit :]

    def add(self, text: str) -> None:
        """Append one entry, and cut the file back now and then. Never raises."""
        if self.trouble or len(text) > ENTRY_LIMIT_CHARS:
            return
        try:
            ensure_folder(self._files, self.path.parent)
            with storage_errors(self.path, "append to"):
                fd = self._files.open(self.path, append=True)
                try:
                    self._files.write(fd, json.dumps(text).encode() + b"\n")
                finally:
                    os.close(fd)
            self._count += 1
            if self._count > self._limit + SLACK:
                self._cut()
        except StrataError as error:
            self.trouble = error.message

    def _cut(self) -> None:
        # Read again: another process may have added to it.
        data = b"".join(json.dumps(text).encode() + b"\n" for text in self.entries())
        write_new(self._files, self.path.parent, self.path, [data], len(data))
        self._count = self._limit

    def _read(self) -> list[str]:
        try:
            data = read_bytes(self._files, self.path, LIMIT_BYTES)
        except StrataError as error:
            self.trouble = "" if error.exit_code == 10 else error.message
            return []
        found = []
        for line in data.decode("utf-8", "replace").split("\n"):
            try:
                text = json.loads(line)
            except ValueError:
                continue
            if isinstance(text, str):
                found.append(text)
        return found
