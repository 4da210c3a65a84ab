"""The nine file-system calls that everything durable goes through, and the two verbs built on them.

It owns how bytes reach the disk: exclusive temporaries of mode 0600, space reserved first, no symlink
followed, regular files only. What the bytes mean is decided above. Raw OSErrors leave the calls;
`storage_errors` turns them into the error tree. Tests subclass `Files` to count calls and to make them fail.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .errors import Bad, DiskFull, NotFound, StorageFailed

# What can be written: collections.abc.Buffer is younger than the oldest Python that is supported.
Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 16 * 1024 * 1024
# Without O_NONBLOCK the open of a FIFO would wait for its other end.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# What a file system answers that cannot reserve; the write itself then says whether there is room.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})


class Entry(NamedTuple):
    """One name in a folder, as lstat sees it. `size` (bytes) and `mtime_ns` are 0 for folders and where not asked."""

    name: str
    is_file: bool
    is_folder: bool
    size: int
    mtime_ns: int


# Whether the sizes of files are wanted, or of which names.
Sizes = bool | Callable[[str], bool]


class Files:
    """The real file system."""

    def make_folder(self, path: Path) -> bool:
        """Make a folder of mode 0700 (True), or tighten the one that is there. OSError for a symlink."""
        try:
            os.mkdir(path, 0o700)
            return True
        except FileExistsError:
            fd = os.open(path, _FOLDER)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
        return False

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        """A descriptor of a new file of mode 0600, with its space reserved; the file must not exist."""
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if reserve_bytes > 0:
                _reserve(fd, reserve_bytes)
        except BaseException:
            os.close(fd)
            self.unlink(path)
            raise
        return fd

    def open(self, path: Path | str, append: bool = False) -> int:
        """A descriptor of a regular file: to read, or to read and append (made with 0600 where missing)."""
        fd = os.open(path, _TO_APPEND if append else _TO_READ, 0o600)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if append and stat.S_IMODE(mode) & 0o077:
                os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: Buffer) -> None:
        """All of `data`, in blocks of 16 MiB."""
        with memoryview(data) as whole, whole.cast("B") as view:
            done = 0
            while done < len(view):
                done += os.write(fd, view[done : done + BLOCK_BYTES])

    def flush(self, target: int | Path) -> None:
        """Make an open file, or the names in a folder, survive a power cut."""
        if isinstance(target, int):
            _sync(target)
            return
        fd = os.open(target, _FOLDER)
        try:
            _sync(fd)
        except OSError as error:
            # Some network file systems cannot flush a folder; they order its names themselves.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name; a file or link of that name is replaced, never followed."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove one name."""
        os.unlink(path)

    def list(self, path: Path, *, sizes: Sizes = True) -> list[Entry]:
        """The names in a folder, unordered; [] when it is missing. `sizes` costs a stat each: all, none, or which."""
        try:
            fd = os.open(path, _FOLDER)
        except FileNotFoundError:
            return []
        try:
            return _entries(fd, sizes)
        finally:
            os.close(fd)

    def sizes_below(self, path: Path) -> dict[str, int]:
        """The bytes of every regular file in a folder and in its folders, as `name` and `folder/name`; {} without it.

        One call, since there are thousands of folders, with a file or two in each.
        """
        try:
            top_fd = os.open(path, _FOLDER)
        except FileNotFoundError:
            return {}
        try:
            with os.scandir(top_fd) as found:
                folders = {each.name: each.is_dir(follow_symlinks=False) for each in found}
            sizes: dict[str, int] = {}
            _add_sizes(sizes, top_fd, [name for name, is_folder in folders.items() if not is_folder])
            _add_sizes(sizes, top_fd, _below(f"{path}{os.sep}", [name for name in folders if folders[name]]))
            return sizes
        finally:
            os.close(top_fd)


def _entries(folder_fd: int, sizes: Sizes) -> list[Entry]:
    entries = []
    with os.scandir(folder_fd) as found:
        for each in found:
            if each.is_dir(follow_symlinks=False):
                entries.append(Entry(each.name, False, True, 0, 0))
            elif not (sizes if isinstance(sizes, bool) else sizes(each.name)):
                entries.append(Entry(each.name, each.is_file(follow_symlinks=False), False, 0, 0))
            else:
                try:
                    facts = each.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed by another process since the folder was read
                entries.append(_seen(each.name, facts))
    return entries


def _seen(name: str, facts: os.stat_result) -> Entry:
    mode = facts.st_mode
    if stat.S_ISDIR(mode):
        return Entry(name, False, True, 0, 0)
    return Entry(name, stat.S_ISREG(mode), False, facts.st_size, facts.st_mtime_ns)


