"""The state of the live sequence as bytes: captured range by range, and put back.

Owns the recipe of docs/design.md ("Engine recipe"): sequence 0 is live, sequence 1 is scratch, both share cells, so
copies between them move no K/V. Knows tokens only as positions.
"""

import ctypes
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import Buffer, Captured, EngineFailed, Memory
from .binding import LOG, llama

LIVE, SCRATCH = 0, 1
WHOLE, PARTIAL = 0, 1  # LLAMA_STATE_SEQ_FLAGS_*
PREFIX_BYTES = 8  # magic and sequence id, which get_data puts before a state
ARENA_BYTES, ARENA_MARGIN_BYTES = 64 << 20, 16 << 20
FIRST_ARENA_BYTES = 4 << 20


class Arena:
    """One buffer that stays resident: fresh pages cost ten times the copy into them."""

    def __init__(self) -> None:
        self.limit_bytes = ARENA_BYTES
        self._buffer: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """At least `size_bytes` of touched memory; what was taken before is gone."""
        if size_bytes > len(self._buffer):
            wanted = max(FIRST_ARENA_BYTES, 1 << (size_bytes - 1).bit_length())
            self._buffer = np.zeros(0, np.uint8)
            self._buffer = np.empty(max(size_bytes, min(wanted, self.limit_bytes)), np.uint8)
            self._buffer[::4096] = 0
        return self._buffer


