"""How much of a conversation its stored state covers, in the user's terms: turns.

Pure: positions and counts in, sentences out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .head import SegmentRef
from .log import Log


class Turn(NamedTuple):
    """One user turn: its number from 1, and the token position at which its reply ends (its prompt, without one)."""

    number: int
    end: int


def turns_of(log: Log) -> list[Turn]:
    """The turns of the current branch."""
    turns: list[Turn] = []
    for line in log.branch():
        end = line.start + len(line.tokens)
        if line.message and line.message.get("role") == "user":
            turns.append(Turn(len(turns) + 1, end))
        elif turns:
            turns[-1] = Turn(turns[-1].number, end)
    return turns


def deepest(
    rows: Sequence[SegmentRef], parts: Sequence[SegmentRef], has_rows: bool, has_parts: bool, window_tokens: int
) -> int:
    """The last token position that these files restore by themselves."""
    reached = {0}
    for ref in sorted(rows, key=lambda each: each.end):
        if ref.start in reached:
            reached.add(ref.end)
    if not has_parts:
        return max(reached)
    wanted = [ref for ref in parts if not has_rows or ref.end in reached]
    return max((ref.end for ref in wanted if _covers_window(ref, parts, window_tokens)), default=0)


def _covers_window(ref: SegmentRef, parts: Sequence[SegmentRef], window_tokens: int) -> bool:
    """With a window, the parts before it must reach back as far as the window does."""
    at, needed = ref.start, max(0, ref.end - window_tokens) if window_tokens else ref.start
    by_end = {each.end: each for each in parts}
    while at > needed:
        if at not in by_end:
            return False
        at = by_end[at].start
    return True


def meaning_of(turns: Sequence[Turn], restored_tokens: int) -> str:
    """`turns 1 to 7 restore; 8 and 9 will be read again`. The last token of a reply that was cut is never stored."""
    kept = sum(1 for turn in turns if turn.end - 1 <= restored_tokens)
    again = [turn.number for turn in turns[kept:]]
    if not again:
        return "every turn restores all the same"
    if not kept:
        return "turn 1 will be read again" if len(turns) == 1 else f"all {len(turns):,} turns will be read again"
    first = "turn 1 restores" if kept == 1 else f"turns 1 to {kept} restore"
    return f"{first}; {_numbers(again)} will be read again"


def _numbers(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    joint = "and" if len(numbers) == 2 else "to"
    return f"{numbers[0]} {joint} {numbers[-1]}"
