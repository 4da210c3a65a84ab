"""What a turn adds to a conversation's text: the setup where it is new, the user's line, the reply's line.

Owns the form of these lines. When they are written, and what a failure means, is `conversation`.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from .engine import Engine
from .opened import Opened
from .prompt import Prompt, common
from .reply import Reply

Said = str | Mapping[str, Any]  # a user's text, or a whole message


def user(said: Said) -> dict[str, Any]:
    return {"role": "user", "content": said} if isinstance(said, str) else dict(said)


def write_setup(
    opened: Opened,
    engine: Engine,
    day: date,
    system: str | None,
    tools: Sequence[Any] | None,
    dropped: int | None = None,
) -> int:
    """The settings of the turns to come, where they are new. Returns the bytes written. Raises StorageFailed."""
    setup: dict[str, Any] = {"date": day.isoformat(), "template": engine.template.origin}
    setup |= {"system": system} if system else {}
    setup |= {"tools": list(tools)} if tools else {}
    setup |= {"dropped": dropped} if dropped is not None else {}
    if dict(opened.setup) == setup:
        return 0
    return opened.append(parent=last_reply(opened), kind="setup", settings=setup)


def write_user_line(opened: Opened, engine: Engine, said: Said, prompt: Prompt) -> int:
    """The user's line, with the tokens that the prompt adds; an equal one that already waits is answered instead."""
    waiting, parent = opened.unanswered, last_reply(opened)
    same = waiting is not None and dict(waiting.message or {}) == user(said)
    if same and waiting is not None and opened.log.tokens(waiting.id) == prompt.tokens:
        return 0
    start = common(opened.log.tokens(parent) if parent is not None else (), prompt.tokens)
    return opened.append(
        parent=parent,
        kind="message",
        message=user(said),
        start=start,
        tokens=prompt.tokens[start:],
        tokenizer=engine.vocabulary.digest,
    )


def write_reply_line(opened: Opened, engine: Engine, prompt: Prompt, reply: Reply) -> int:
    """The reply with the very tokens that were sampled."""
    return opened.append(
        parent=opened.branch[-1].id if opened.branch else None,
        kind="message",
        message={"role": "assistant", "content": reply.text},
        tokens=reply.tokens,
        start=len(prompt.tokens),
        tokenizer=engine.vocabulary.digest,
        marks=("interrupted",) if reply.finish == "interrupted" else (),
    )


def last_reply(opened: Opened) -> int | None:
    """The line that what is said next follows."""
    return opened.answered[-1].id if opened.answered else None
