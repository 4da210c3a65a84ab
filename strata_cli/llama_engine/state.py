"""The state of the live sequence as bytes: captured range by range, and put back.

Owns the recipe of docs/design.md ("Engine recipe"): sequence 0 is live, sequence 1 is scratch, both share cells, so
copies between them move no K/V. Knows tokens only as positions. Whatever touches the context waits for `copier` first.
"""

import ctypes
import itertools
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import Buffer, Captured, EngineFailed, Memory
from .arena import Arena, Block
from .binding import LOG, llama
from .copier import Copier, Copying

LIVE, SCRATCH = 0, 1
WHOLE, PARTIAL = 0, 1  # LLAMA_STATE_SEQ_FLAGS_*
PREFIX_BYTES = 8  # magic and sequence id, which get_data puts before a state


class SequenceState:
    """Capture from and apply to one context."""

    def __init__(self, context: Any, memory: Memory) -> None:
        self._lc, self._context, self._memory = llama(), context, memory
        self._cells = self._lc.llama_get_memory(context)
        self.arena, self._copier = Arena(), Copier()
        self._row_bytes = 0.0  # the most that a token's rows took in a capture; without parts, none takes more
        self.empty_partial = self._read_small(SCRATCH, PARTIAL) if memory.has_parts else b""

    def settle(self) -> None:
        """Wait until nothing is being copied: the context is the caller's again."""
        self._copier.settle()

    def close(self) -> None:
        """The context is about to be freed."""
        self._copier.close()

    # -- capture

    def chunks(self, start: int, end: int) -> list[tuple[int, int]]:
        """[start, end) in ranges that fit the arena; one range where there is nothing but a part."""
        if self._row_bytes and (end - start) * self._row_bytes * 1.01 <= self.arena.limit_bytes:
            return [(start, end)]
        whole_bytes, part_bytes = self._sizes(start, end)
        self.arena.raise_limit(part_bytes)
        if not self._memory.has_rows or end - start < 2 or whole_bytes + part_bytes <= self.arena.limit_bytes:
            return [(start, end)]
        per_token = (whole_bytes - part_bytes) / (end - start)
        step = max(1, int((self.arena.limit_bytes - 2 * part_bytes) / per_token * 0.99))
        return list(itertools.pairwise([*range(start, end, step), end]))

    def capture(self, start: int, end: int, *, rows: bool, behind: bool = False) -> Captured:
        """Read [start, end) through the scratch sequence. `end` is where the engine stands if parts are wanted.

        `behind`: the copy is made by another thread, and what is returned says when it is `ready`.
        """
        self.settle()
        block: Block | None = None
        self._lc.llama_memory_seq_cp(self._cells, LIVE, SCRATCH, start, end)
        try:
            whole_bytes = self._size(WHOLE) if rows and self._memory.has_rows else 0
            part_bytes = self._size(PARTIAL) if self._memory.has_parts else 0
            if not self._memory.has_parts:
                self._row_bytes = max(self._row_bytes, whole_bytes / (end - start))
            block = self.arena.take(whole_bytes + part_bytes)
            copying = self._copied(block, whole_bytes, part_bytes, behind=behind)
        except BaseException:
            self._copier.see_through()
            self._clear_scratch()
            if block is not None:
                block.release()
            raise
        view = memoryview(block.memory)  # type: ignore[arg-type]
        part = view[whole_bytes : whole_bytes + part_bytes] if part_bytes else None
        alone = self._rows_alone(view, whole_bytes, part_bytes)
        if copying is None:
            return Captured(start, end, alone, part, block.release)
        return Captured(start, end, alone, part, partial(_release, copying, block), copying.wait)

    def _copied(self, block: Block, whole_bytes: int, part_bytes: int, *, behind: bool) -> Copying | None:
        """Copy, or begin to. Raises EngineFailed."""
        if behind:
            return self._copier.start(lambda: self._copy(block.memory, whole_bytes, part_bytes))
        self._copy(block.memory, whole_bytes, part_bytes)
        return None

    def _copy(self, memory: npt.NDArray[np.uint8], whole_bytes: int, part_bytes: int) -> None:
        """The scratch sequence as bytes: the whole with an empty partial in the place of its own, then the part."""
        try:
            if whole_bytes:
                self._get(memory[:whole_bytes], WHOLE)
            if part_bytes:
                self._get(memory[whole_bytes : whole_bytes + part_bytes], PARTIAL)
        finally:
            self._clear_scratch()
        if whole_bytes and part_bytes:
            empty = np.frombuffer(self.empty_partial, np.uint8)[PREFIX_BYTES:]
            at = whole_bytes - (part_bytes - PREFIX_BYTES)
            memory[at : at + empty.size] = empty

    def _clear_scratch(self) -> None:
        self._lc.llama_memory_seq_rm(self._cells, SCRATCH, -1, -1)

    def _rows_alone(self, view: memoryview, whole_bytes: int, part_bytes: int) -> memoryview | None:
        """Where the whole state stands, as far as an empty partial in the place of its own, which stands last."""
        if not whole_bytes or not part_bytes:
            return view[:whole_bytes] if whole_bytes else None
        return view[: whole_bytes - (part_bytes - PREFIX_BYTES) + len(self.empty_partial) - PREFIX_BYTES]

    def _sizes(self, start: int, end: int) -> tuple[int, int]:
        """Bytes of the whole state of [start, end), and of its part (0 where there are none)."""
        self.settle()
        self._lc.llama_memory_seq_cp(self._cells, LIVE, SCRATCH, start, end)
        try:
            return self._size(WHOLE), self._size(PARTIAL) if self._memory.has_parts else 0
        finally:
            self._clear_scratch()

    def _size(self, flags: int) -> int:
        return int(self._lc.llama_state_seq_get_size_ext(self._context, SCRATCH, flags))

    def _get(self, target: npt.NDArray[np.uint8], flags: int) -> None:
        pointer = target.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        got = self._lc.llama_state_seq_get_data_ext(self._context, pointer, target.size, SCRATCH, flags)
        if got != target.size:
            raise EngineFailed(f"llama.cpp gave {got} of {target.size} bytes of state: {LOG.reason()}")

    def _read_small(self, sequence: int, flags: int) -> bytes:
        self.settle()
        size_bytes = self._lc.llama_state_seq_get_size_ext(self._context, sequence, flags)
        buffer = (ctypes.c_uint8 * max(1, size_bytes))()
        self._lc.llama_state_seq_get_data_ext(self._context, buffer, size_bytes, sequence, flags)
        return bytes(buffer)[:size_bytes]

    def whole(self, sequence: int = LIVE, flags: int = WHOLE) -> bytes:
        """A copy of a sequence's whole state, as llama.cpp's own save gives it. For probes and small states."""
        return self._read_small(sequence, flags)

    def save_file(self, path: Path, tokens: Sequence[int]) -> int:
        """llama.cpp's own file of the live sequence, with `tokens` as a plain list. Returns its bytes."""
        self.settle()
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
        self.settle()
        return int(self._lc.llama_memory_seq_pos_max(self._cells, LIVE)) + 1

    def reaches(self, position: int) -> bool:
        """Whether the window's rows that the token at `position` looks at are there."""
        window = self._memory.window_tokens
        if not window or position == 0:
            return True
        self.settle()
        first = int(self._lc.llama_memory_seq_pos_min(self._cells, LIVE))
        return first <= max(0, position - window + 1)

    def clear(self) -> None:
        self.settle()
        self._clear_scratch()
        self._lc.llama_memory_seq_rm(self._cells, LIVE, -1, -1)

    def cut(self, position: int) -> None:
        """Drop [position, end). Only where it is allowed: `LlamaEngine.can_cut`."""
        self.settle()
        if not self._lc.llama_memory_seq_rm(self._cells, LIVE, position, -1):
            raise EngineFailed(f"llama.cpp cannot cut this memory at {position}")

    def keep_rows(self, position: int, part: Buffer) -> None:
        """Keep the attention rows of [0, position) and put `part` in the place of what else was held.

        It has to be a part with content: reading an empty one leaves old window rows where they are.
        """
        self.settle()
        lc, cells = self._lc, self._cells
        lc.llama_memory_seq_cp(cells, LIVE, SCRATCH, 0, position)
        lc.llama_memory_seq_rm(cells, LIVE, -1, -1)
        self._set(part, PARTIAL)
        self._move()

    def apply(self, state: Buffer, *, part: bool = False) -> None:
        """Add serialised rows, or a part, to the live sequence. Raises EngineFailed."""
        self.settle()
        self._set(state, PARTIAL if part else WHOLE)
        self._move()

    def _move(self) -> None:
        self._lc.llama_memory_seq_cp(self._cells, SCRATCH, LIVE, -1, -1)
        self._clear_scratch()

    def _set(self, state: Buffer, flags: int) -> None:
        source = np.frombuffer(state, np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        got = self._lc.llama_state_seq_set_data_ext(self._context, pointer, source.size, SCRATCH, flags)
        if got != source.size:
            raise EngineFailed(f"llama.cpp took {got} of {source.size} bytes of state: {LOG.reason()}")


def _release(copying: Copying, block: Block) -> None:
    """Memory that is being filled is not given back before it is."""
    copying.ended()
    block.release()