class SequenceState:
    """Capture from and apply to one context."""

    def __init__(self, context: Any, memory: Memory) -> None:
        self._lc, self._context, self._memory = llama(), context, memory
        self._cells = self._lc.llama_get_memory(context)
        self._arena = Arena()
        self.empty_partial = self._read_small(SCRATCH, PARTIAL) if memory.has_parts else b""
        self._row_bytes = 0.0  # per token, learnt from the last capture

    # -- capture

    def chunks(self, start: int, end: int) -> list[tuple[int, int]]:
        """[start, end) in ranges that fit the arena; one range where there is nothing but a part."""
        if not self._memory.has_rows or end - start < 2:
            return [(start, end)]
        size_bytes = self._size_of(start, end)
        if size_bytes <= self._arena.limit_bytes:
            return [(start, end)]
        part_bytes = self._part_bytes(start, end)
        self._arena.limit_bytes = max(ARENA_BYTES, part_bytes + ARENA_MARGIN_BYTES)
        per_token = (size_bytes - part_bytes) / (end - start)
        step = max(1, int((self._arena.limit_bytes - part_bytes) / per_token * 0.99))
        edges = [*range(start, end, step), end]
        return list(itertools.pairwise(edges))

    def capture(self, start: int, end: int, *, rows: bool) -> Captured:
        """Read [start, end) through the scratch sequence. `end` is where the engine stands if parts are wanted."""
        lc, cells = self._lc, self._cells
        lc.llama_memory_seq_cp(cells, LIVE, SCRATCH, start, end)
        try:
            rows = rows and self._memory.has_rows
            size_bytes = lc.llama_state_seq_get_size_ext(self._context, SCRATCH, WHOLE if rows else PARTIAL)
            buffer = self._arena.take(size_bytes)
            self._get(buffer, size_bytes, WHOLE if rows else PARTIAL)
            tail_bytes = lc.llama_state_seq_get_size_ext(self._context, SCRATCH, PARTIAL) - PREFIX_BYTES
        finally:
            lc.llama_memory_seq_rm(cells, SCRATCH, -1, -1)
        view = memoryview(buffer)[:size_bytes]  # type: ignore[arg-type]
        if not self._memory.has_parts:
            return Captured(start, end, (view,), ())
        if not rows:
            return Captured(start, end, (), (view,))
        body, tail = view[: size_bytes - tail_bytes], view[size_bytes - tail_bytes :]
        empty = memoryview(self.empty_partial)
        return Captured(start, end, (body, empty[PREFIX_BYTES:]), (empty[:PREFIX_BYTES], tail))

    def _size_of(self, start: int, end: int) -> int:
        self._lc.llama_memory_seq_cp(self._cells, LIVE, SCRATCH, start, end)
        size_bytes = int(self._lc.llama_state_seq_get_size_ext(self._context, SCRATCH, WHOLE))
        self._lc.llama_memory_seq_rm(self._cells, SCRATCH, -1, -1)
        return size_bytes

    def _part_bytes(self, start: int, end: int) -> int:
        if not self._memory.has_parts:
            return 0
        self._lc.llama_memory_seq_cp(self._cells, LIVE, SCRATCH, start, end)
        size_bytes = int(self._lc.llama_state_seq_get_size_ext(self._context, SCRATCH, PARTIAL))
        self._lc.llama_memory_seq_rm(self._cells, SCRATCH, -1, -1)
        return size_bytes

    def _get(self, buffer: npt.NDArray[np.uint8], size_bytes: int, flags: int) -> None:
        target = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        got = self._lc.llama_state_seq_get_data_ext(self._context, target, size_bytes, SCRATCH, flags)
        if got != size_bytes:
            raise EngineFailed(f"llama.cpp gave {got} of {size_bytes} bytes of state: {LOG.reason()}")

    def _read_small(self, sequence: int, flags: int) -> bytes:
        size_bytes = self._lc.llama_state_seq_get_size_ext(self._context, sequence, flags)
        buffer = (ctypes.c_uint8 * max(1, size_bytes))()
        self._lc.llama_state_seq_get_data_ext(self._context, buffer, size_bytes, sequence, flags)
        return bytes(buffer)[:size_bytes]

    def whole(self, sequence: int = LIVE, flags: int = WHOLE) -> bytes:
        """A copy of a sequence's whole state, as llama.cpp's own save gives it. For probes and small states."""
        return self._read_small(sequence, flags)

    def save_file(self, path: Path, tokens: Sequence[int]) -> int:
        """llama.cpp's own file of the live sequence, with `tokens` as a plain list. Returns its bytes."""
        ids = (ctypes.c_int32 * max(1, len(tokens)))(*tokens)
        wanted = 12 + 4 * len(tokens) - PREFIX_BYTES
        wanted += int(self._lc.llama_state_seq_get_size_ext(self._context, LIVE, WHOLE))
        got = int(self._lc.llama_state_seq_save_file(self._context, os.fsencode(path), LIVE, ids, len(tokens)))
        if got != wanted:
            raise EngineFailed(f"llama.cpp wrote {got:,} of {wanted:,} bytes: {LOG.reason()}")
        return got

    # -- going back and putting back

    def position(self) -> int:
        """Tokens that the live sequence holds, by llama.cpp's own account."""
        return int(self._lc.llama_memory_seq_pos_max(self._cells, LIVE)) + 1

    def reaches(self, position: int) -> bool:
        """Whether the window's rows that the token at `position` looks at are there."""
        window = self._memory.window_tokens
        if not window or position == 0:
            return True
        first = int(self._lc.llama_memory_seq_pos_min(self._cells, LIVE))
        return first <= max(0, position - window + 1)

    def clear(self) -> None:
        self._lc.llama_memory_seq_rm(self._cells, SCRATCH, -1, -1)
        self._lc.llama_memory_seq_rm(self._cells, LIVE, -1, -1)

    def cut(self, position: int) -> None:
        """Drop [position, end). Only where it is allowed: `LlamaEngine.can_cut`."""
        if not self._lc.llama_memory_seq_rm(self._cells, LIVE, position, -1):
            raise EngineFailed(f"llama.cpp cannot cut this memory at {position}")

    def keep_rows(self, position: int, part: Buffer) -> None:
        """Keep the attention rows of [0, position) and put `part` in the place of what else was held.

        It has to be a part with content: reading an empty one leaves old window rows where they are.
        """
        lc, cells = self._lc, self._cells
        lc.llama_memory_seq_cp(cells, LIVE, SCRATCH, 0, position)
        lc.llama_memory_seq_rm(cells, LIVE, -1, -1)
        self._set(part, PARTIAL)
        self._move()

    def apply(self, state: Buffer, *, part: bool = False) -> None:
        """Add serialised rows, or a part, to the live sequence. Raises EngineFailed."""
        self._set(state, PARTIAL if part else WHOLE)
        self._move()

    def _move(self) -> None:
        self._lc.llama_memory_seq_cp(self._cells, SCRATCH, LIVE, -1, -1)
        self._lc.llama_memory_seq_rm(self._cells, SCRATCH, -1, -1)

    def _set(self, state: Buffer, flags: int) -> None:
        source = np.frombuffer(state, np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        got = self._lc.llama_state_seq_set_data_ext(self._context, pointer, source.size, SCRATCH, flags)
        if got != source.size:
            raise EngineFailed(f"llama.cpp took {got} of {source.size} bytes of state: {LOG.reason()}")
