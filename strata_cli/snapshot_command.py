"""`strata save` and `strata restore` of strata files, and their plans.

Owns what the command line's words mean and what is printed. The files themselves are `file_transfer`; llama.cpp's own
are `slot_command`.
"""

import sys
from dataclasses import dataclass, replace

from .asked import absorb
from .errors import NotFound, UsageProblem
from .file_transfer import STDIO, Saving, receive_file, save_file
from .messages import as_history, equal_text, read_messages, shared, take_in
from .names import check_name, nearest, resolve
from .output import Mode, Output
from .prompt import content_text
from .reception import Wish
from .run_command import read_all, read_whole
from .session import Session
from .signals import Stop
from .sizes import format_bytes
from .snapshot import SavePlan, copy_within, plan_save
from .store import Store
from .transfer import Transfer
from .turn import Watch


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
    saving = Saving(request.since, request.everything, request.plan)
    done = save_file(str(request.output), name, store, out, stop, saving)
    return finish(done, out, plan=request.plan)


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
    chat.check_length([incoming.system or "", *(content_text(each) for each in incoming.all)])
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
    return finish(receive_file(source, wish, store, out, stop), out, plan=wish.plan)


def finish(done: Transfer, out: Output, *, plan: bool) -> int:
    """Print what was done, or would be; returns the exit status."""
    if plan:
        show_plan(done, out)
    if done.file != STDIO:  # standard output is the archive then, and nothing else
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
