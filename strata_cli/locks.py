"""Kernel advisory locks on files: they die with their process, so none can be left behind.

It owns taking, naming and giving back a lock. What a lock protects is decided above. The holder's name in the
file is information for people; only the kernel's lock counts.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import Locked, NotFound, StorageFailed
from .files import storage_errors

# A process that only asks who holds a lock takes it for a moment; this outlasts the moment.
_GRACE_S = 0.1
_POLL_S = 0.005
_TELL_S = 0.5  # how often whoever waits is told for what
_HOLDER_LIMIT_BYTES = 4096
_BUSY = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: process id, since when (ISO-8601 UTC), and by which command."""

    pid: int
    since: str
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) since {self.since}"


class FileLock:
    """A lock that is held. `release` it, or use it as a context manager; a second release does nothing."""

    def __init__(self, fd: int, path: Path, remove: bool) -> None:
        self.path = path
        self._fd = fd
        self._remove = remove

    @classmethod
    def acquire(
        cls,
        path: Path,
        *,
        exclusive: bool,
        wait_s: float = 0.0,
        holder: Holder | None = None,
        create: bool = True,
        remove: bool = False,
        what: str = "",
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> "FileLock":
        """Take the lock on `path`, waiting at most `wait_s` seconds; `on_wait` is told who has it, and may raise.

        The file is made with mode 0600 if `create`; else a missing one is NotFound and none is written to.
        `remove` unlinks it at the release. Raises Locked, naming `what` and the holder, or StorageFailed.
        """
        deadline = time.monotonic() + max(wait_s, _GRACE_S)
        tell_at = time.monotonic() + _TELL_S
        while True:
            fd = _try(path, exclusive, create)
            if fd is not None:
                break
            if time.monotonic() >= deadline:
                raise _locked(path, exclusive, what or repr(path.stem))
            if time.monotonic() >= tell_at:
                on_wait(_locked(path, exclusive, what or repr(path.stem)).message)
                tell_at += _TELL_S
            time.sleep(_POLL_S)
        lock = cls(fd, path, remove and create and exclusive)
        if exclusive and create:
            lock._sign(holder)
        return lock

    def _sign(self, holder: Holder | None) -> None:
        text = json.dumps(asdict(holder))[:_HOLDER_LIMIT_BYTES] if holder else ""
        # Only information: a full disk must not keep anybody from locking, and so from freeing space.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Give it back."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if self._remove and _is_same_file(fd, self.path):
                # Those who wait for this file find that the name is gone, and make a new one.
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
        finally:
            os.close(fd)

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _try(path: Path, exclusive: bool, create: bool) -> int | None:
    """A descriptor that holds the lock; None when another has it or the file was replaced meanwhile."""
    with storage_errors(path, "lock"):
        fd = _open(path, create)
        try:
            if _take(fd, exclusive) and _is_same_file(fd, path) and not _is_linked_elsewhere(fd, path, create):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None


def _open(path: Path, create: bool) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags | (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY), 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def _take(fd: int, exclusive: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        there, here = os.lstat(path), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _is_linked_elsewhere(fd: int, path: Path, create: bool) -> bool:
    """A hard link would carry the holder's name into a file outside: give the lock a file of its own."""
    if not create or os.fstat(fd).st_nlink == 1:
        return False
    os.unlink(path)
    return True


def _locked(path: Path, exclusive: bool, what: str) -> Locked:
    # Those who share a lock don't sign it, so a name in the file would be an earlier holder's.
    holder = None if exclusive and not _is_exclusive(path) else _signature(path)
    who = f"held by {holder}" if holder else "in use by another process"
    return Locked(f"{what} is {who}", hint="try again when it is done, or work on a copy: strata run --fork NAME")


def _is_exclusive(path: Path) -> bool:
    """Whether somebody holds the lock for himself alone; asked by sharing it for a moment."""
    try:
        fd = _try(path, exclusive=False, create=False)
    except (NotFound, StorageFailed):
        return False
    if fd is None:
        return True
    os.close(fd)
    return False


def _signature(path: Path) -> Holder | None:
    try:
        fd = _open(path, create=False)
        try:
            text = os.pread(fd, _HOLDER_LIMIT_BYTES, 0)
        finally:
            os.close(fd)
        value = json.loads(text)
        pid, since, command = value["pid"], value["since"], value["command"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    if type(pid) is not int or not isinstance(since, str) or not isinstance(command, str):
        return None
    return Holder(pid, _harmless(since), _harmless(command))


def _harmless(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock on `path` for himself alone right now; None when nobody does. Writes nothing."""
    if not _is_exclusive(path):
        return None
    return _signature(path) or Holder(0, "", "unknown")
