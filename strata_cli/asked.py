"""What is read and kept because somebody asked, not because a turn left it: histories, whole states, pins.

Owns that such state is written whatever its length, and that the caller waits for the disk. Turns are `conversation`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .conversation import Chat
from .engine import Buffer, Rebuild
from .errors import StorageFailed, UsageProblem
from .handover import Ticket
from .head import StateRef
from .opened import GIVEN, Opened
from .park import Parked
from .prompt import Prompt
from .restore import RestorePlan
from .turn import UnderWay, Watch


def give(chat: Chat, messages: Sequence[Mapping[str, Any]], *, after: int | None = None, back: bool = False) -> None:
    """Take messages as said, without asking for replies. With `back` they follow line `after`, not the last one.

    Raises StorageFailed.
    """
    opened = chat.open_for(next((m for m in messages if m.get("role") == "user"), ""))
    if back and opened.log.tip != after:
        opened.append(parent=after, kind="back")
    for message in messages:
        parent = opened.answered[-1].id if opened.answered else None
        opened.append(parent=parent, kind="message", message=dict(message), marks=(GIVEN,))


def absorb(chat: Chat, watch: Watch) -> tuple[Prompt, RestorePlan, Parked]:
    """Read the conversation as it stands and park it, whatever its length, without asking for a reply.

    Raises NoRoom, Cancelled, StorageFailed.
    """
    opened = _open(chat)
    prompt = chat.prompt_as_it_stands()
    chat.check_fits(prompt)
    way = UnderWay(prompt, ())
    chat.write_setup(opened, way)
    plan, _, _ = chat.restore(opened, way, watch)
    chat.read_prompt(opened, way, plan.position, watch, asked=True)
    return prompt, plan, _keep(chat, opened, way.ticket, "save", prompt)


def adopt(chat: Chat, tokens: Sequence[int], state: Buffer, *, own: bool) -> Parked:
    """Put a whole state that was checked into the engine and park it for the open conversation.

    Raises EngineFailed with the engine emptied, StorageFailed.
    """
    opened = _open(chat)
    chat.engine.rebuild(Rebuild(tokens, 0, rows=[state]))
    chat.keeper.stands_on_nothing(foreign_for=None if own else chat.name)
    prompt = Prompt(tuple(tokens), len(tokens), 0, (), None, ())
    return _keep(chat, opened, Ticket(), "save", prompt)


def pin(chat: Chat, watch: Watch) -> tuple[Prompt, StateRef | None]:
    """Make where the conversation stands a boundary that is kept, whatever its length (P3).

    Raises UsageProblem where nothing was said yet, NoRoom, Cancelled, StorageFailed.
    """
    if chat.opened is None or not chat.opened.answered:
        raise UsageProblem("nothing was said yet that could be pinned")
    prompt, _, _ = absorb(chat, watch)
    position = len(prompt.tokens)
    chat.opened.update_head(lambda head: replace(head, pins=tuple(sorted({*head.pins, position}))))
    return prompt, chat.stored(position)


def _open(chat: Chat) -> Opened:
    if chat.opened is None:
        raise UsageProblem("no conversation is open")
    return chat.opened


def _keep(chat: Chat, opened: Opened, ticket: Ticket, reason: str, prompt: Prompt) -> Parked:
    root = chat.root_of(prompt)
    chat.keeper.capture(opened, ticket, reason, root=root, asked=True)
    chat.keeper.hand_over(opened, ticket, root=root, prompt=prompt.boundary, tokens=len(prompt.tokens))
    chat.keeper.wait()
    if isinstance(ticket.failure, StorageFailed):
        raise ticket.failure
    return ticket.parked
