"""The values of a turn: what it may write, what it tells while it runs, what it was.

Owns no behaviour. A turn is run by `conversation`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .handover import Ticket
from .park import Parked
from .prompt import Prompt
from .restore import Restored, RestorePlan

MIB = 1 << 20


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Policy:
    """What is written by itself, and what may stay in memory.

    `save` false writes nothing at all; `automatic` false only what has a name, and no state. `write_early` mirrors
    parked state to the disk at once. Leaving waits at most `leave_s`.
    """

    save: bool = True
    automatic: bool = True
    min_tokens: int = 512
    root_min_tokens: int = 256
    n_min_tokens: int = 0
    similarity: float = 0.0
    ram_bytes: int = 2048 * MIB
    ram_conversations: int = 0
    min_free_ram_bytes: int = 2560 * MIB
    write_early: bool = True
    leave_s: float = 10.0


@dataclass(frozen=True)
class Notice:
    """Something that a user should know, in one line. `code` is stable, `warning` says whether it is one."""

    code: str
    text: str
    warning: bool = False


@dataclass(frozen=True)
class NotReused:
    """Why less was reused than the conversation had: a code of the contract, a sentence, the first token concerned."""

    code: str
    message: str
    at_token: int


@dataclass
class Watch:
    """What a turn tells while it runs, and how it is asked to stop. `hurried` gives up on state, never on text."""

    show: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int], None] | None = None
    cancelled: Callable[[], bool] = _never
    hurried: Callable[[], bool] = _never
    planned: Callable[[RestorePlan], None] = lambda _: None


@dataclass
class UnderWay:
    """A turn that is being run: what is known of it so far."""

    prompt: Prompt
    known: tuple[int, ...]
    ticket: Ticket = field(default_factory=Ticket)
    failures: list[NotReused] = field(default_factory=list)


@dataclass(frozen=True)
class TurnResult:
    """One finished turn, as the envelope tells it. Durations are milliseconds; `ticket` is the park under way."""

    conversation: str | None
    reply: str
    reply_tokens: tuple[int, ...]
    finish: str
    prompt_tokens: int
    reused_tokens: int
    source: str
    restored: Restored
    not_reused: NotReused | None
    ticket: Ticket
    prompt_ms: float
    generate_ms: float

    @property
    def parked(self) -> Parked:
        """The park as far as it is known; final once `ticket.done` is set."""
        return self.ticket.parked
