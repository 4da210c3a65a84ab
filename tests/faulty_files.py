"""File systems that count, that fail on purpose, and that forbid writing: `Files` with one thing changed."""

import errno
import os
from pathlib import Path

from strata_cli.files import Buffer, Entry, Files, Sizes


class CountingFiles(Files):
    """Counts the calls by name."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def make_folder(self, path: Path) -> bool:
        self.calls.append("make_folder")
        return super().make_folder(path)

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        self.calls.append("create")
        return super().create(path, reserve_bytes)

    def open(self, path: Path, append: bool = False) -> int:
        self.calls.append("open")
        return super().open(path, append)

    def write(self, fd: int, data: Buffer) -> None:
        self.calls.append("write")
        super().write(fd, data)

    def flush(self, target: int | Path) -> None:
        self.calls.append("flush" if isinstance(target, int) else "flush folder")
        super().flush(target)

    def rename(self, source: Path, target: Path) -> None:
        self.calls.append("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.calls.append("unlink")
        super().unlink(path)

    def list(self, path: Path, *, sizes: Sizes = True) -> list[Entry]:
        self.calls.append("list")
        return super().list(path, sizes=sizes)

    def sizes_below(self, path: Path) -> dict[str, int]:
        self.calls.append("sizes below")
        return super().sizes_below(path)


class FailingFiles(CountingFiles):
    """Raises `code` at the call number `at` (from 0, counted over all calls); a failing write writes half."""

    def __init__(self, code: int = errno.EIO, at: int | None = None) -> None:
        super().__init__()
        self.code = code
        self.at = at

    def _fail_if_due(self) -> None:
        if self.at is not None and len(self.calls) == self.at:
            self.calls.append("failed")
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        self._fail_if_due()
        return super().create(path, reserve_bytes)

    def write(self, fd: int, data: Buffer) -> None:
        if self.at is not None and len(self.calls) == self.at:
            os.write(fd, bytes(data)[: memoryview(data).nbytes // 2])
        self._fail_if_due()
        super().write(fd, data)

    def flush(self, target: int | Path) -> None:
        self._fail_if_due()
        super().flush(target)

    def rename(self, source: Path, target: Path) -> None:
        self._fail_if_due()
        super().rename(source, target)


class FaultAnywhere(Files):
    """Fails once, at the call number `due` from now on, whichever of the nine it is; a write writes half first.

    `dead`: as for a process that was killed, nothing reaches the disk any more.
    """

    def __init__(self) -> None:
        self.due: int | None = None
        self.code = errno.EIO
        self.fired = False
        self.dead = False

    def arm(self, due: int | None, code: int) -> None:
        self.due, self.code, self.fired = due, code, False

    def _call(self) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
        if self.due is None:
            return
        self.due -= 1
        if self.due < 0:
            self.due, self.fired = None, True
            raise OSError(self.code, os.strerror(self.code))

    def make_folder(self, path: Path) -> bool:
        self._call()
        return super().make_folder(path)

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        self._call()
        return super().create(path, reserve_bytes)

    def open(self, path: Path, append: bool = False) -> int:
        self._call()
        return super().open(path, append)

    def write(self, fd: int, data: Buffer) -> None:
        if self.due == 0:
            os.write(fd, bytes(data)[: memoryview(data).nbytes // 2])
        self._call()
        super().write(fd, data)

    def flush(self, target: int | Path) -> None:
        self._call()

    def rename(self, source: Path, target: Path) -> None:
        self._call()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._call()
        super().unlink(path)

    def list(self, path: Path, *, sizes: Sizes = True) -> list[Entry]:
        self._call()
        return super().list(path, sizes=sizes)

    def sizes_below(self, path: Path) -> dict[str, int]:
        self._call()
        return super().sizes_below(path)


class UnflushedFiles(Files):
    """Leaves flushing to the kernel: for many quick trials that no power cut will hit."""

    def flush(self, target: int | Path) -> None:
        pass


class ReadOnlyFiles(Files):
    """A read-only mount: every call that would change something fails the test."""

    def make_folder(self, path: Path) -> bool:
        raise AssertionError(f"made the folder {path}")

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        raise AssertionError(f"created {path}")

    def open(self, path: Path, append: bool = False) -> int:
        assert not append, f"opened {path} to append"
        return super().open(path)

    def rename(self, source: Path, target: Path) -> None:
        raise AssertionError(f"renamed {source}")

    def unlink(self, path: Path) -> None:
        raise AssertionError(f"unlinked {path}")


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below `root`, with its mode and bytes: to show that nothing changed."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode & 0o777, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