def _below(top: str, folders: Sequence[str]) -> Iterator[str]:
    """What lies in each of the folders that were seen in `top`, as `folder/name`."""
    for folder in folders:
        try:
            # By path, which takes half the calls that a descriptor takes. Links were sorted out when it was seen; one
            # that is made right then can show names from elsewhere, and who removes something looks again.
            names = os.listdir(top + folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed since
        for name in names:
            yield f"{folder}/{name}"


def _add_sizes(sizes: dict[str, int], top_fd: int, files: Iterable[str]) -> None:
    for file in files:
        try:
            facts = os.stat(file, dir_fd=top_fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISREG(facts.st_mode):
            sizes[file] = facts.st_size


def _reserve(fd: int, reserve_bytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, reserve_bytes)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise


def _sync(fd: int) -> None:
    try:
        from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        os.fsync(fd)
    else:
        # On macOS fsync leaves the data in the drive's own cache.
        fcntl(fd, F_FULLFSYNC)


@contextmanager
def storage_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError into NotFound, DiskFull or StorageFailed: "cannot DOING PATH: why"."""
    try:
        yield
    except OSError as error:
        raise translated(error, path, doing) from error


def translated(error: OSError, path: Path | str, doing: str) -> NotFound | StorageFailed:
    """The member of the error tree that says what `error` said."""
    text = f"cannot {doing} {str(path)!r}: "
    if error.errno == errno.ENOENT:
        return NotFound(text + "no such file or folder")
    if error.errno == errno.ELOOP:
        return StorageFailed(
            text + "a symbolic link, and links are not followed", hint="put the real file in its place"
        )
    why = error.strerror or type(error).__name__
    if error.errno in _NO_SPACE:
        return DiskFull(text + why, hint="free some space, or lower store.max_size and run `strata prune`")
    if error.errno in _NOT_ALLOWED:
        return StorageFailed(text + why, reason="permission", hint="check who owns it and its permissions")
    return StorageFailed(text + why)


def read_bytes(files: Files, path: Path | str, limit_bytes: int) -> bytes:
    """The whole of a regular file. Raises Bad, before it allocates, where that is over `limit_bytes`."""
    try:
        fd = files.open(path)
        try:
            # Sooner told than by fstat, and a regular file has it: thousands are read in a row.
            size = os.lseek(fd, 0, os.SEEK_END)
            if size > limit_bytes:
                raise Bad(f"{str(path)!r} has {size} bytes, more than the {limit_bytes} that it may have")
            return _read_up_to(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise translated(error, path, "read") from error


def _read_up_to(fd: int, size: int) -> bytes:
    data = os.pread(fd, size, 0)
    if len(data) == size:
        return data
    # A signal or the kernel's limit of 2 GiB a call cut the read short.
    blocks, done = [data], len(data)
    while done < size and (block := os.pread(fd, size - done, done)):
        blocks.append(block)
        done += len(block)
    return b"".join(blocks)


def ensure_folder(files: Files, path: Path) -> None:
    """Make `path` and the missing folders above it, each durable before the next. Raises StorageFailed."""
    try:
        with storage_errors(path, "make the folder"):
            _make_missing(files, path)
    except NotFound as error:
        # Below /proc and its like a name can be missing for good: that is no conversation that was not found.
        raise StorageFailed(error.message, hint="choose a place that can be written") from error


def _make_missing(files: Files, path: Path) -> None:
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    if not missing:
        files.make_folder(path)
    for folder in reversed(missing):
        if files.make_folder(folder):
            files.flush(folder.parent)


def write_new(files: Files, tmp_folder: Path, target: Path, blocks: Sequence[Buffer], total_bytes: int) -> int:
    """Write a file under its final name, whole and durable, or not at all; returns its bytes.

    The temporary lies in `tmp_folder`, on the file system of `target`. A failure removes it and nothing else.
    """
    temporary = tmp_folder / f"{os.getpid()}-{os.urandom(8).hex()}.tmp"
    with _room_told(tmp_folder, total_bytes), storage_errors(target, "write"):
        fd = files.create(temporary, total_bytes)
        try:
            _fill(files, fd, blocks, total_bytes)
            files.rename(temporary, target)
        except BaseException:
            # The cause is what is told; a temporary that cannot be removed now is left to prune.
            with contextlib.suppress(OSError):
                files.unlink(temporary)
            raise
        files.flush(target.parent)
    return total_bytes


@contextmanager
def _room_told(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Say how much was needed and how much there was, where there was no room."""
    try:
        yield
    except DiskFull as error:
        facts = os.statvfs(folder)
        room = f"needed {needed_bytes} bytes, had {facts.f_bavail * facts.f_frsize}"
        raise DiskFull(f"{error.message}: {room}", hint=error.hint) from error


def _fill(files: Files, fd: int, blocks: Sequence[Buffer], total_bytes: int) -> None:
    try:
        for block in blocks:
            files.write(fd, block)
        if os.lseek(fd, 0, os.SEEK_CUR) != total_bytes:
            raise OSError(errno.EIO, "not all bytes were written")
        files.flush(fd)
    finally:
        os.close(fd)
