"""Which boundaries of a conversation keep the part that they need; pure.

Owns row B14: the root, the pins, the last two replies' ends and the last prompt's end stay usable, what lies between
is thinned. Rows are never thinned: they are needed by everything behind them.
"""

from collections.abc import Iterable, Sequence

from .engine import Memory
from .head import SegmentRef
from .log import Line

REPLIES_KEPT = 2


def kept_positions(branch: Sequence[Line], root: int, prompt: int, pins: Sequence[int]) -> frozenset[int]:
    """The token positions at which this branch stays usable."""
    return frozenset({root, prompt, *pins, *reply_ends(branch)} - {0})


def parts_to_keep(parts: Sequence[SegmentRef], kept: Iterable[int], memory: Memory) -> frozenset[SegmentRef]:
    """The parts that restoring at one of `kept` needs: its own and, with a window, those that cover it."""
    by_end = {ref.end: ref for ref in parts}
    needed: set[SegmentRef] = set()
    for position in kept:
        at, least = position, position - memory.window_tokens if memory.window_tokens else position - 1
        while at > least and at in by_end:
            needed.add(by_end[at])
            at = by_end[at].start
    return frozenset(needed)


def reply_ends(branch: Sequence[Line]) -> tuple[int, ...]:
    """Where the last replies of a branch may end: the last token of one that was cut is chosen and not read."""
    replies = [line for line in branch if (line.message or {}).get("role") == "assistant"][-REPLIES_KEPT:]
    return tuple(line.start + len(line.tokens) - unread for line in replies for unread in (0, 1))
