"""A chat request on the engine's thread: which conversation it continues, going there, the turn.

Owns the order of things for a client that sends its whole history (A1 to A5, P3, P4). A turn is `conversation`, what
messages continue is `messages`. No failure of going somewhere fails a request: it is then answered from what it says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from ..conversation import Chat
from ..errors import StrataError
from ..messages import Continued, Incoming, continued, kept_messages, take_in
from ..opened import Opened, open_named
from ..prefix_marks import keep_opening
from ..prompt import Entry
from ..session import Session
from ..turn import TurnResult, Watch
from .completions import texts_of
from .leaving import leave
from .requests import ChatRequest


@dataclass(frozen=True)
class Place:
    """Where a request is answered. `keeps` false: nothing of it is stored. `stuck`: what was held fits nowhere (A5)."""

    found: Continued | None
    keeps: bool
    stuck: bool = False


def answer(session: Session, request: ChatRequest, watch: Watch, today: Callable[[], date]) -> TurnResult:
    """The turn that a request asks for. Raises what a turn raises; what cannot be said leaves nothing written."""
    chat, incoming = session.chat, request.incoming
    assert chat is not None and incoming.said is not None, "the model is loaded before the port is opened"
    chat.check_length([incoming.system or "", *texts_of(incoming.all, request.tools)])
    chat.today = today()
    place = go_to(session, chat, incoming, save=request.save)
    try:
        chat.set_system(incoming.system, request.tools)
        return _turn(session, chat, request, place, watch)
    except StrataError:
        raise
    except Exception:
        # A fault, wherever it was: nobody knows what the engine holds now.
        _start_over(session, chat)
        raise
    finally:
        chat.restores = True
        if not place.keeps:
            chat.opened = None


def _start_over(session: Session, chat: Chat) -> None:
    leave(session, chat)
    chat.engine.clear()
    chat.keeper.stands_on_nothing(foreign_for=None)


def _turn(session: Session, chat: Chat, request: ChatRequest, place: Place, watch: Watch) -> TurnResult:
    incoming, kept = request.incoming, place.found.kept if place.found else 0
    assert incoming.said is not None
    if kept < len(incoming.history):
        _check_said(chat, incoming)
    if request.shared_messages is not None and place.keeps and not place.stuck:
        keep_opening(session, chat, incoming.all[: request.shared_messages], free=lambda: _parked(chat))
    chat.restores = not place.stuck
    _take_in(chat, incoming, kept)
    had_state = chat.has_state
    result = chat.turn(incoming.said, request.reply, watch)
    if place.keeps:
        session.turn_over(chat, result, had_state=had_state)
    return result


def _check_said(chat: Chat, incoming: Incoming) -> None:
    """Raises Refused, ContextFull for a history that is no prompt, before a word of it is stored."""
    opening = [Entry({"role": "system", "content": chat.system})] if chat.system else []
    entries = [*opening, *(Entry(message) for message in incoming.all)]
    chat.check_fits(chat.prompter.build(entries, tools=chat.tools, day=chat.day))


def _parked(chat: Chat) -> bool:
    """Whether the engine may be emptied: all that it holds is stored, or can be."""
    return chat.opened is None or not chat.keeper.is_stuck(chat.opened)


def _take_in(chat: Chat, incoming: Incoming, kept: int) -> None:
    if chat.opened is None:
        # The name is that of the first user message, though it may be what is said now.
        first = next((message for message in incoming.all if message["role"] == "user"), incoming.all[0])
        if incoming.history:
            chat.open_for(first)
    take_in(chat, incoming, kept)


# -- going there


def go_to(session: Session, chat: Chat, incoming: Incoming, *, save: bool) -> Place:
    """Open what the messages continue, or nothing where they begin something new. What was held is parked first (A3).

    Never raises for what it leaves or finds: the request is answered in any case (A5, A6).
    """
    found = _where(session, chat, incoming)
    keeps = save and bool(incoming.key) and _may_keep(chat, found)
    if found is not None and keeps and chat.opened is not None and chat.opened.keeps and found.name == chat.name:
        return Place(found, True)
    stuck = leave(session, chat)
    if not keeps:
        return Place(_open_unkept(session, chat, found), False, stuck)
    if found is not None and not _open(session, chat, found.name):
        found = None
    if found is None:
        chat.start()
    return Place(found, True, stuck)


def _may_keep(chat: Chat, found: Continued | None) -> bool:
    """With `auto_sessions.enabled = false` only what has a name of its own is kept (A12)."""
    if chat.policy.automatic:
        return chat.policy.save
    return chat.policy.save and found is not None and found.head is not None and found.head.kind == "named"


def _where(session: Session, chat: Chat, incoming: Incoming) -> Continued | None:
    """The conversation that the messages continue. The open one is looked at first: no other can continue more."""
    opened = chat.opened
    try:
        if opened is not None and opened.keeps and opened.name is not None and len(incoming.all) > 1:
            kept = kept_messages(opened.log, incoming)
            if kept is not None and kept >= len(incoming.history):
                return Continued(opened.name, opened.head, kept)
        return continued(session.store, incoming)
    except StrataError as error:
        session.out.warning(f"what is stored cannot be looked at: {error.message}")
        return None


def _open(session: Session, chat: Chat, name: str) -> bool:
    try:
        chat.open(name)
    except StrataError as error:
        session.out.warning(f"{name} is not continued: {error.message}")
        return False
    return True


def _open_unkept(session: Session, chat: Chat, found: Continued | None) -> Continued | None:
    """The conversation as it can be read, or a nameless one: with neither is anything written."""
    opened = Opened(session.store, None)
    if found is not None:
        try:
            opened = open_named(session.store, found.name, create=False, keep=False)
        except StrataError as error:
            session.out.warning(f"{found.name} is not continued: {error.message}")
            found = None
    chat.start()
    chat.adopt_conversation(opened)
    return found
