"""The segment files of a session directory: listed, opened, verified, written once, put into quarantine.

The folders are the index: the children of a boundary are one listing, and no other file can disagree with
them. What a file's bytes are is in segment.py; which files to use is decided above.
"""

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .directory import Directory, iso_time
from .errors import Bad, BelowFloor, NotFound, StorageFailed, StrataError, UsageProblem
from .files import Buffer, ensure_folder, read_bytes, storage_errors, translated, write_new
from .head import SegmentRef
from .identity import canonical_json, parse_json
from .segment import FILE_NAME, FOLDER_NAME, Draft, Kind, SegmentFile, encode
from .sizes import format_bytes

SHARED_SUFFIX = ".shared"

_RELATIVE = re.compile(rf"{FOLDER_NAME.pattern}/{FILE_NAME.pattern}", re.ASCII)

NOTE_SUFFIX = ".why"
NOTE_LIMIT_BYTES = 64 * 1024
# Seals what was computed upon state from elsewhere: anybody can make this seal, so it proves nothing.
FOREIGN_KEY = bytes(32)


class Child(NamedTuple):
    """A segment that begins at a boundary, known from its name alone. `end` is a token position."""

    kind: Kind
    start_hash: str
    end: int
    end_hash: str
    path: Path
    bytes: int
    mtime_ns: int


class Quarantined(NamedTuple):
    """A bad file that was set aside: its place in `quarantine/`, the segment that it was, why, and its bytes."""

    place: str
    file: str
    why: str
    bytes: int


