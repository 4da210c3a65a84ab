"""What happens when a context is full: stop, grow, or drop the oldest turns. Pure choices.

Owns the sizes and which turns go. Who exchanges the context, and tells it, is `conversation`.
"""

from collections.abc import Callable, Sequence

from .errors import ContextFull, NoRoom
from .log import Line
from .opened import role

CHOICES = ("stop", "grow", "drop-oldest")
WARN_SHARE = 0.8
STEP_TOKENS, SPARE_TOKENS = 256, 1024
LEFT_SHARE = 0.75  # of the context, for what stays when turns are dropped: else the next turn would drop again


def larger_context(needed: int, now: int, trained: int) -> int:
    """The size in tokens of the next context: twice the present one, within what the model was trained for.

    Raises NoRoom where the model was trained for less than is needed.
    """
    if trained and needed >= trained:
        raise NoRoom(
            f"{needed:,} tokens are needed and the model was trained for {trained:,}: it cannot grow further",
            hint="--on-full drop-oldest, or a new conversation",
        )
    wanted = max(2 * now, needed + SPARE_TOKENS)
    rounded = -(-wanted // STEP_TOKENS) * STEP_TOKENS
    return min(rounded, trained) if trained else rounded


def no_room(size: int, room: int) -> ContextFull:
    return ContextFull(
        f"the prompt has {size:,} tokens and the context {room:,}: no room for an answer",
        hint=f"--ctx-size {size + SPARE_TOKENS}, or --on-full grow",
    )


def too_long_alone(size: int, room: int) -> ContextFull:
    """Where the oldest turns were left out and what is said now is too long by itself."""
    return ContextFull(
        f"this message alone makes a prompt of {size:,} tokens, and the context has {room:,}",
        hint=f"a shorter message, or --ctx-size {size + SPARE_TOKENS} where the model takes it",
    )


def nearly_full(held: int, before: int, room: int) -> bool:
    """Whether this turn crossed the line at which a user is warned."""
    return before < WARN_SHARE * room <= held


def drop_to_fit(lines: Sequence[Line], fits: Callable[[int], int], room: int) -> int | None:
    """The last line to leave out so that the prompt leaves space: whole turns go, oldest first.

    `fits(n)` is the prompt's length in tokens without the first n of `lines`. None where even the last turn alone is
    too long.
    """
    starts = [i for i, line in enumerate(lines) if role(line) == "user" and i] + [len(lines)]
    for first in starts:
        if fits(first) <= LEFT_SHARE * room:
            return lines[first - 1].id if first else None
    return lines[-1].id if lines and fits(len(lines)) < room else None
