"""What a session directory holds of a token sequence: the folders are walked, no head is read.

Owns the walk from an identity's own hash down and the boundaries that can be reached by it. Which of them is worth
restoring is decided in `restore`; nothing here reads K/V or touches an engine.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from .engine import Memory
from .errors import StrataError
from .identity import token_bytes
from .prompt import common
from .segment import Kind
from .shelf import Shelf
from .state_files import Child

INNER_LIMIT = 32  # files whose token ids are read to find a divergence inside a segment


@dataclass(frozen=True)
class Use:
    """One stored file on the way to a boundary: the state of tokens [start, end), or its part."""

    child: Child
    start: int
    held: bool = False

    @property
    def source(self) -> str:
        return "memory" if self.held else "disk"

    @property
    def end(self) -> int:
        return self.child.end


@dataclass(frozen=True)
class Boundary:
    """A position that can be restored: apply `rows` in order (the last one may reach beyond), then `parts`."""

    position: int
    rows: tuple[Use, ...]
    parts: tuple[Use, ...]

    @property
    def uses(self) -> tuple[Use, ...]:
        return self.rows + self.parts

    @property
    def size_bytes(self) -> int:
        return sum(use.child.bytes for use in self.uses)


class PrefixNames:
    """prefix_hash(k) of one token sequence for growing k, without hashing its beginning again each time."""

    def __init__(self, identity_digest: bytes, tokens: Sequence[int]) -> None:
        self._bytes = memoryview(token_bytes(tokens))
        self._marks = [(0, blake3(identity_digest))]

    def at(self, position: int) -> str:
        """The 32 hex digits that `identity.prefix_hashes` gives."""
        known = max(i for i, (at, _) in enumerate(self._marks) if at <= position)
        at, hasher = self._marks[known]
        if at < position:
            hasher = hasher.copy()
            hasher.update(self._bytes[4 * at : 4 * position])
            if known == len(self._marks) - 1:
                self._marks.append((position, hasher))
                del self._marks[1:-8]
        return hasher.hexdigest(length=16)


@dataclass
class Walk:
    """The part of the directory's tree that agrees with a token sequence."""

    rows: dict[int, list[Use]] = field(default_factory=dict)  # by end
    parts: dict[int, list[Use]] = field(default_factory=dict)  # by end
    strays: dict[int, list[Child]] = field(default_factory=dict)  # by start: other endings, for inner divergence


def walk(shelf: Shelf, identity_digest: bytes, tokens: Sequence[int], *, exclude: Collection[Path] = ()) -> Walk:
    """List the folders on the way, breadth first by position. One listing a boundary, no file is opened."""
    names = PrefixNames(identity_digest, tokens)
    found = Walk()
    waiting, seen = [0], {0}
    while waiting:
        start = heapq.heappop(waiting)
        for child in shelf.children(names.at(start)):
            if child.path in exclude or child.end <= start:
                continue
            agrees = child.end <= len(tokens) and names.at(child.end) == child.end_hash
            if not agrees:
                if child.kind is Kind.ROWS:
                    found.strays.setdefault(start, []).append(child)
                continue
            edges = found.rows if child.kind is Kind.ROWS else found.parts
            edges.setdefault(child.end, []).append(Use(child, start, shelf.held(child.path)))
            if child.end not in seen:
                seen.add(child.end)
                heapq.heappush(waiting, child.end)
    return found


def row_chains(found: Walk) -> dict[int, tuple[Use, ...]]:
    """For each position that rows lead to, the chain with the fewest files; position 0 needs none."""
    chains: dict[int, tuple[Use, ...]] = {0: ()}
    for end in sorted(found.rows):
        ways = [(*chains[use.start], use) for use in found.rows[end] if use.start in chains]
        if ways:
            chains[end] = min(ways, key=len)
    return chains


def boundaries(
    shelf: Shelf,
    identity_digest: bytes,
    tokens: Sequence[int],
    memory: Memory,
    limit: int,
    *,
    exclude: Collection[Path] = (),
) -> list[Boundary]:
    """Every boundary at or before `limit` that the directory can restore, deepest first."""
    found = walk(shelf, identity_digest, tokens, exclude=exclude)
    chains = row_chains(found)
    reach = _reaches(shelf, found, chains, tokens) if memory.has_rows else []
    if not memory.has_parts:
        ends = {min(end, limit) for end in (*chains, *(r.agrees for r in reach))} - {0}
        found_rows = (_with_rows(end, chains, reach, ()) for end in sorted(ends, reverse=True))
        return [boundary for boundary in found_rows if boundary is not None]
    result = []
    for position in sorted((end for end in found.parts if end <= limit), reverse=True):
        parts = part_chain(found, position, memory)
        if parts is None:
            continue
        boundary = _with_rows(position, chains, reach, parts) if memory.has_rows else Boundary(position, (), parts)
        if boundary is not None:
            result.append(boundary)
    return result


def part_chain(found: Walk, position: int, memory: Memory) -> tuple[Use, ...] | None:
    """The boundary's own part and, with a window, those that cover the window's tokens before it."""
    chain: list[Use] = []
    at, needed = position, max(0, position - memory.window_tokens) if memory.window_tokens else position - 1
    while at > needed:
        ways = found.parts.get(at)
        if not ways:
            return None
        chain.append(min(ways, key=lambda use: use.start))
        at = chain[-1].start
    return tuple(reversed(chain))


@dataclass(frozen=True)
class Reach:
    """Rows that agree up to `agrees` and lie in one file that begins at a reachable `use.start`."""

    use: Use
    agrees: int


def _with_rows(
    position: int, chains: dict[int, tuple[Use, ...]], reach: list[Reach], parts: tuple[Use, ...]
) -> Boundary | None:
    if position in chains:
        return Boundary(position, chains[position], parts)
    ways = [(*chains[r.use.start], r.use) for r in reach if r.use.start < position <= r.agrees]
    return Boundary(position, min(ways, key=len), parts) if ways else None


def _reaches(shelf: Shelf, found: Walk, chains: dict[int, tuple[Use, ...]], tokens: Sequence[int]) -> list[Reach]:
    """Files that can be applied and then cut: those that agree whole, and those that part on the way."""
    reach = [Reach(use, use.end) for uses in found.rows.values() for use in uses if use.start in chains]
    opened = 0
    for start in sorted((start for start in found.strays if start in chains), reverse=True):
        for child in sorted(found.strays[start], key=lambda each: each.mtime_ns, reverse=True):
            if opened == INNER_LIMIT:
                return reach
            opened += 1
            agrees = start + _agreement(shelf, child, tokens[start:])
            if agrees > start:
                reach.append(Reach(Use(child, start, shelf.held(child.path)), agrees))
    return reach


def _agreement(shelf: Shelf, child: Child, tokens: Sequence[int]) -> int:
    try:
        with shelf.open(child.path) as segment:
            return common(segment.tokens(), tokens)
    except StrataError:
        return 0  # a bad file offers nothing here; verifying it is for those who want to apply it
