"""Going back in the open conversation: another reply, fewer turns, a fork.

Owns the steps. What is given up stays in the text as an alternative, and its state until prune; the next turn finds
out by tokens how much of what is stored still holds.
"""

from .branches import copy_lines, give_up_reply, give_up_turns, lines_to, with_turns
from .conversation import Chat
from .errors import UsageProblem
from .opened import Opened, open_automatic, open_named, role
from .prompt import content_text


def retry_text(chat: Chat) -> str:
    """Give up the last reply; returns the user's text that waits for another one. Raises UsageProblem."""
    return give_up_reply(with_turns(chat.opened, "retry"))


def undo(chat: Chat, turns: int) -> tuple[int, str]:
    """Give up the last user turns; returns how many are left and what the first said. Raises UsageProblem."""
    return give_up_turns(with_turns(chat.opened, "undo"), turns)


def fork(chat: Chat, name: str | None, turn: int | None = None, *, source: Opened | None = None) -> str:
    """Go on in a new conversation that shares all up to a turn of the open one, or of `source`; returns its name.

    Turns are counted from 1, 0 is the root, None is all. What is left stays as it is. Raises UsageProblem, Locked.
    """
    origin = with_turns(source or chat.opened, "fork")
    lines = lines_to(origin.answered, turn)
    chat.keeper.wait()  # so that the copy names all that is being written of the other
    forked = _new(chat, origin, name)
    try:
        copy_lines(forked, lines, origin.setup)
        chat.keeper.share_state(origin, forked)
    except BaseException:
        forked.wanted = False
        forked.release()
        raise
    chat.adopt_conversation(forked)
    assert forked.name is not None
    return forked.name


def _new(chat: Chat, origin: Opened, name: str | None) -> Opened:
    if name is None:
        first = next(line for line in origin.branch if role(line) == "user")
        return open_automatic(chat.store, content_text(first.message or {}))
    if name in chat.store.names():
        raise UsageProblem(f"{name} exists already", hint="choose another name for the fork")
    return open_named(chat.store, name, create=True, keep=True)
