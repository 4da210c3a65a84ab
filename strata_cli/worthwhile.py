"""Which stored boundaries are worth restoring: not those that save next to nothing (A4, B7).

Owns the limits. What the user asked for, the root, and the end of a prefix count whatever their length.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .head import Head
from .match import Boundary
from .store import Store

STRAY_TOKENS = 64  # an agreement behind the root that is shorter is chance


@dataclass(frozen=True)
class Limits:
    """Tokens that a boundary must have at least, for state that was written by itself and for all of it, and its
    least share of the prompt."""

    min_tokens: int = 0
    n_min_tokens: int = 0
    similarity: float = 0.0


def worthwhile(
    stored: Sequence[Boundary], prompt_tokens: int, limits: Limits, store: Store, kept: Collection[int]
) -> list[Boundary]:
    """Those within the limits, in the order given. `kept`: positions of the root and of pins."""
    least = max(limits.n_min_tokens, limits.similarity * prompt_tokens)
    strong = [boundary for boundary in stored if boundary.position >= least]
    if all(boundary.position >= limits.min_tokens for boundary in strong):
        return strong
    ends = _ends_of_prefixes(store)
    return [
        boundary
        for boundary in strong
        if boundary.position >= limits.min_tokens or boundary.position in kept or not ends.isdisjoint(_files(boundary))
    ]


def without_stray(position: int, root: int) -> int:
    """Where a new conversation begins to read: at the root, when it agrees with another one only a few words further.

    Those few tokens save nothing, and read from the middle of a line its replies could differ in the last digits from
    those of a conversation that was alone.
    """
    return root if root <= position < root + STRAY_TOKENS else position


def at_the_root(stored: Sequence[Boundary], root: int) -> list[Boundary]:
    """Boundaries for a new conversation: one inside a file, a few tokens behind the root, serves as the root."""
    found = []
    for boundary in stored:
        exact = any(use.end == boundary.position for use in boundary.uses)
        position = boundary.position if exact else without_stray(boundary.position, root)
        if position == boundary.position:
            found.append(boundary)
        elif position:
            rows = tuple(use for use in boundary.rows if use.start < position)
            found.append(replace(boundary, position=position, rows=rows))
    return found


def _files(boundary: Boundary) -> list[str]:
    """The files that end where the boundary is."""
    return [
        f"{use.child.path.parent.name}/{use.child.path.name}" for use in boundary.uses if use.end == boundary.position
    ]


def _ends_of_prefixes(store: Store) -> set[str]:
    """The files at whose end a prefix ends: few, and read only when something short was found."""
    heads = (head for head in store.heads("prefixes") if isinstance(head, Head))
    states = (state for head in heads for state in head.states.values())
    return {ref.file for state in states for ref in (*state.segments, *state.parts) if ref.end == state.tokens}
