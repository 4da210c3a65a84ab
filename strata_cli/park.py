"""Parking: what the engine holds beyond the last stored boundary becomes files.

Owns the account of the files that the live tokens stand on, and the writing of what lies behind them. When to park,
and what a turn makes of a failure, is decided in `conversation`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .engine import Engine
from .head import SegmentRef
from .identity import prefix_hashes
from .segment import Draft, Kind
from .store import Store


@dataclass(frozen=True)
class Chain:
    """The durable files that the live tokens stand on, in order of position."""

    rows: tuple[SegmentRef, ...] = ()
    parts: tuple[SegmentRef, ...] = ()

    @property
    def rows_end(self) -> int:
        return self.rows[-1].end if self.rows else 0

    @property
    def parts_end(self) -> int:
        return self.parts[-1].end if self.parts else 0

    def cut(self, position: int) -> "Chain":
        """What still holds when everything from `position` on is given up."""
        return Chain(
            tuple(ref for ref in self.rows if ref.end <= position),
            tuple(ref for ref in self.parts if ref.end <= position),
        )

    def standing(self, store: Store) -> "Chain":
        """What is still on the disk. While no conversation named these files, prune may have taken them."""
        missing = [ref.start for ref in (*self.rows, *self.parts) if not store.segment_path(ref.file).exists()]
        return self.cut(min(missing)) if missing else self

    def plus(self, rows: Iterable[SegmentRef], parts: Iterable[SegmentRef]) -> "Chain":
        """The chain with further files; one that ends where a known one does takes its place."""
        return Chain(_merged(self.rows, rows), _merged(self.parts, parts))


def _merged(old: Iterable[SegmentRef], new: Iterable[SegmentRef]) -> tuple[SegmentRef, ...]:
    by_end = {ref.end: ref for ref in (*old, *new)}
    return tuple(by_end[end] for end in sorted(by_end))


@dataclass(frozen=True)
class Parked:
    """What one park did: tokens newly covered, files, bytes written; waiting is `capture_ms`, all of it `ms`."""

    tokens: int = 0
    segments: int = 0
    bytes_written: int = 0
    capture_ms: float = 0.0
    ms: float = 0.0
    skipped: str | None = None

    def plus(self, other: "Parked") -> "Parked":
        return Parked(
            self.tokens + other.tokens,
            self.segments + other.segments,
            self.bytes_written + other.bytes_written,
            self.capture_ms + other.capture_ms,
            self.ms + other.ms,
            other.skipped,
        )


class Parker:
    """Captures ranges of the live sequence and hands them to the directory."""

    def __init__(self, engine: Engine, store: Store, now: Callable[[], str]) -> None:
        self._engine, self._store, self._now = engine, store, now
        self.own = True  # False while the engine holds state from elsewhere: what follows from it is foreign too

    def park(self, chain: Chain, reason: str, *, rows: bool = True, end: int | None = None) -> tuple[Chain, Parked]:
        """Store what lies between the chain's end and where the engine stands.

        With `rows` false only the part is taken: the boundary of a prompt. `end` stops before that, where there are
        no parts. Raises StorageFailed; what was written
        before stays and is in no chain.
        """
        started = time.perf_counter()
        memory, end = self._engine.memory, len(self._engine.tokens) if end is None else end
        parked = Parked()
        wants_rows = rows and memory.has_rows and end > chain.rows_end
        wants_part = memory.has_parts and end > chain.parts_end
        start = chain.rows_end if wants_rows else chain.parts_end
        if wants_rows and wants_part and chain.parts_end != start:
            # The part begins where the last part ends, the rows where the last rows do: two captures.
            chain, first = self._range(chain, chain.parts_end, end, reason, rows=False)
            parked, wants_part = parked.plus(first), False
        if wants_rows or wants_part:
            chain, last = self._range(chain, start, end, reason, rows=wants_rows, part=wants_part)
            parked = parked.plus(last)
        elapsed = (time.perf_counter() - started) * 1000
        skipped = None if parked.segments else "unchanged"
        return chain, replace(parked, ms=elapsed, skipped=skipped)

    def _range(
        self, chain: Chain, start: int, end: int, reason: str, *, rows: bool, part: bool = True
    ) -> tuple[Chain, Parked]:
        done = Parked()
        chunks = self._engine.chunks(start, end) if rows else [(start, end)]
        for first, last in chunks:
            begun = time.perf_counter()
            captured = self._engine.capture(first, last, rows=rows)
            captured_ms = (time.perf_counter() - begun) * 1000
            done = replace(done, capture_ms=done.capture_ms + captured_ms)
            if captured.rows:
                ref, written = self._write(Kind.ROWS, first, last, captured.rows, reason)
                chain, done = chain.plus([ref], []), _counted(done, last - first, written)
            if captured.part and part and last == end:
                ref, written = self._write(Kind.PART, first, last, captured.part, reason)
                chain, done = (
                    chain.plus([], [ref]),
                    _counted(done, 0 if self._engine.memory.has_rows else last - first, written),
                )
        return chain, done

    def _write(
        self, kind: Kind, start: int, end: int, payload: Sequence[memoryview], reason: str
    ) -> tuple[SegmentRef, int]:
        engine, tokens = self._engine, self._engine.tokens
        hashes = prefix_hashes(engine.identity.digest, tokens, (start, end))
        metadata = {
            "identity": engine.identity.digest.hex(),
            "fields": engine.identity.fields(),
            "reason": reason,
            "engine": engine.model.build,
            "tokenizer": engine.vocabulary.digest,
            "window_tokens": engine.memory.window_tokens,
            "written": self._now(),
        }
        draft = Draft(kind, start, end, hashes[start], hashes[end], tokens[start:end], metadata)
        return self._store.write_segment(draft, payload, own=self.own)


def _counted(done: Parked, tokens: int, written: int) -> Parked:
    return replace(
        done,
        tokens=done.tokens + tokens,
        segments=done.segments + 1,
        bytes_written=done.bytes_written + written,
    )
