"""The session directory as the rest of strata sees it: conversations, their text, their state, their locks.

It owns the files of a conversation or prefix (`<name>.json` head, `<name>.jsonl` log, `<name>.lock`). The
rest is in directory.py (folders, key, clock) and state_files.py (segments). When to write is decided above.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from .directory import RECORD_KINDS, Clock, Directory, iso_time
from .errors import NotFound, StrataError, UsageProblem
from .files import Buffer, Files, read_bytes, storage_errors, write_new
from .head import Head, SegmentRef, encode_head, parse_head
from .locks import FileLock, Holder, read_holder
from .log import Line, Log, append_bytes, parse_log
from .names import NAME, check_name
from .segment import Draft, SegmentFile
from .state_files import Child, Quarantined, StateFiles

HEAD_LIMIT_BYTES = 64 * 1024 * 1024
LOG_LIMIT_BYTES = 4 * 1024 * 1024 * 1024
_SHARE_WAIT_S = 60.0


@dataclass(frozen=True)
class BadEntry:
    """A head that cannot be read: `why` in words, `code` from the error tree (not_found: text alone)."""

    name: str
    why: str
    code: str


class Store:
    """One session directory. Looking writes nothing; the first write makes what is missing."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._files = directory.files
        self._state = StateFiles(directory)
        self.on_wait: Callable[[str], None] = lambda _: None  # who holds a lock that is waited for; may raise

    @classmethod
    def open(
        cls,
        root: Path,
        files: Files,
        now: Clock,
        *,
        state_dir: Path | None = None,
        pid: int = 0,
        command: str = "strata",
    ) -> "Store":
        """The store in `root`, which need not exist. `now` gives an aware UTC time. Raises StorageFailed."""
        return cls(Directory(root, files, now, state_dir=state_dir, pid=pid or os.getpid(), command=command))

    @property
    def root(self) -> Path:
        """The real path of the session directory."""
        return self.directory.root

    @property
    def writable(self) -> bool:
        """False for another user's directory; what writes then raises StorageFailed."""
        return self.directory.writable

    @property
    def key(self) -> bytes:
        """The 32 bytes that this directory seals segments with."""
        return self.directory.key

    def prepare(self) -> None:
        """Make and tighten the folders, as every write does by itself. Raises StorageFailed."""
        self.directory.prepare()

    def clock(self) -> str:
        """The time now, as ISO-8601 UTC."""
        return iso_time(self.directory.now())

    def next_time(self) -> str:
        """An ISO time later than every earlier one of this directory, whatever the machine's clock did."""
        return self.directory.next_time()

    def leave_free(self, min_free_bytes: int) -> None:
        """What every write of state from now on leaves free on its disk; else it raises BelowFloor."""
        self._state.min_free_bytes = min_free_bytes

    @property
    def min_free_bytes(self) -> int:
        """What `leave_free` was told; 0 where nothing was."""
        return self._state.min_free_bytes

    def free_bytes(self) -> int:
        """What can still be written where state lies."""
        return self.directory.free_bytes()

    # Conversations and prefixes

    def _path(self, name: str, kind: str, suffix: str) -> Path:
        if kind not in RECORD_KINDS:
            raise UsageProblem(f"{kind!a} is none of {', '.join(RECORD_KINDS)}")
        return self.root / kind / (check_name(name) + suffix)

    def names(self, kind: str = "conversations") -> list[str]:
        """The names that have a head or a log, sorted."""
        heads, logs = self._found(kind)
        return sorted(heads | logs)

    def _found(self, kind: str) -> tuple[set[str], set[str]]:
        folder = self._path("x", kind, "").parent
        with storage_errors(folder, "list"):
            entries = self._files.list(folder, sizes=False)
        found: dict[str, set[str]] = {".json": set(), ".jsonl": set()}
        for entry in entries:
            stem, dot, suffix = entry.name.rpartition(".")
            if dot + suffix in found and not entry.is_folder and NAME.fullmatch(stem):
                found[dot + suffix].add(stem)
        return found[".json"], found[".jsonl"]

    def heads(self, kind: str = "conversations") -> Iterator[Head | BadEntry]:
        """Every head, by name; one that cannot be read is a BadEntry, and so is text that lost its head."""
        heads, logs = self._found(kind)
        folder = self.root / kind
        for name in sorted(heads | logs):
            if name not in heads:
                yield BadEntry(name, "its head is missing, its text is there", NotFound.code)
                continue
            try:
                yield parse_head(read_bytes(self._files, folder / f"{name}.json", HEAD_LIMIT_BYTES), name)
            except NotFound:
                # Removed since the folder was listed.
                continue
            except StrataError as error:
                yield BadEntry(name, error.message, error.code)

    def newest(self, kind: str = "conversations") -> Head | None:
        """The head with the latest completed turn; None when no conversation has one."""
        good = (head for head in self.heads(kind) if isinstance(head, Head) and head.last_turn)
        return max(good, key=lambda head: head.last_turn, default=None)

    def read_head(self, name: str, kind: str = "conversations") -> Head:
        """Raises NotFound, Bad, Refused (a newer format), StorageFailed."""
        path = self._path(name, kind, ".json")
        try:
            data = read_bytes(self._files, path, HEAD_LIMIT_BYTES)
        except NotFound:
            what = "prefix" if kind == "prefixes" else "conversation"
            raise NotFound(f"no {what} is called {name!r}", hint="`strata inspect` lists them") from None
        return parse_head(data, name)

    def write_head(self, head: Head, kind: str = "conversations") -> int:
        """Replace the head, durable; returns its bytes. Raises StorageFailed and leaves the old one then."""
        path = self._path(head.name, kind, ".json")
        self.directory.prepare()
        data = encode_head(head)
        return write_new(self._files, self.directory.tmp, path, [data], len(data))

    def read_log(self, name: str, kind: str = "conversations") -> Log:
        """The text as far as it is good; empty where there is none. Raises StorageFailed."""
        try:
            return parse_log(read_bytes(self._files, self._path(name, kind, ".jsonl"), LOG_LIMIT_BYTES))
        except NotFound:
            return Log()

    def append_log(self, name: str, lines: Sequence[Line], kind: str = "conversations") -> int:
        """Add lines, durable when this returns; returns the bytes. The caller holds the conversation's lock.

        Raises StorageFailed, and then none of the lines is in the log.
        """
        path = self._path(name, kind, ".jsonl")
        self.directory.prepare()
        with storage_errors(path, "append to"):
            fd = self._files.open(path, append=True)
            try:
                if os.fstat(fd).st_nlink > 1:
                    fd = self._own_copy(fd, path)
                return self._append(fd, path, lines)
            except BaseException:
                if not os.fstat(fd).st_size:  # a name without a word in it would be shown as a conversation
                    with suppress(OSError):
                        self._files.unlink(path)
                raise
            finally:
                os.close(fd)

    def _own_copy(self, fd: int, path: Path) -> int:
        """A log that has another name elsewhere (a backup of hard links) is copied before it grows."""
        data = read_bytes(self._files, path, LOG_LIMIT_BYTES)
        write_new(self._files, self.directory.tmp, path, [data], len(data))
        copy = self._files.open(path, append=True)
        os.close(fd)
        return copy

    def _append(self, fd: int, path: Path, lines: Sequence[Line]) -> int:
        before = os.fstat(fd).st_size
        data = append_bytes(lines, tail_has_newline=not before or os.pread(fd, 1, before - 1) == b"\n")
        try:
            self._files.write(fd, data)
            self._files.flush(fd)
            if not before:
                self._files.flush(path.parent)
        except BaseException:
            # Lines that were told as failed must not turn up later.
            os.ftruncate(fd, before)
            raise
        return len(data)

    def record_sizes(self, kind: str = "conversations") -> dict[str, int]:
        """Every file of conversations or prefixes by its name, in bytes."""
        folder = self._path("x", kind, "").parent
        with storage_errors(folder, "list"):
            return {entry.name: entry.size for entry in self._files.list(folder) if entry.is_file}

    def text_bytes(self) -> int:
        """What conversations, prefixes, counters, key and locks take: all that is not state."""
        folders = (*(self.root / kind for kind in RECORD_KINDS), self.root / "counters", self.root)
        return sum(self._folder_bytes(folder) for folder in folders)

    def segment_sizes(self) -> dict[str, int]:
        """Every segment on disk by its path under `segments/`, in bytes."""
        return self._state.sizes()

    def temporary_bytes(self) -> int:
        return sum(self._folder_bytes(folder) for folder in {self.directory.tmp, self.directory.state_tmp})

    def quarantined(self) -> list[Quarantined]:
        """What lies in quarantine, by place."""
        return self._state.quarantined()

    def quarantine_bytes(self) -> int:
        return self._folder_bytes(self.directory.quarantine)

    def _folder_bytes(self, folder: Path) -> int:
        with storage_errors(folder, "list"):
            return sum(entry.size for entry in self._files.list(folder) if entry.is_file)

    # Locks

    def hold(self, name: str, wait_s: float = 0.0, kind: str = "conversations") -> FileLock:
        """The exclusive lock of a conversation. Raises Locked naming who has it."""
        path = self._path(name, kind, ".lock")
        self.directory.prepare()
        me = self.directory.holder()
        return FileLock.acquire(path, exclusive=True, wait_s=wait_s, holder=me, remove=True, on_wait=self.on_wait)

    def holder(self, name: str, kind: str = "conversations") -> Holder | None:
        """Who has the conversation open, this process included; None when nobody has."""
        return read_holder(self._path(name, kind, ".lock"))

    def shared(self) -> AbstractContextManager[object]:
        """Keep prune's sweep out while segments are looked up or written and until a head names them."""
        path = self.root / "lock"
        if self.writable and self.root.is_dir():
            return FileLock.acquire(path, exclusive=False, wait_s=_SHARE_WAIT_S, what=_LOCK, on_wait=self.on_wait)
        return self._shared_read_only(path)

    @contextmanager
    def _shared_read_only(self, path: Path) -> Iterator[object]:
        try:
            lock: AbstractContextManager[object] = FileLock.acquire(
                path, exclusive=False, wait_s=_SHARE_WAIT_S, create=False, what=_LOCK, on_wait=self.on_wait
            )
        except NotFound:
            # Nobody who could sweep has ever been here.
            lock = nullcontext()
        with lock:
            yield lock

    def exclusive(self, wait_s: float = 0.0) -> FileLock:
        """Keep everybody out for a sweep. Raises Locked."""
        self.directory.prepare()
        me = self.directory.holder()
        return FileLock.acquire(self.root / "lock", exclusive=True, wait_s=wait_s, holder=me, what=_LOCK)

    # State

    def children(self, start_hash: str) -> list[Child]:
        """The segments that begin at a boundary."""
        return self._state.children(start_hash)

    def segment_path(self, relative: str) -> Path:
        """Where the file that a head names lies."""
        return self._state.path(relative)

    def open_segment(self, path: Path) -> SegmentFile:
        """An open segment, its header alone checked. Raises NotFound, Bad, Refused, StorageFailed."""
        return self._state.open(path)

    def verified(self, path: Path) -> SegmentFile:
        """An open segment with every byte checked, once a process for each version of the file; see `own`."""
        return self._state.verified(path)

    def write_segment(self, draft: Draft, payload: Sequence[Buffer], *, own: bool = True) -> tuple[SegmentRef, int]:
        """Write a segment once, its payload in pieces. Returns its reference and the bytes written, 0 where it was.

        `own` false: it was computed upon state from elsewhere, and is foreign as that is.
        """
        return self._state.write(draft, payload, own=own)

    def share(self, relative: str) -> None:
        """Mark a part as used by more than the conversation that wrote it."""
        self._state.share(relative)

    def drop_part(self, relative: str) -> bool:
        """Unlink a part that nobody needs, unless it is shared. The caller holds the directory exclusively."""
        return self._state.drop_part(relative)

    def quarantine(self, path: Path, why: str) -> Path:
        """Move a bad segment away, with a note; returns its new place."""
        return self._state.quarantine(path, why)


_LOCK = "the session directory"