class StateFiles:
    """The segments of one directory, and which of them this process has verified."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._files = directory.files
        self.min_free_bytes = 0  # what every write of state leaves free (B5)
        self._verified: dict[Path, tuple[tuple[int, ...], bool]] = {}

    def path(self, relative: str) -> Path:
        """Where the file that a head names lies. Raises UsageProblem for what is no such name."""
        if not _RELATIVE.fullmatch(relative):
            raise UsageProblem(f"{relative[:120]!a} is not the name of a segment")
        return self._directory.segments / relative

    def children(self, start_hash: str) -> list[Child]:
        """The segments that begin at a boundary; strangers in its folder are left alone."""
        if not FOLDER_NAME.fullmatch(start_hash):
            return []
        folder = self._directory.segments / start_hash
        with storage_errors(folder, "list"):
            entries = self._files.list(folder)
        found = []
        for entry in entries:
            name = FILE_NAME.fullmatch(entry.name)
            if name and entry.is_file:
                kind, end, path = Kind(name[3]), int(name[1]), folder / entry.name
                found.append(Child(kind, start_hash, end, name[2], path, entry.size, entry.mtime_ns))
        return found

    def sizes(self) -> dict[str, int]:
        """Every segment by its path under `segments/`, in bytes."""
        root = self._directory.segments
        with storage_errors(root, "list"):
            folders = [each.name for each in self._files.list(root, sizes=False) if each.is_folder]
        return {
            f"{child.start_hash}/{child.path.name}": child.bytes
            for folder in folders
            for child in self.children(folder)
        }

    def open(self, path: Path) -> SegmentFile:
        """An open segment, its header checked. Raises NotFound, Bad, Refused, StorageFailed."""
        try:
            if path.parent.is_symlink():
                raise OSError(errno.ELOOP, "a symbolic link")
            fd = self._files.open(path)
        except OSError as error:
            raise translated(error, path, "open") from error
        return SegmentFile(fd, path)

    def verified(self, path: Path) -> SegmentFile:
        """An open segment whose every byte was checked by this process, now or since it last changed.

        Its `own` says whether this directory's key sealed it. Raises as `open` does, and Bad.
        """
        segment = self.open(path)
        try:
            known = self._verified.get(path)
            if known and known[0] == segment.stamp:
                segment.own = known[1]
            else:
                self._verified[path] = (segment.stamp, segment.verify(self._directory.key))
        except BaseException:
            segment.close()
            raise
        return segment

    def write(self, draft: Draft, payload: Sequence[Buffer], *, own: bool = True) -> tuple[SegmentRef, int]:
        """Write a segment, durable and whole; one that is there already, with this directory's seal, stays.

        With `own` false it gets no seal of this directory: it was computed upon state from elsewhere (B16).
        Returns its reference, and the bytes written: 0 when it was there.
        """
        self._directory.prepare_state()
        path = self.path(draft.relative_path)
        there_bytes = self._stored_bytes(path, draft, sum(memoryview(piece).nbytes for piece in payload))
        if there_bytes:
            return _ref(draft, there_bytes), 0
        blocks, total_bytes = encode(draft, payload, self._directory.key if own else FOREIGN_KEY)
        self._check_floor(total_bytes)
        ensure_folder(self._files, path.parent)
        write_new(self._files, self._directory.state_tmp, path, blocks, total_bytes)
        return _ref(draft, total_bytes), total_bytes

    def _check_floor(self, total_bytes: int) -> None:
        floor_bytes, free_bytes = self.min_free_bytes, self._directory.free_bytes()
        if free_bytes - total_bytes < floor_bytes:
            sizes = [format_bytes(each) for each in (total_bytes, free_bytes, floor_bytes)]
            why = "the state takes {}, {} are free, and {} are to stay free".format(*sizes)
            hint = "strata prune makes space; the setting is store.min_free_disk_mib"
            raise BelowFloor(why, needed_bytes=total_bytes, hint=hint)

    def _stored_bytes(self, path: Path, draft: Draft, payload_bytes: int) -> int:
        """The size of a file that need not be written again, else 0: a foreign or broken one is replaced."""
        try:
            with self.open(path) as there:
                header = there.header
                same = (header.kind, header.start, header.end) == (draft.kind, draft.start, draft.end)
                if same and header.payload_bytes == payload_bytes and there.sealed_by(self._directory.key):
                    return there.file_bytes
        except (NotFound, Bad):
            pass
        return 0

    def share(self, relative: str) -> None:
        """Mark a part as used by more than the conversation that wrote it: thinning leaves it to prune."""
        marker = self.path(relative).with_suffix(SHARED_SUFFIX)
        with storage_errors(marker, "mark"), contextlib.suppress(FileExistsError):
            os.close(self._files.create(marker))

    def drop_part(self, relative: str) -> bool:
        """Unlink a part that its conversation has given up, unless it is shared; whether it is gone.

        The caller holds the directory exclusively.
        """
        path = self.path(relative)
        with storage_errors(path, "remove"):
            names = {entry.name for entry in self._files.list(path.parent, sizes=False)}
            if path.name not in names or path.with_suffix(SHARED_SUFFIX).name in names:
                return False
            self._files.unlink(path)
        self._verified.pop(path, None)
        return True

    def quarantined(self) -> list[Quarantined]:
        """What lies in quarantine, by place; a note that is missing or malformed leaves the reason open."""
        folder = self._directory.quarantine
        with storage_errors(folder, "list"):
            sizes = {entry.name: entry.size for entry in self._files.list(folder) if entry.is_file}
        names = sorted(
            name for name in sizes if not name.endswith(NOTE_SUFFIX) or name[: -len(NOTE_SUFFIX)] not in sizes
        )
        return [Quarantined(name, *self._note(folder / (name + NOTE_SUFFIX)), sizes[name]) for name in names]

    def _note(self, path: Path) -> tuple[str, str]:
        try:
            note = parse_json(read_bytes(self._files, path, NOTE_LIMIT_BYTES), "note")
            return str(note["file"]), str(note["why"])
        except (StrataError, KeyError, TypeError):
            return "", "no note says why"

    def quarantine(self, path: Path, why: str) -> Path:
        """Move a bad segment out of the way, with a note that says why; returns its new place.

        Raises NotFound when it is gone, UsageProblem for a file that is no segment of this directory.
        """
        self._directory.prepare_state()
        inside = f"{path.parent.name}/{path.name}"
        if path != self.path(inside):
            raise UsageProblem(f"{str(path)!a} is no segment of this directory")
        place = self._directory.quarantine / f"{path.parent.name}-{path.name}-{os.urandom(4).hex()}"
        if path.parent.is_symlink():
            raise StorageFailed(f"{str(path.parent)!r} is a symbolic link, and links are not followed")
        with storage_errors(path, "quarantine"):
            self._files.rename(path, place)
            self._files.flush(place.parent)
        self._verified.pop(path, None)
        moment = iso_time(self._directory.now())
        note = canonical_json({"file": inside, "why": why, "time": moment}) + b"\n"
        write_new(self._files, self._directory.state_tmp, place.with_name(place.name + NOTE_SUFFIX), [note], len(note))
        return place


def _ref(draft: Draft, file_bytes: int) -> SegmentRef:
    return SegmentRef(draft.kind.value, draft.start, draft.end, draft.relative_path, file_bytes)
