"""`strata save` and `strata restore` of strata files, and their plans.

Owns where the bytes come from and go to, and what is printed. What is saved and what becomes of it is `snapshot` and
`reception`; llama.cpp's own files are `slot_command`.
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
from .asked import absorb
from .errors import NotFound, UsageProblem
from .files import Buffer, Files, storage_errors
from .head import Head
from .log import Log
from .messages import as_history, equal_text, read_messages, shared, take_in
from .names import check_name, nearest, resolve
from .output import Mode, Output
from .reception import Wish, look, receive
from .run_command import read_all, read_whole
from .session import Session
from .signals import Stop
from .sizes import format_bytes
from .snapshot import SavePlan, copy_within, execute_save, plan_save
from .store import Store
from .transfer import Transfer
from .turn import Watch

STDIO = "-"


@dataclass(frozen=True)
class SaveRequest:
    """What `strata save` was asked, in plain values."""

    name: str | None = None
    output: str | None = None
    as_name: str | None = None
    messages: str | None = None
    format: str = "strata"
    since: str | None = None
    everything: bool = False
    replace: bool = False
    plan: bool = False
    wait_s: float = 60.0


def check(request: SaveRequest, out: Output) -> None:
    """Raises UsageProblem for wishes that exclude each other, before anything is read."""
    ways = [request.output, request.as_name, request.messages]
    if sum(way is not None for way in ways) != 1:
        raise UsageProblem("save where to? one of -o FILE, --as NEW, --messages FILE", hint="strata save NAME -o FILE")
    if request.as_name is not None:
        check_name(request.as_name)
    if request.messages is not None and request.name is None:
        raise UsageProblem("--messages needs a NAME to keep them under", hint="strata save NAME --messages FILE")
    if request.format not in ("strata", "llama"):
        raise UsageProblem(f"--format {request.format}: strata or llama")
    if request.output is None and (request.since or request.everything or request.format != "strata"):
        raise UsageProblem("--since, --all and --format go with -o FILE")
    if request.plan and (request.output is None or request.format != "strata"):
        raise UsageProblem(
            "--plan goes with a strata file: -o FILE", hint="strata restore FILE --plan for a llama file"
        )
    if request.format == "llama" and (request.since or request.everything or request.output == STDIO):
        raise UsageProblem("a llama file is one whole file: no --since, --all or standard output")
    if request.output == STDIO and not request.plan:
        if out.mode is Mode.JSON:
            raise UsageProblem("-o - gives standard output to the archive, and --json wants it too", hint="-o FILE")
        if out.is_tty:
            raise UsageProblem("-o - would fill the terminal with bytes", hint="strata save NAME -o - > FILE")


def source_name(store: Store, name: str | None) -> str:
    """The conversation to save: by name or unique beginning, or the last one. Raises NotFound, UsageProblem."""
    if name is not None:
        try:
            return resolve(name, store.names())
        except NotFound as error:
            raise NotFound(error.message, hint=error.hint or nearest(name, store.names())) from None
    head = store.newest()
    if head is None:
        raise NotFound("there is no conversation to save", hint="strata run PROMPT begins one")
    return head.name


def save(request: SaveRequest, store: Store, out: Output, stop: Stop) -> int:
    """Save as a strata file or as a copy in the directory; returns the exit status."""
    name = source_name(store, request.name)
    if request.as_name is not None:
        done = copy_within(store, name, request.as_name, replace_it=request.replace, wait_s=request.wait_s)
        out.note(f"saved {done.tokens:,} tokens of {name} as {done.name}")
        return finish(done, out, plan=False)
    base = _base(request.since) if request.since is not None else None
    with store.shared():
        plan = plan_save(store, name, everything=request.everything, since=base)
        if plan.lost:
            out.warning(f"{name}: {len(plan.lost)} of its files of state are gone; its text is whole")
        if request.plan:
            return finish(plan.transfer(request.output, 0, _free_bytes(request.output)), out, plan=True)
        total = plan.manifest.total_bytes
        with out.progress(f"saving {name}", total, "bytes") as update:

            def check_in(done: int) -> None:
                update(done)
                stop.check()

            with _target(str(request.output), total) as write:
                written = execute_save(plan, store, write, check_in)
    done = plan.transfer(request.output, written, _free_bytes(request.output))
    where = "standard output" if request.output == STDIO else request.output
    out.note(f"saved {done.tokens:,} tokens ({format_bytes(written)}) of {name} to {where}")
    return finish(done, out, plan=False)


def save_messages(request: SaveRequest, session: Session) -> int:
    """Read a list of messages into the engine once and keep it as NAME; returns the exit status."""
    assert request.messages is not None and request.name is not None
    store, out, name = session.store, session.out, check_name(request.name)
    text = read_all(sys.stdin) if request.messages == STDIO else read_whole(request.messages, "--messages")
    incoming = as_history(read_messages(text, "--messages"), "--messages")
    exists = name in store.names()
    head = session.head_of(name) if exists else None
    if exists and not request.replace and not equal_text(store.read_log(name), incoming):
        raise UsageProblem(f"{name} exists and says something else", hint="--replace keeps that as a branch")
    chat = session.chat_for(head)
    if exists:
        chat.open(name)
    else:
        chat.start(name)
    chat.set_system(incoming.system, chat.tools)
    take_in(chat, incoming, shared(store.read_log(name), incoming))
    with session.stop.deferring(), out.progress("reading", 1, "tokens") as update:
        watch = Watch(progress=update, cancelled=session.stop.cancelled, hurried=session.stop.hurried)
        prompt, plan, parked = absorb(chat, watch)
    session.close_chat()
    session.stop.check()
    saved = plan_save(store, name)
    done = replace(saved.transfer(None, parked.bytes_written, sys.maxsize), bytes=_state_bytes(saved), needs=None)
    out.note(f"read {len(prompt.tokens) - plan.position:,} of {len(prompt.tokens):,} tokens and kept them as {name}")
    return finish(done, out, plan=False)


def _state_bytes(plan: SavePlan) -> int:
    return sum(each.bytes for each in plan.manifest.files)


def restore(source: str, wish: Wish, store: Store, out: Output, stop: Stop) -> int:
    """Receive a strata file; returns the exit status."""
    with _source(source) as (read_into, size_bytes), out.progress("restoring", size_bytes, "bytes") as update:

        def check_in(done: int) -> None:
            update(done, max(done, size_bytes))
            stop.check()

        done = receive(store, Reader(read_into), wish, check_in, stop.deferring)
    if not wish.plan:
        out.note(f"restored {done.tokens:,} tokens as {done.name}: {format_bytes(done.bytes_written)} written")
    if not done.usable:
        out.warning(f"{done.name}: {done.why}")
    return finish(_named(done, source), out, plan=wish.plan)


def _named(done: Transfer, source: str) -> Transfer:
    return replace(done, file=source)


def inspect_archive(source: str) -> tuple[Manifest, Head, Log]:
    """What a strata file holds, every byte checked. Raises Bad, Refused, NotFound."""
    with _source(source) as (read_into, _):
        return look(Reader(read_into))


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


def finish(done: Transfer, out: Output, *, plan: bool) -> int:
    """Print what was done, or would be; returns the exit status."""
    if plan:
        show_plan(done, out)
    out.ids([done.name])
    return out.finish(done.as_json())


def show_plan(done: Transfer, out: Output) -> None:
    """The plan's rows, their totals, and whether it fits."""
    rows = [
        [
            row.what,
            f"{row.start:,}-{row.end:,}" if row.end else "",
            f"{row.tokens:,}",
            f"{row.bytes:,}",
            row.source,
            row.why,
        ]
        for row in done.rows
    ]
    total = sum(row.bytes for row in done.rows)
    rows.append(["total", "", f"{done.tokens:,}", f"{total:,}", "", "usable" if done.usable else str(done.why)])
    out.table(["what", "tokens from-to", "tokens", "bytes", "from", "why"], rows, right={2, 3})
    if (needs := done.needs) is not None:
        room = f"memory {format_bytes(needs.memory_bytes)}, context {needs.context_tokens:,} tokens, {needs.model}"
        fits = "fits" if needs.why_not is None else needs.why_not
        out.show(f"needs: disk {format_bytes(needs.disk_bytes)}, {room}; {fits}")


def _base(path: str) -> Manifest:
    with _source(path) as (read_into, _):
        return Reader(read_into).manifest()


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
def replacing(path: Path, reserve_bytes: int) -> Iterator[tuple[int, Path]]:
    """A temporary of mode 0600 beside `path`, which takes its name when the block ends well. Raises StorageFailed.

    A link is followed, since the user named it: the file that it points to is replaced.
    """
    files, target = Files(), Path(os.path.realpath(path))
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
