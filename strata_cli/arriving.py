"""Segment files on their way between an archive and a directory: checked while they stream, staged, moved in.

Owns the check of a segment whose bytes pass by once, and the temporaries of those that arrive. What is taken and what
is left is decided in `snapshot`.
"""

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from .archive import Listed
from .directory import Directory
from .errors import Bad, StorageFailed
from .files import ensure_folder, storage_errors
from .identity import parse_json
from .segment import DIGEST_BYTES, FOOTER_BYTES, HEADER_BYTES, PAYLOAD_OFFSET, Header, seal_of


class SegmentStream:
    """One segment file that passes by in blocks. Keeps its header, its metadata and its footer, and hashes the rest."""

    def __init__(self, listed: Listed) -> None:
        self.listed = listed
        self._hasher = blake3(max_threads=blake3.AUTO)
        self._done = 0
        self._kept = {"header": bytearray(), "metadata": bytearray(), "footer": bytearray()}
        self._metadata_at = (0, 0)

    def feed(self, block: memoryview) -> None:
        """The next bytes. Raises Bad as soon as the header contradicts the file's size."""
        body_bytes = self.listed.bytes - FOOTER_BYTES
        if self._done < body_bytes:
            self._hasher.update(block[: body_bytes - self._done])
        self._keep("header", block, 0, HEADER_BYTES)
        if self._done < HEADER_BYTES <= self._done + len(block):
            self._place_metadata()
        self._keep("metadata", block, *self._metadata_at)
        self._keep("footer", block, body_bytes, self.listed.bytes)
        self._done += len(block)

    def _keep(self, name: str, block: memoryview, start: int, end: int) -> None:
        first, last = max(start, self._done) - self._done, min(end, self._done + len(block)) - self._done
        if first < last:
            self._kept[name] += block[first:last]

    def _place_metadata(self) -> None:
        try:
            header = Header.unpack(bytes(self._kept["header"]), self.listed.bytes)
        except Bad as error:
            raise self._bad(error.message) from None
        start = PAYLOAD_OFFSET + header.payload_bytes + header.tokens_bytes
        self.header = header
        self._metadata_at = (start, start + header.metadata_bytes)

    def _bad(self, why: str) -> Bad:
        return Bad(f"segment {self.listed.file}: {why}")

    def check(self) -> None:
        """After the last block. Raises Bad where the bytes fail their digest or belong to another name."""
        if len(self._kept["header"]) < HEADER_BYTES:
            raise self._bad("too short for a segment")
        digest = bytes(self._kept["footer"][:DIGEST_BYTES])
        if not hmac.compare_digest(self._hasher.digest(), digest):
            raise self._bad("its bytes fail their digest")
        if digest.hex() != self.listed.digest:
            raise self._bad("it is not the file that the list names")
        metadata = parse_json(bytes(self._kept["metadata"]), f"segment {self.listed.file}: metadata")
        names = metadata if isinstance(metadata, dict) else {}
        header = self.header
        name = f"{names.get('start_hash')}/{header.end}-{names.get('end_hash')}.{header.kind.value}"
        if name != self.listed.file:
            raise self._bad("it holds the state of other tokens than its name says")
        self.identity = str(names.get("identity"))

    def sealed_by(self, key: bytes) -> bool:
        """Whether the directory with this key made it."""
        digest, seal = bytes(self._kept["footer"][:DIGEST_BYTES]), bytes(self._kept["footer"][DIGEST_BYTES:])
        return hmac.compare_digest(seal_of(digest, key), seal)


def checked_blocks(directory: Directory, listed: Listed, chunk: bytearray) -> Iterator[memoryview]:
    """A file of the directory in blocks of `chunk`, each valid until the next. Raises Bad after the last, or before."""
    path = directory.segments / listed.file
    stream = SegmentStream(listed)
    with storage_errors(path, "read"):
        fd = directory.files.open(path)
    try:
        left = listed.bytes
        while left:
            with storage_errors(path, "read"):
                got = os.readv(fd, [memoryview(chunk)[: min(left, len(chunk))]])
            if not got:
                raise Bad(f"segment {listed.file}: became shorter while it was read")
            view = memoryview(chunk)[:got]
            stream.feed(view)
            left -= got
            yield view
        stream.check()
    finally:
        os.close(fd)


@dataclass
class Staging:
    """Files that have arrived and lie in `tmp/` until all of the archive is known to be good."""

    directory: Directory
    staged: list[tuple[Path, Path]] = field(default_factory=list)
    bytes_written: int = 0

    def prepare(self) -> None:
        """Make `tmp/` and nothing else. Raises StorageFailed where the directory is not ours."""
        directory = self.directory
        if not directory.state_writable:
            raise StorageFailed(
                f"{str(directory.state_root)!r} cannot be written by this user",
                reason="permission",
                hint="run it as the directory's owner",
            )
        ensure_folder(directory.files, directory.root)
        ensure_folder(directory.files, directory.state_tmp)

    def take(self, listed: Listed, blocks: Iterator[memoryview], seal_key: bytes | None) -> SegmentStream:
        """Write one file into `tmp/`, checking it on the way; with `seal_key` under a new seal.

        Raises Bad, StorageFailed; the temporary is then removed by `discard`.
        """
        files, stream = self.directory.files, SegmentStream(listed)
        temporary = self.directory.state_tmp / f"{os.getpid()}-{secrets.token_hex(8)}.tmp"
        with storage_errors(temporary, f"write {listed.bytes} bytes to"):
            fd = files.create(temporary, listed.bytes)
        self.staged.append((temporary, self.directory.segments / listed.file))
        try:
            for block in blocks:
                stream.feed(block)
                with storage_errors(temporary, f"write {listed.bytes} bytes to"):
                    files.write(fd, block)
            stream.check()
            if seal_key is not None:
                os.pwrite(fd, seal_of(bytes.fromhex(listed.digest), seal_key), listed.bytes - FOOTER_BYTES // 2)
            with storage_errors(temporary, "flush"):
                files.flush(fd)
        finally:
            os.close(fd)
        self.bytes_written += listed.bytes
        return stream

    def move_in(self) -> None:
        """Give the staged files their names, durably. Raises StorageFailed; what is in then is whole and unnamed."""
        files, folders = self.directory.files, set()
        for temporary, target in self.staged:
            if target.parent.is_symlink():
                raise StorageFailed(f"{str(target.parent)!r} is a symbolic link, and links are not followed")
            ensure_folder(files, target.parent)
            with storage_errors(target, "move in"):
                files.rename(temporary, target)
            folders.add(target.parent)
        for folder in folders:
            with storage_errors(folder, "flush"):
                files.flush(folder)
        self.staged.clear()

    def discard(self) -> None:
        """Remove what was staged and not moved in."""
        for temporary, _ in self.staged:
            with contextlib.suppress(OSError):
                self.directory.files.unlink(temporary)
        self.staged.clear()


def passed(listed: Listed, blocks: Iterator[memoryview]) -> SegmentStream:
    """A file that is only looked at while it passes. Raises Bad."""
    stream = SegmentStream(listed)
    for block in blocks:
        stream.feed(block)
    stream.check()
    return stream
