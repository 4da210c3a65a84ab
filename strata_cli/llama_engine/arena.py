"""Memory that state is captured into, kept resident.

Fresh pages cost ten times the copy into them, so memory is touched before it is needed and used again after. Owns
large bases, cut into blocks from the front; a base whose blocks are all released is used again. Who holds a block,
and how much all may take, is decided above.
"""

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ARENA_BYTES, ARENA_MARGIN_BYTES = 64 << 20, 16 << 20
LEAST_BYTES = 1 << 20
PAGE_BYTES, ALIGNMENT_BYTES = 4096, 64

Memory = npt.NDArray[np.uint8]


@dataclass
class Base:
    """Resident memory; `used` bytes from its front are given out, in `live` blocks."""

    memory: Memory
    used: int = 0
    live: int = 0

    def free_bytes(self) -> int:
        if not self.live:
            self.used = 0
        return self.memory.size - self.used


class Block:
    """Touched memory, its user's own until `release`."""

    def __init__(self, arena: "Arena", base: Base, memory: Memory) -> None:
        self._arena, self._base, self.memory = arena, base, memory
        self._released = False

    def release(self) -> None:
        """Give the memory back; views of it must not be used any more. Twice is once."""
        if not self._released:
            self._released = True
            self._arena.give_back(self._base)


class Arena:
    """Hands out blocks. Safe to `prepare` and to release from another thread."""

    def __init__(self) -> None:
        self.limit_bytes = ARENA_BYTES
        self._lock = threading.Lock()
        self._current: Base | None = None
        self._last_bytes = 0

    def raise_limit(self, part_bytes: int) -> None:
        """A part cannot be cut: the arena holds the largest and a margin."""
        self.limit_bytes = max(self.limit_bytes, part_bytes + ARENA_MARGIN_BYTES)

    def take(self, size_bytes: int) -> Block:
        """`size_bytes` of memory: resident where `prepare` had the time, else fresh."""
        with self._lock:
            self._last_bytes = size_bytes
            base = self._current
            if base is None or base.free_bytes() < size_bytes:
                self._current = None
                del base  # what nobody holds goes before more is asked for
                base = self._current = Base(touched(max(LEAST_BYTES, size_bytes)))
            at = base.used
            base.used += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            base.live += 1
            return Block(self, base, base.memory[at : at + size_bytes])

    def give_back(self, base: Base) -> None:
        """A block was released: a base without blocks is used again, the larger of two."""
        with self._lock:
            base.live -= 1
            current = self._current
            if not base.live and base is not current and (current is None or current.free_bytes() < base.memory.size):
                self._current = base

    def prepare(self) -> None:
        """Have memory at hand that the next capture will find resident: as much as the last took and some more."""
        with self._lock:
            wanted = min(self.limit_bytes, max(LEAST_BYTES, self._last_bytes + self._last_bytes // 8))
            if not self._last_bytes or (self._current is not None and self._current.free_bytes() >= wanted):
                return
        fresh = Base(touched(min(self.limit_bytes, 2 * wanted)))
        with self._lock:
            if self._current is None or self._current.free_bytes() < wanted:
                self._current = fresh


def touched(size_bytes: int) -> Memory:
    """Fresh memory, every page written once."""
    memory = np.empty(size_bytes, np.uint8)
    memory[::PAGE_BYTES] = 0
    return memory
