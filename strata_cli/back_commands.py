"""The loop's commands that go back: `/retry`, `/undo`, `/edit`, `/fork`, and `/set ctx-size`.

Owns their arguments and what they tell. The going back itself is `going_back`, the loop is `repl`.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .conversation import Chat
from .errors import StrataError, UsageProblem
from .going_back import fork, retry_text, undo
from .loop_words import counted
from .names import check_name
from .output import Output
from .slash import Command

Say = Callable[[str], dict[str, Any]]


def retry(chat: Chat, say: Say) -> dict[str, Any]:
    """Another reply to the last line; the first one stays as an alternative."""
    return say(retry_text(chat))


def undo_turns(chat: Chat, command: Command, out: Output) -> dict[str, Any]:
    """Give up the last N turns, one without N."""
    if len(command.args) > 1:
        raise UsageProblem("/undo takes one number of turns")
    turns = whole_number(command.args[0], "/undo") if command.args else 1
    left, text = undo(chat, turns)
    out.note(f"gave up {counted(turns, 'turn')}, {left:,} left; what is gone began with: {text[:60]}")
    return {"conversation": chat.name, "turns": left, "undone": turns}


def edit(
    chat: Chat, command: Command, say: Say, at_question: Callable[[], AbstractContextManager[None]]
) -> dict[str, Any]:
    """Say the last line differently: TEXT, or what an editor makes of it, which has the terminal to itself."""
    text = command.rest
    if not text:
        if not sys.stdin.isatty():
            raise UsageProblem("/edit takes the new text", hint="/edit TEXT")
        opened = chat.opened
        last = [line for line in (opened.branch if opened else ()) if (line.message or {}).get("role") == "user"]
        with at_question():
            text = edited(str((last[-1].message or {}).get("content", "")) if last else "")
    undo(chat, 1)
    return say(text)


def edited(text: str) -> str:
    """The text after the user's editor. Raises UsageProblem where it is left empty, StrataError where it fails."""
    words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.txt"
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*words, str(path)], check=False)
        except OSError as error:
            raise StrataError(
                f"the editor {words[0]} cannot be started: {error.strerror}", hint="set EDITOR"
            ) from error
        if done.returncode:
            raise StrataError(f"the editor {words[0]} ended with {done.returncode}: nothing was changed")
        found = path.read_text(encoding="utf-8").strip("\n")
    if not found.strip():
        raise UsageProblem("the text is empty: nothing was changed")
    return found


def fork_here(chat: Chat, command: Command, out: Output) -> dict[str, Any]:
    """Go on in a copy; what is left stays."""
    if len(command.args) > 1:
        raise UsageProblem("/fork takes one name at most")
    before = chat.name
    name = fork(chat, check_name(command.args[0]) if command.args else None)
    out.note(f"{name} goes on where {before} stands")
    return {"conversation": name, "from": before}


def set_context(chat: Chat, value: str, out: Output) -> dict[str, Any]:
    """`/set ctx-size N`: what `--on-full grow` does, now. A context that is too small for what is held is refused."""
    size = whole_number(value, "/set ctx-size")
    held = len(chat.engine.tokens)
    if size <= held:
        raise UsageProblem(f"{held:,} tokens are held: a context of {size:,} is too small", hint="/new begins afresh")
    chat.grow(size)
    out.table(["key", "value"], [["ctx-size", str(chat.engine.context_tokens)]])
    return {"ctx-size": chat.engine.context_tokens}


def whole_number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise UsageProblem(f"{what} {text}: not a whole number from 1 on")
    return int(text)


def fork_source(text: str) -> tuple[str, int | None]:
    """NAME or NAME@TURN. Raises UsageProblem for a turn that is no number."""
    name, at, turn = text.partition("@")
    if not at:
        return name, None
    if not turn.isascii() or not turn.isdigit():
        raise UsageProblem(f"--fork {text}: the turn is not a number", hint="--fork NAME@TURN, @0 is the root")
    return name, int(turn)
