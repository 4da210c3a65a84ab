"""Going back in a conversation's text: giving up replies and turns, and copying a branch.

Owns lines of the log, which is append-only: what is given up stays as an alternative. What it means for the engine is
found out by the next turn's plan.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import UsageProblem
from .log import Line
from .opened import Opened, role
from .prompt import content_text


def with_turns(opened: Opened | None, what: str) -> Opened:
    """The conversation, if anything was said in it. Raises UsageProblem."""
    if opened is None or not opened.branch:
        raise UsageProblem(f"there is nothing to {what}")
    return opened


def give_up_reply(opened: Opened) -> str:
    """Give up the last reply; returns the user's text that waits for another one."""
    if opened.unanswered is None:
        opened.append(parent=opened.branch[-2].id, kind="back")
    waiting = opened.unanswered
    return content_text(waiting.message or {}) if waiting is not None else ""


def give_up_turns(opened: Opened, turns: int) -> tuple[int, str]:
    """Give up the last user turns with their replies; returns how many are left, and what the first one said.

    Raises UsageProblem where there are not so many.
    """
    branch = opened.branch
    asked = [i for i, line in enumerate(branch) if role(line) == "user"]
    if not 1 <= turns <= len(asked):
        raise UsageProblem(f"there are {len(asked)} turns to undo, not {turns}")
    first = asked[-turns]
    opened.append(parent=branch[first - 1].id if first else None, kind="back")
    return len(asked) - turns, content_text(branch[first].message or {})


def lines_to(lines: Sequence[Line], turn: int | None) -> Sequence[Line]:
    """The lines up to the reply of a turn, counted from 1; 0 is the root, None all. Raises UsageProblem."""
    asked = [i for i, line in enumerate(lines) if role(line) == "user"]
    if turn is None:
        return lines
    if not 0 <= turn <= len(asked):
        raise UsageProblem(f"there is no turn {turn}: the conversation has {len(asked)}")
    return lines[: asked[turn]] if turn < len(asked) else lines


def copy_lines(opened: Opened, lines: Sequence[Line], setup: Mapping[str, Any]) -> None:
    """The text of a branch in a new conversation, the exact tokens included."""
    if setup:
        opened.append(parent=None, kind="setup", settings=dict(setup))
    parent: int | None = None
    for line in lines:
        opened.append(
            parent=parent,
            kind="message",
            message=line.message,
            tokens=line.tokens,
            start=line.start,
            tokenizer=line.tokenizer,
            marks=line.marks,
        )
        parent = opened.log.lines[-1].id
