"""`strata run`: one turn.

Owns what the command line's words mean: where the prompt comes from, which conversation is meant. The turn itself is
`conversation`, the loop `repl`.
"""

import array
import fcntl
import json
import os
import select
import stat
import sys
import termios
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from .back_commands import fork_source
from .conversation import STRICT_CODES, Chat, strict_error
from .errors import NotFound, UsageProblem
from .files import Files, read_bytes
from .going_back import fork
from .head import Head
from .messages import continued, named, read_messages, split, take_in
from .names import check_name, nearest, resolve
from .opened import open_named
from .output import Mode, Output
from .prefix_marks import keep_marked
from .prefix_start import begin_at_prefix
from .prompt import content_text
from .reply import ReplyOptions
from .said import not_reused_data, turn_data
from .said_lines import Said
from .session import Session
from .turn import TurnResult, Watch

FILE_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class RunRequest:
    """What `strata run` was asked, in plain values."""

    words: tuple[str, ...] = ()
    conversation: str | None = None
    continue_last: bool = False
    existing: bool = False
    system: str | None = None
    tools: tuple[Any, ...] | None = None
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    strict: bool = False
    plan: bool = False
    repl: str | None = None
    messages: str | None = None
    replace: bool = False
    prefix: str | None = None
    history: bool = True
    fork: str | None = None


def check(request: RunRequest) -> None:
    """Raises UsageProblem for wishes that exclude each other, before anything is read or loaded."""
    if request.conversation is not None:
        check_name(request.conversation)
        if request.continue_last:
            raise UsageProblem("-C and -c are two different wishes", hint="-C NAME, or -c for the last conversation")
    if request.messages is not None and (request.continue_last or request.repl is not None or len(request.words) > 1):
        raise UsageProblem("--messages is a whole history: it goes with -C NAME and one PROMPT, and nothing else")
    if request.prefix is not None:
        check_name(request.prefix)
        if request.continue_last or request.messages is not None or request.existing:
            raise UsageProblem("--prefix begins a new conversation", hint="-C NEW gives it a name")
    if request.fork is not None and (request.continue_last or request.messages is not None or request.prefix):
        raise UsageProblem("--fork begins a new conversation", hint="-C NEW gives it a name")
    if request.messages is not None and "-" in request.words:
        raise UsageProblem("`-` and --messages are two different wishes", hint="--messages - reads standard input")
    if request.replace and (request.messages is None or request.conversation is None):
        raise UsageProblem("--replace goes with --messages and -C NAME")


def wants_loop(request: RunRequest) -> bool:
    """Whether this is the interactive prompt: asked for, or nothing to say on a terminal."""
    asked = request.words or request.messages is not None
    return request.repl is not None or (not asked and sys.stdin is not None and sys.stdin.isatty())


def run(request: RunRequest, session: Session) -> int:
    """One turn, or its plan; returns the exit status."""
    if request.messages is not None:
        text, chat = open_messages(request, session)
    else:
        text, chat = prompt_text(request.words, sys.stdin, session.out), open_conversation(request, session)
    if request.plan:
        return show_plan(chat, text, session.out, strict=request.strict)
    return one_turn(chat, text, request, session)


def open_messages(request: RunRequest, session: Session) -> tuple[Said, Chat]:
    """The conversation that `--messages` continues, brought to where they stand, and what is said now (A1, A2)."""
    assert request.messages is not None
    prompt = request.words[0] if request.words else None
    incoming = split(read_messages(message_text(request.messages), "--messages"), prompt, "--messages")
    store, name = session.store, request.conversation
    if name is None:
        found = continued(store, incoming)
    else:
        head = session.head_of(name) if name in store.names() else None
        found = named(store, name, incoming, head, replace=request.replace)
    if found is None and request.existing:
        raise NotFound("no conversation is continued by these messages", hint="leave --existing out to create one")
    chat = session.chat_for(found.head if found else None)
    if found is not None:
        chat.open(found.name)
        session.out.note(f"continuing {found.name}")
    elif name is not None:
        chat.start(name)
    tools = request.tools if request.tools is not None else chat.tools
    chat.set_system(request.system if request.system is not None else incoming.system, tools)
    if not request.plan:
        keep_marked(session, chat, incoming.all)
    chat.check_length(content_text(each) for each in incoming.all)
    take_in(chat, incoming, found.kept if found else 0)
    assert incoming.said is not None
    return incoming.said, chat


