"""Parking: what the engine holds beyond the last stored boundary, captured.

Owns the account of the files that the live tokens stand on, and the capture of what lies behind them into the memory
tier. How it comes to the disk from there is `handover`; when to park is decided in `conversation`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .engine import Captured, Engine
from .head import SegmentRef
from .identity import prefix_hashes
from .segment import Draft, Kind, file_bytes
from .shelf import Shelf
from .tier import Entry


@dataclass(frozen=True)
class Chain:
    """The files that the live tokens stand on, in order of position. The last may still be in memory alone."""

    rows: tuple[SegmentRef, ...] = ()
    parts: tuple[SegmentRef, ...] = ()

    @property
    def rows_end(self) -> int:
        return self.rows[-1].end if self.rows else 0

    @property
    def parts_end(self) -> int:
        return self.parts[-1].end if self.parts else 0

    @property
    def end(self) -> int:
        """How far the tokens are covered."""
        return max(self.rows_end, self.parts_end)

    def cut(self, position: int) -> "Chain":
        """What still holds when everything from `position` on is given up."""
        return Chain(
            tuple(ref for ref in self.rows if ref.end <= position),
            tuple(ref for ref in self.parts if ref.end <= position),
        )

    def standing(self, is_there: Callable[[SegmentRef], bool]) -> "Chain":
        """What is still there. While no conversation named these files, prune may have taken them."""
        missing = [ref.start for ref in (*self.rows, *self.parts) if not is_there(ref)]
        return self.cut(min(missing)) if missing else self

    def plus(self, rows: Iterable[SegmentRef], parts: Iterable[SegmentRef]) -> "Chain":
        """The chain with further files; one that ends where a known one does takes its place."""
        return Chain(_merged(self.rows, rows), _merged(self.parts, parts))


def _merged(old: Iterable[SegmentRef], new: Iterable[SegmentRef]) -> tuple[SegmentRef, ...]:
    by_end = {ref.end: ref for ref in (*old, *new)}
    return tuple(by_end[end] for end in sorted(by_end))


@dataclass(frozen=True)
class Parked:
    """What a park did: tokens newly covered, files, bytes written; the wait was `capture_ms`, all of it took `ms`."""

    tokens: int = 0
    segments: int = 0
    bytes_written: int = 0
    capture_ms: float = 0.0
    ms: float = 0.0
    skipped: str | None = None
    state_bytes: int = 0

    def without(self, entries: Sequence[Entry]) -> "Parked":
        """What is left of it without these, which were captured and cannot be kept."""
        return replace(
            self,
            tokens=self.tokens - sum(entry.new_tokens for entry in entries),
            segments=self.segments - len(entries),
            state_bytes=self.state_bytes - sum(entry.size_bytes for entry in entries),
        )


class Parker:
    """Captures ranges of the live sequence into the memory tier."""

    def __init__(self, engine: Engine, shelf: Shelf, clock: Callable[[], str]) -> None:
        self._engine, self._shelf, self._clock = engine, shelf, clock
        self.own = True  # False while the engine holds state from elsewhere: what follows from it is foreign too

    def wants(self, chain: Chain, *, rows: bool, end: int | None) -> tuple[bool, bool]:
        """Whether rows and whether a part are to be taken: what `chain` does not reach, as far as `end`."""
        memory, end = self._engine.memory, len(self._engine.tokens) if end is None else end
        return rows and memory.has_rows and end > chain.rows_end, memory.has_parts and end > chain.parts_end

    def capture(
        self,
        chain: Chain,
        owner: str,
        reason: str,
        *,
        rows: bool = True,
        end: int | None = None,
        root: int = 0,
        behind: bool = False,
        between: Callable[[], None],
    ) -> tuple[Chain, Parked]:
        """Capture what lies between the chain's end and where the engine stands.

        With `rows` false only the part is taken: the boundary of a prompt. `end` stops before that, where there are
        no parts. A range that is larger than the arena comes in chunks; `between` is called before each.
        A part begins where the stored rows end, or at the root where there are no rows: boundaries that never leave,
        so that the way to it survives the thinning of those between. `behind`: the last copy may go on when this
        returns (`Engine.capture`).
        """
        memory, end = self._engine.memory, len(self._engine.tokens) if end is None else end
        start = chain.rows_end if memory.has_rows else min(root, chain.parts_end)
        wants_rows, wants_part = self.wants(chain, rows=rows, end=end)
        parked = Parked(skipped=None if wants_rows or wants_part else "unchanged")
        chunks = list(self._engine.chunks(start, end)) if wants_rows else []
        together = len(chunks) == 1 and wants_part
        alone = wants_part and not together
        for first, last in chunks:
            between()
            ends = behind and last == end and not alone
            chain, parked = self._take(chain, first, last, owner, reason, parked, rows=True, part=together, behind=ends)
        if alone:
            chain, parked = self._take(chain, start, end, owner, reason, parked, rows=False, part=True, behind=behind)
        return chain, parked

    def _take(
        self,
        chain: Chain,
        start: int,
        end: int,
        owner: str,
        reason: str,
        parked: Parked,
        *,
        rows: bool,
        part: bool,
        behind: bool,
    ) -> tuple[Chain, Parked]:
        begun = time.perf_counter()
        captured = self._engine.capture(start, end, rows=rows, behind=behind)
        capture_ms = (time.perf_counter() - begun) * 1000
        release = _once_all_released(captured, rows=rows, part=part)
        views = {Kind.ROWS: captured.rows if rows else None, Kind.PART: captured.part if part else None}
        for kind, view in views.items():
            if view is None:
                continue
            is_rows = kind is Kind.ROWS
            newly = self._newly(chain, start, end, is_rows=is_rows)
            entry = replace(
                self._entry(kind, start, end, view, owner, reason, release), ready=captured.ready, new_tokens=newly
            )
            self._shelf.tier.put(entry)
            reference = SegmentRef(kind.value, start, end, entry.draft.relative_path, entry.file_bytes)
            parked = replace(
                parked,
                tokens=parked.tokens + newly,
                segments=parked.segments + 1,
                state_bytes=parked.state_bytes + view.nbytes,
            )
            chain = chain.plus([reference] if is_rows else [], [] if is_rows else [reference])
        return chain, replace(parked, capture_ms=parked.capture_ms + capture_ms)

    def _newly(self, chain: Chain, start: int, end: int, *, is_rows: bool) -> int:
        """How many tokens this file covers that nothing covered before."""
        if self._engine.memory.has_rows:
            return end - start if is_rows else 0
        return end - max(start, chain.parts_end)

    def _entry(
        self,
        kind: Kind,
        start: int,
        end: int,
        payload: memoryview,
        owner: str,
        reason: str,
        release: Callable[[], None],
    ) -> Entry:
        engine, tokens = self._engine, self._engine.tokens
        hashes = prefix_hashes(engine.identity.digest, tokens, (start, end))
        metadata = {
            "identity": engine.identity.digest.hex(),
            "fields": engine.identity.fields(),
            "reason": reason,
            "engine": engine.model.build,
            "tokenizer": engine.vocabulary.digest,
            "window_tokens": engine.memory.window_tokens,
            "written": self._clock(),
        }
        draft = Draft(kind, start, end, hashes[start], hashes[end], tuple(tokens[start:end]), metadata)
        path = self._shelf.store.segment_path(draft.relative_path)
        size = file_bytes(draft, payload.nbytes)
        return Entry(draft, payload, path, size, owner, time.time_ns(), release, self.own)


def _once_all_released(captured: Captured, *, rows: bool, part: bool) -> Callable[[], None]:
    """Rows and part share one block of memory: it goes back when both have left."""
    left = [int(rows and captured.rows is not None) + int(part and captured.part is not None)]

    def release() -> None:
        left[0] -= 1
        if left[0] <= 0:
            captured.release()

    return release
