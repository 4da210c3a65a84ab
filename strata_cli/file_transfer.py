"""Strata files on disk and in pipes: where the bytes come from and go to.

Owns opening, replacing FILE as a whole, standard input and output, and the bar. What the bytes are is `archive`; what
is saved and what becomes of what arrives is `snapshot` and `reception`.
"""

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .archive import Manifest, Reader
from .errors import Bad, UsageProblem
from .files import Buffer, Files, storage_errors
from .head import Head
from .log import Log, parse_log
from .output import Output
from .reception import Wish, look, receive
from .signals import Stop
from .sizes import format_bytes
from .snapshot import execute_save, plan_save
from .store import Store
from .transfer import Transfer

STDIO = "-"


@dataclass(frozen=True)
class Saving:
    """How a strata file is written: BASE of `--since`, with alternatives, only planned."""

    since: str | None = None
    everything: bool = False
    plan: bool = False


def save_file(output: str, name: str, store: Store, out: Output, stop: Stop, saving: Saving | None = None) -> Transfer:
    """Write a conversation to FILE or standard output, or plan it. Raises as `snapshot` does, and StorageFailed."""
    saving = saving or Saving()
    base = _base(saving.since, output) if saving.since is not None else None
    with store.shared():
        plan = plan_save(store, name, everything=saving.everything, since=base)
        if plan.lost:
            out.warning(f"{name}: {len(plan.lost)} of its files of state are gone; its text is whole")
        if saving.plan:
            return plan.transfer(output, 0, _free_bytes(output))
        total = plan.manifest.total_bytes
        with out.progress(f"saving {name}", total, "bytes") as update:

            def check_in(done: int) -> None:
                update(done)
                stop.check()

            with _target(output, total) as write:
                written = execute_save(plan, store, write, check_in)
    done = plan.transfer(output, written, _free_bytes(output))
    where = "standard output" if output == STDIO else output
    out.note(f"saved {done.tokens:,} tokens ({format_bytes(written)}) of {name} to {where}")
    return done


def receive_file(source: str, wish: Wish, store: Store, out: Output, stop: Stop) -> Transfer:
    """Receive a strata file, or plan it. Raises as `reception` does, NotFound, StorageFailed."""
    with _source(source) as (read_into, size_bytes), out.progress("restoring", size_bytes, "bytes") as update:

        def check_in(done: int) -> None:
            update(done, max(done, size_bytes))
            stop.check()

        done = receive(store, Reader(read_into), wish, check_in, stop.deferring)
    if not wish.plan:
        out.note(f"restored {done.tokens:,} tokens as {done.name}: {format_bytes(done.bytes_written)} written")
    if not done.usable:
        out.warning(f"{done.name}: {done.why}")
    return replace(done, file=source)


def inspect_archive(source: str) -> tuple[Manifest, Head, Log]:
    """What a strata file holds, every byte checked. Raises Bad, Refused, NotFound."""
    with _source(source) as (read_into, _):
        return look(Reader(read_into))


def text_of_archive(source: str) -> tuple[str, Log]:
    """The conversation's name and text, from the beginning of a file. Raises Bad, Refused, NotFound."""
    with _source(source) as (read_into, _):
        reader = Reader(read_into)
        manifest = reader.manifest()
        reader.head(manifest)
        return manifest.name, parse_log(reader.log(manifest))


def is_archive(source: str) -> bool:
    """Whether a file begins as a strata file does; standard input always counts as one."""
    return source == STDIO or first_bytes(source).startswith(b"strata.json\0")


def first_bytes(source: str) -> bytes:
    """The first bytes of a regular file. Raises NotFound, StorageFailed."""
    path = Path(source)
    with storage_errors(path, "read"):
        fd = Files().open(Path(os.path.realpath(path)))
        try:
            return os.pread(fd, 64, 0)
        finally:
            os.close(fd)


def _base(path: str, output: str) -> Manifest:
    """What BASE holds. Raises UsageProblem where the new file would take its place, Bad where it is cut off."""
    if STDIO not in (path, output) and os.path.exists(output) and os.path.samefile(path, output):
        raise UsageProblem(
            f"-o {output}: that is BASE itself, and what the new file leaves out would be lost", hint="another -o FILE"
        )
    with _source(path) as (read_into, size_bytes):
        manifest = Reader(read_into).manifest()
    if path != STDIO and size_bytes < manifest.total_bytes:
        raise Bad(
            f"{path}: cut off: {size_bytes:,} of {manifest.total_bytes:,} bytes, so it lacks what would be left out",
            hint="without --since everything is saved",
        )
    return manifest


@contextmanager
def _source(source: str) -> Iterator[tuple[Callable[[memoryview], int], int]]:
    """How to read a file or standard input, and its size (0: unknown)."""
    path = Path("standard input" if source == STDIO else source)
    if source == STDIO:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageProblem("`-` reads an archive from standard input, and this is a terminal")
        fd = os.dup(sys.stdin.fileno())
    else:
        with storage_errors(path, "open"):
            fd = Files().open(Path(os.path.realpath(path)))

    def read_into(buffer: memoryview) -> int:
        with storage_errors(path, "read"):
            return os.readv(fd, [buffer])

    try:
        yield read_into, os.fstat(fd).st_size if source != STDIO else 0
    finally:
        os.close(fd)


@contextmanager
def _target(output: str, total_bytes: int) -> Iterator[Callable[[Buffer], None]]:
    """Where the bytes go: standard output, or a temporary beside FILE that takes its place when all is written."""
    if output == STDIO:
        yield _to_stdout
        return
    with replacing(Path(output), total_bytes) as (fd, _):
        yield lambda data: Files().write(fd, data)


def _free_bytes(output: str | None) -> int:
    """The room where a file goes; as much as it takes where that cannot be known."""
    folder = Path(os.path.realpath(output or STDIO)).parent
    try:
        facts = os.statvfs(folder)
    except OSError:
        return sys.maxsize
    return sys.maxsize if output == STDIO else facts.f_bavail * facts.f_frsize


def _to_stdout(data: Buffer) -> None:
    with storage_errors(Path("standard output"), "write to"):
        Files().write(sys.stdout.fileno(), data)


@contextmanager
def replacing(path: Path, reserve_bytes: int, *, follow: bool = True) -> Iterator[tuple[int, Path]]:
    """A temporary of mode 0600 beside `path`, which takes its name when the block ends well. Raises StorageFailed.

    A link is followed, where the user named it: the file that it points to is replaced. Else a link is refused.
    """
    files, target = Files(), Path(os.path.realpath(path)) if follow else path
    _check_target(path, target)
    temporary = target.parent / f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    with storage_errors(path, f"write {reserve_bytes} bytes to"):
        fd = files.create(temporary, reserve_bytes)
        try:
            yield fd, temporary
            files.flush(fd)
            files.rename(temporary, target)
            files.flush(target.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(temporary)
            raise
        finally:
            os.close(fd)


def _check_target(path: Path, target: Path) -> None:
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageProblem(f"-o {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise UsageProblem(f"-o {path}: {what}", hint="name a file; -o - writes to standard output")
