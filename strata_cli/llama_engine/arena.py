"""Memory that state is captured into, kept resident.

Fresh pages cost ten times the copy into them, so memory is touched before it is needed and used again after. Owns
large bases, cut into blocks from the front; a base whose blocks are all released is used again. Who holds a block,
and how much all may take, is decided above.
"""

import contextlib
import mmap
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ARENA_BYTES, ARENA_MARGIN_BYTES = 64 << 20, 16 << 20
LEAST_BYTES = 1 << 20
PAGE_BYTES, ALIGNMENT_BYTES = 4096, 64
HUGE_BYTES = 2 << 20

Memory = npt.NDArray[np.uint8]


@dataclass
class Base:
    """Resident memory; `used` bytes from its front are given out, in `live` blocks."""

    memory: Memory
    pages: mmap.mmap
    used: int = 0
    live: int = 0
    whole: bool = True  # False once pages were let go: the rest is not worth giving out again

    def free_bytes(self) -> int:
        if not self.live:
            self.used = 0
        return self.memory.size - self.used

    def let_go(self, start: int, end: int) -> None:
        """Give the whole pages of [start, end) back to the system; they must not be used before all is free."""
        self.whole = False
        first, last = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                self.pages.madvise(mmap.MADV_DONTNEED, first, last - first)


class Block:
    """Touched memory, its user's own until `release`."""

    def __init__(self, arena: "Arena", base: Base, start: int, size_bytes: int) -> None:
        self._arena, self._base, self._start = arena, base, start
        self.memory = base.memory[start : start + size_bytes]
        self._released = False

    def release(self) -> None:
        """Give the memory back; views of it must not be used any more. Twice is once."""
        if not self._released:
            self._released = True
            self._arena.give_back(self._base, self._start, self._start + self.memory.size)


class Arena:
    """Hands out blocks. Safe to `prepare` and to release from another thread.

    Of a base that is no longer given out from, only the pages of live blocks stay: what is resident is what is held,
    and one base.
    """

    def __init__(self) -> None:
        self.limit_bytes = ARENA_BYTES
        self._lock = threading.Lock()
        self._current: Base | None = None
        self._taken_bytes = 0  # since the last `prepare`
        self._last_bytes = 0  # between the two before it: what a turn takes

    def raise_limit(self, part_bytes: int) -> None:
        """A part cannot be cut: the arena holds the largest and a margin."""
        self.limit_bytes = max(self.limit_bytes, part_bytes + ARENA_MARGIN_BYTES)

    def take(self, size_bytes: int) -> Block:
        """`size_bytes` of memory: resident where `prepare` had the time, else fresh."""
        with self._lock:
            self._taken_bytes += size_bytes
            base = self._current
            if base is None or base.free_bytes() < size_bytes:
                self._leave()
                del base  # what nobody holds goes before more is asked for
                base = self._current = touched(max(LEAST_BYTES, size_bytes))
            at = base.used
            base.used += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            base.live += 1
            return Block(self, base, at, size_bytes)

    def _leave(self) -> None:
        """Give nothing more out of the current base."""
        base, self._current = self._current, None
        if base is not None and base.live:
            base.let_go(base.used, base.memory.size)

    def give_back(self, base: Base, start: int, end: int) -> None:
        """A block was released. A base without blocks is used again where it is whole and there is no other."""
        with self._lock:
            base.live -= 1
            if base is self._current:
                return
            if base.live:
                base.let_go(start, end)
            elif self._current is None and base.whole:
                self._current = base

    def prepare(self) -> None:
        """Have memory at hand that the next turn will find resident: as much as the last one took, and some more."""
        with self._lock:
            if self._taken_bytes:
                self._last_bytes, self._taken_bytes = self._taken_bytes, 0
            wanted = min(self.limit_bytes, max(LEAST_BYTES, self._last_bytes + self._last_bytes // 8))
            if not self._last_bytes or (self._current is not None and self._current.free_bytes() >= wanted):
                return
            self._leave()
        fresh = touched(wanted)
        with self._lock:
            if self._current is None or self._current.free_bytes() < wanted:
                self._leave()
                self._current = fresh


def touched(size_bytes: int) -> Base:
    """Fresh memory, every page written once; large pages where the system has them."""
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    memory[::PAGE_BYTES] = 0
    return Base(memory, pages)
