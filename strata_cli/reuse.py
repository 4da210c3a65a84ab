"""Why a turn reads more than what is new in it; pure.

Owns the codes of `restore.not_reused` and their sentences.
"""

from collections.abc import Sequence
from dataclasses import replace

from .engine import Memory
from .head import Head
from .identity import Identity, differences
from .prompt import common
from .turn import NotReused


def why_not_reused(
    tokens: Sequence[int],
    position: int,
    known: Sequence[int],
    *,
    failures: Sequence[NotReused],
    head: Head | None,
    identity: Identity,
    memory: Memory,
    min_tokens: int,
) -> NotReused | None:
    """None where all that the conversation had is reused.

    `known`: what was read of it up to its last reply; `position`: where reading begins now.
    """
    stands = common(known, tokens)
    # The last token of a reply that was cut is chosen and not read, so one token less is all there was.
    had = len(known) - 1
    if stands >= had and position >= min(stands, had):
        return None
    if failures:
        return replace(failures[0], at_token=position)
    absent = _not_there(position, known, head, identity, min_tokens)
    if absent is not None and (position < min(stands, had) or stands >= had):
        return absent
    if stands < had:
        return _left(position, stands, memory)
    return NotReused("missing", f"tokens {position:,} to {len(known):,} are not stored", position)


def _not_there(
    position: int, known: Sequence[int], head: Head | None, identity: Identity, min_tokens: int
) -> NotReused | None:
    missing = f"tokens {position:,} to {len(known):,}"
    if other := other_identity(head, identity, position):
        return NotReused("identity", f"{missing} were stored under another identity: {other}", position)
    if len(known) < min_tokens:
        why = f"{missing} are fewer than auto_sessions.min_tokens ({min_tokens:,}): nothing was stored"
        return NotReused("below_minimum", why, position)
    return None


def _left(position: int, stands: int, memory: Memory) -> NotReused:
    """The prompt leaves what was read at `stands`."""
    if memory.has_parts and position < stands:
        why = f"this memory cannot go back to token {stands:,}; the boundary before it is {position:,}"
        return NotReused("window", why, position)
    return NotReused("rewritten", f"the prompt leaves what was read at token {stands:,}", stands)


def other_identity(head: Head | None, current: Identity, position: int) -> str:
    """How the identity that stored more than `position` differs from this one; "" where none did."""
    others = [state for digest, state in (head.states if head else {}).items() if digest != current.digest.hex()]
    saved = max(others, key=lambda state: state.tokens, default=None)
    if saved is None or saved.tokens <= position:
        return ""
    found = differences(saved.identity, current.fields())
    remedies = [each.remedy for each in found if each.remedy]
    back = f" (it would match with: {' '.join(remedies)})" if len(remedies) == len(found) else ""
    return "; ".join(str(each) for each in found) + back
