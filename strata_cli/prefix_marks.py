"""A mark on a message of `--messages` (`"strata_prefix": true`): the part that conversations share ends after it (P3).

Owns reading up to that place and keeping it, once, before the turn is read. What a prefix is on disk is `prefix`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation import Chat
from .engine import Cancelled
from .errors import StrataError
from .log import Line
from .opened import GIVEN
from .prefix import KIND, Opening, Stored, name_of, read_opening, write_prefix
from .prompt import Entry
from .session import Session

MARK = "strata_prefix"


def keep_marked(session: Session, chat: Chat, messages: Sequence[Mapping[str, Any]]) -> None:
    """Keep the place after the last marked message as an unpinned prefix. Never raises.

    Only where the engine holds nothing yet: what it holds otherwise belongs to a conversation.
    """
    marked = max((number for number, each in enumerate(messages, 1) if each.get(MARK)), default=0)
    if marked and not chat.engine.tokens:
        keep_opening(session, chat, messages[:marked])


def keep_opening(
    session: Session, chat: Chat, messages: Sequence[Mapping[str, Any]], free: Callable[[], bool] = lambda: True
) -> None:
    """Keep the place after these messages as an unpinned prefix, unless it is kept already. Never raises.

    `free` is asked before the engine is emptied for it: false where what it holds is needed. It holds nothing then.
    """
    if not chat.policy.save:
        return
    try:
        place = _place(session, chat, messages)
        if place is None or not free():
            return
        _empty(chat)
        _keep(session, chat, messages, place)
    except Cancelled:
        pass
    except StrataError as error:
        session.out.warning(f"the marked message is not kept as a prefix: {error.message}")
    _empty(chat)


def _empty(chat: Chat) -> None:
    chat.engine.clear()
    chat.keeper.stands_on_nothing(foreign_for=None)


@dataclass(frozen=True)
class Place:
    """Where an opening ends, and the name of the prefix that is kept there."""

    name: str
    tokens: Sequence[int]


def _place(session: Session, chat: Chat, messages: Sequence[Mapping[str, Any]]) -> Place | None:
    """None where it is kept already, or cannot be. Raises Refused."""
    opening = [Entry({"role": "system", "content": chat.system})] if chat.system else []
    opening += [Entry(message) for message in messages]
    tokens = chat.prompter.opening_tokens(opening, tools=chat.tools, day=chat.day)
    name = name_of("mark", chat.engine.identity.digest, tokens)
    if not tokens or len(tokens) >= chat.engine.context_tokens or name in session.store.names(KIND):
        return None
    return Place(name, tokens)


def _keep(session: Session, chat: Chat, messages: Sequence[Mapping[str, Any]], place: Place) -> None:
    store, engine, tokens = session.store, chat.engine, place.tokens
    settings: dict[str, Any] = {"date": chat.day.isoformat(), "template": engine.template.origin}
    settings |= {"system": chat.system} if chat.system else {}
    settings |= {"tools": list(chat.tools)} if chat.tools else {}
    lines = tuple(Line(0, None, "message", store.clock(), message=dict(m), marks=(GIVEN,)) for m in messages)
    store.prepare()
    with session.stop.deferring(), store.shared():
        state, parked, known = read_opening(engine, store, tokens, cancelled=session.stop.cancelled)
        stored = Stored(engine.identity.digest.hex(), state, chat.remembered_model, chat.remembered_options)
        written = write_prefix(store, place.name, Opening(settings, lines), stored, pinned=False)
    session.housekeeper.count_prefix(parked, written, known, len(tokens) - known)