def message_text(path: str) -> str:
    """The file of `--messages`, or standard input. Raises NotFound, UsageProblem."""
    return read_all(sys.stdin) if path == "-" else read_whole(path, "--messages")


def prompt_text(words: tuple[str, ...], stdin: TextIO | None, out: Output) -> str:
    """The prompt: PROMPT, standard input where `-` or nothing stands, or both. Raises UsageProblem for an empty one."""
    prompts = [word for word in words if word != "-"]
    if len(prompts) > 1 or words.count("-") > 1:
        raise UsageProblem(f"one PROMPT, not {len(prompts)}", hint="put the prompt in quotes")
    if "-" not in words and prompts:
        if waits(stdin):
            out.warning("standard input is left alone: `-` would read it")
        text = prompts[0]
    else:
        read = read_all(stdin)
        if prompts and not read.strip():
            out.warning("standard input was empty: PROMPT goes alone")
        text = "\n\n".join([read.rstrip("\n"), *prompts]) if read.strip() else "".join(prompts)
    if not text.strip():
        raise UsageProblem("the prompt is empty", hint='strata run "your question"')
    return text


def read_whole(path: str, flag: str) -> str:
    """A file that was named on the command line, as text. Raises NotFound, UsageProblem."""
    try:
        data = read_bytes(Files(), Path(path), FILE_LIMIT_BYTES)
    except OSError as error:
        raise UsageProblem(f"{flag} {path}: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageProblem(f"{flag} {path}: not UTF-8 text") from None


def read_tools(path: str) -> tuple[Any, ...]:
    """A JSON list of tools. Raises NotFound, UsageProblem."""
    try:
        value = json.loads(read_whole(path, "--tools"))
    except ValueError as error:
        raise UsageProblem(f"--tools {path}: not JSON: {error}") from None
    if not isinstance(value, list):
        raise UsageProblem(f"--tools {path}: not a list of tools")
    return tuple(value)


def read_all(stdin: TextIO | None) -> str:
    """Standard input as text. Raises UsageProblem where it is not UTF-8."""
    if stdin is None:
        return ""
    try:
        return stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageProblem(f"standard input is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


def waits(stdin: TextIO | None) -> bool:
    """Whether something that nobody asked for waits on standard input."""
    try:
        if stdin is None or stdin.isatty():
            return False
        descriptor = stdin.fileno()
        facts = os.fstat(descriptor)
        if stat.S_ISREG(facts.st_mode):
            return facts.st_size > os.lseek(descriptor, 0, os.SEEK_CUR)
        if not select.select([descriptor], [], [], 0)[0]:
            return False
        count = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
        return count[0] > 0
    except (OSError, ValueError):
        return False


def open_conversation(request: RunRequest, session: Session) -> Chat:
    """The chat with the conversation that the command line means. Raises NotFound, Locked, ModelUnavailable."""
    if request.fork is not None:
        return open_fork(request, session)
    head, name = wanted_conversation(request, session)
    if request.prefix is not None:
        if name is not None and name in session.store.names():
            raise UsageProblem(f"{name} exists already", hint="--prefix begins a new conversation")
        chat, _ = begin_at_prefix(session, request.prefix, name)
    else:
        chat = session.chat_for(head)
        if name is not None and name in session.store.names():
            chat.open(name)
        elif name is not None:
            chat.start(name)
    system = request.system if request.system is not None else chat.system
    tools = request.tools if request.tools is not None else chat.tools
    chat.set_system(system, tools)
    return chat


def open_fork(request: RunRequest, session: Session) -> Chat:
    """A new conversation that shares another one's beginning; the other may be open elsewhere."""
    wanted, turn = fork_source(str(request.fork))
    store, name = session.store, request.conversation
    source = resolve(wanted, store.names())
    if name is not None and name in store.names():
        raise UsageProblem(f"{name} exists already", hint="-C gives the fork a name that is free")
    chat = session.chat_for(session.head_of(source))
    forked = fork(chat, name, turn, source=open_named(store, source, create=False, keep=False))
    session.out.note(f"{forked} goes on where {source} stands")
    system = request.system if request.system is not None else chat.system
    chat.set_system(system, request.tools if request.tools is not None else chat.tools)
    return chat


def wanted_conversation(request: RunRequest, session: Session) -> tuple[Head | None, str | None]:
    """The head, where there is one, and the name; neither for a new conversation."""
    out, store = session.out, session.store
    if request.continue_last:
        head = session.newest()
        used = head.last_turn[:16].replace("T", " ")
        out.note(f"continuing {head.name}, last used {used} UTC: {head.title}")
        return head, head.name
    name = request.conversation
    if name is None:
        # Which one is the last is not looked up: that takes reading every head.
        if request.repl is None and store.names():
            out.note("a new conversation; -c continues the last")
        return None, None
    names = store.names()
    if name in names:
        return session.head_of(name), name
    hint = nearest(name, names)
    if request.existing:
        raise NotFound(f"there is no conversation {name}", hint=hint)
    out.note(f"{name} is a new conversation" + (f"; {hint}" if hint.startswith("the nearest") else ""))
    return None, name


def one_turn(chat: Chat, text: Said, request: RunRequest, session: Session) -> int:
    """One turn, printed. Raises what a turn raises; an interrupted one ends with 130 or 143."""
    out, stop = session.out, session.stop
    with stop.deferring():
        result = watched_turn(chat, text, request.reply, session, strict=request.strict)
        session.close_chat()
    data = turn_data(result, session.load_ms)
    if out.reader_left and not stop.cancelled():
        return 0
    if stop.cancelled():
        return (
            out.fail(stop.status, data) if out.mode is Mode.JSON else out.finish(data, exit_code=stop.status.exit_code)
        )
    return out.finish(data)


def watched_turn(chat: Chat, text: Said, reply: ReplyOptions, session: Session, *, strict: bool = False) -> TurnResult:
    """A turn with its answer streamed to stdout, a bar while the prompt is read, and signals as flags."""
    out, stop = session.out, session.stop
    with out.progress("reading", 1, "tokens") as update:

        def progress(done: int, total: int) -> None:
            update(done, total)

        def show(piece: str) -> None:
            update.close()
            out.answer(piece)

        watch = Watch(
            show=show,
            progress=progress,
            cancelled=lambda: stop.cancelled() or out.reader_left,
            hurried=stop.hurried,
        )
        had_state = chat.has_state
        result = chat.turn(text, reply, watch, strict=strict)
        session.turn_over(chat, result, had_state=had_state)
    if result.finish == "length":
        full = len(chat.engine.tokens) + 1 >= chat.engine.context_tokens
        limit = "the context is full" if full else f"{len(result.reply_tokens):,} tokens, as -n says"
        out.note(f"the answer was cut off: {limit}")
    return result


def show_plan(chat: Chat, text: Said, out: Output, *, strict: bool) -> int:
    """What the turn would keep, apply and read; nothing is done and nothing written.

    Raises what the turn would raise where it is `strict`.
    """
    prompt, plan = chat.plan(text)
    why = chat.why_not_reused(prompt, plan)
    steps: list[dict[str, Any]] = [
        {
            "what": step.action,
            "action": step.action,
            "start": step.start,
            "end": step.end,
            "tokens": step.tokens,
            "bytes": step.size_bytes,
            "from": step.source,
            "why": step.reason,
        }
        for step in plan.steps
    ]
    rows = [
        [s["action"], f"{s['start']:,}-{s['end']:,}", f"{s['tokens']:,}", f"{s['bytes']:,}", s["from"], s["why"]]
        for s in steps
    ]
    size, room = sum(step.size_bytes for step in plan.steps), chat.engine.context_tokens
    reused = f"{plan.position:,} of {len(prompt.tokens):,} are reused"
    rows.append(["total", f"0-{len(prompt.tokens):,}", f"{len(prompt.tokens):,}", f"{size:,}", "", reused])
    out.table(["what", "tokens from-to", "tokens", "bytes", "from", "why"], rows, right={2, 3})
    fits = len(prompt.tokens) < room
    out.show(f"needs: context {len(prompt.tokens) + 1:,} of {room:,} tokens; {'fits' if fits else 'does not fit'}")
    if why is not None:
        out.warning(f"the rest is read again: {why.message}")
    chat.close()
    if strict and why is not None and why.code in STRICT_CODES:
        raise strict_error(why)
    return out.finish(
        {
            "plan": steps,
            "not_reused": not_reused_data(why),
            "needs": {"context_tokens": len(prompt.tokens) + 1, "has_tokens": room, "bytes": size, "fits": fits},
            "tokens": {
                "prompt": len(prompt.tokens),
                "reused": plan.position,
                "evaluated": len(prompt.tokens) - plan.position,
            },
        }
    )
