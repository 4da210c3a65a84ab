"""The session directory's folders, owner, key and clock.

    conversations/ prefixes/     heads and logs          counters/  the clock, and counts that may be lost
    segments/ quarantine/ tmp/   state (or in state_dir) key lock   the seal's secret, the directory's lock

It owns where things lie and who may write. Looking makes nothing: folders and key come with the first write.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from .errors import Bad, NotFound, StorageFailed
from .files import Files, ensure_folder, read_bytes, storage_errors, write_new
from .locks import FileLock, Holder

Clock = Callable[[], datetime]
RECORD_KINDS = ("conversations", "prefixes")
KEY_BYTES = 32
_SETTLE_S = 10.0
_TIME_BYTES = len("2026-01-01T00:00:00.000000Z")


def iso_time(moment: datetime) -> str:
    """ISO-8601 UTC with microseconds; such texts sort as their times do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Directory:
    """One session directory. Nothing is read or made until it is asked for."""

    def __init__(self, root: Path, files: Files, now: Clock, *, state_dir: Path | None, pid: int, command: str) -> None:
        """Raises StorageFailed where `root` is no folder. Locks belong to the real path, not to a link's."""
        self.root = Path(os.path.realpath(root))
        self.files = files
        self.now = now
        self.state_root = Path(os.path.realpath(state_dir)) if state_dir else self.root
        self.has_state_dir = state_dir is not None
        self.pid = pid
        self.command = command
        if os.path.lexists(self.root) and not self.root.is_dir():
            raise StorageFailed(f"the session directory {str(self.root)!r} is not a folder")
        self._refuse_linked_folders()

    def _refuse_linked_folders(self) -> None:
        for folder in (*self._text_folders, *self._state_folders):
            if folder.is_symlink():
                why = f"{str(folder)!r} is a symbolic link, and links in a session directory are not followed"
                raise StorageFailed(why, hint="put a real folder there; store.state_dir moves state")

    @property
    def _text_folders(self) -> tuple[Path, ...]:
        return tuple(self.root / name for name in (*RECORD_KINDS, "counters", "tmp"))

    @property
    def _state_folders(self) -> tuple[Path, ...]:
        return self.segments, self.quarantine, self.state_tmp

    @property
    def segments(self) -> Path:
        """Where segment files lie."""
        return self.state_root / "segments"

    @property
    def quarantine(self) -> Path:
        """Where bad files go."""
        return self.state_root / "quarantine"

    @property
    def state_tmp(self) -> Path:
        """Temporaries of segments, on their file system."""
        return self.state_root / "tmp"

    @property
    def tmp(self) -> Path:
        """Temporaries of heads and other small files, on the text's file system."""
        return self.root / "tmp"

    @cached_property
    def writable(self) -> bool:
        """Whether this process owns the directory (root does not own another user's) and may write there."""
        return _may_write(self.root)

    @cached_property
    def state_writable(self) -> bool:
        """The same of the folders that hold state; False too where the disk of `state_dir` is missing."""
        if not self.has_state_dir:
            return self.writable
        return self.writable and self.state_root.is_dir() and _may_write(self.state_root)

    def prepare(self) -> None:
        """Make what is missing and tighten what is there, before a write. Raises StorageFailed."""
        if not self.writable:
            hint = "run it as the directory's owner"
            raise StorageFailed(f"{str(self.root)!r} cannot be written by this user", reason="permission", hint=hint)
        _ = self._prepared

    @cached_property
    def _prepared(self) -> bool:
        for folder in (self.root, *self._text_folders):
            ensure_folder(self.files, folder)
        return True

    def prepare_state(self) -> None:
        """The same for the folders of state and the key. Raises StorageFailed where their disk is missing."""
        self.prepare()
        if not self.state_writable:
            why = f"the folder for state {str(self.state_root)!r} is missing or not ours"
            raise StorageFailed(why, reason="permission", hint=_STATE_HINT)
        _ = self._state_prepared

    @cached_property
    def _state_prepared(self) -> bool:
        for folder in self._state_folders:
            ensure_folder(self.files, folder)
        self._make_key()
        return True

    @property
    def key(self) -> bytes:
        """The 32 bytes that seal segments; where there is no key yet, random ones that match no seal."""
        return self._stored_key or self._no_key

    @cached_property
    def _no_key(self) -> bytes:
        return os.urandom(KEY_BYTES)

    @property
    def _stored_key(self) -> bytes | None:
        if "_key" not in self.__dict__:
            found = self._read_key()
            if found is None:
                return None
            self.__dict__["_key"] = found
        key: bytes = self.__dict__["_key"]
        return key

    def _read_key(self) -> bytes | None:
        path = self.root / "key"
        try:
            key = read_bytes(self.files, path, KEY_BYTES)
        except NotFound:
            return None
        except Bad:
            key = b""
        if len(key) != KEY_BYTES:
            # Not Bad: whoever verifies a segment would take the segment for the bad file.
            raise StorageFailed(f"{str(path)!r} is not a key of {KEY_BYTES} bytes", hint=_KEY_HINT)
        return key

    def _make_key(self) -> None:
        if self._stored_key is not None:
            return
        with self.settling():
            # Asked again: another process may have made it while this one waited.
            if self._stored_key is None:
                key = os.urandom(KEY_BYTES)
                write_new(self.files, self.tmp, self.root / "key", [key], KEY_BYTES)

    def settling(self) -> FileLock:
        """The short lock under which key and clock are replaced."""
        path = self.root / "counters" / "settling.lock"
        return FileLock.acquire(path, exclusive=True, wait_s=_SETTLE_S, what="the directory's clock")

    def next_time(self) -> str:
        """The time now, or if that is not later than all given out before, a microsecond after them."""
        self.prepare()
        path = self.root / "counters" / "clock"
        with self.settling():
            moment = self.now().astimezone(UTC)
            last = self._last_time(path)
            if last is not None and last >= moment:
                moment = last + timedelta(microseconds=1)
            text = iso_time(moment)
            write_new(self.files, self.tmp, path, [text.encode()], _TIME_BYTES)
        return text

    def _last_time(self, path: Path) -> datetime | None:
        with contextlib.suppress(NotFound, Bad, ValueError):
            found = datetime.fromisoformat(read_bytes(self.files, path, _TIME_BYTES).decode())
            # The last year would leave no later time to give.
            return found if found.tzinfo and found.year < 9999 else None
        return None

    def holder(self) -> Holder:
        """This process, as locks name it."""
        return Holder(self.pid, iso_time(self.now()), self.command)

    def free_bytes(self) -> int:
        """What an unprivileged process can still write where state lies. Raises StorageFailed."""
        folder = self.state_root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with storage_errors(folder, "ask for the free space of"):
            facts = os.statvfs(folder)
        return facts.f_bavail * facts.f_frsize


_STATE_HINT = "mount its disk, make the folder, or change store.state_dir"
_KEY_HINT = "move it away: a new key is made, and what is stored counts as from another directory"


def _may_write(folder: Path) -> bool:
    """Ownership and access of a folder; one that is to be made is judged by making it."""
    try:
        facts = os.stat(folder)
    except OSError:
        return True
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and os.access(folder, os.W_OK | os.X_OK)
