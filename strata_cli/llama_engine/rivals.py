"""What people use today to keep a model's state, for `strata bench` to compare with. Nothing else uses it.

Owns the calls of llama.cpp's whole-file save and of llama-cpp-python's `LlamaDiskCache` with its `Llama` class.
"""

import contextlib
import ctypes
import io
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine import EngineFailed
from .binding import LOG, llama
from .live import LlamaEngine
from .state import LIVE, WHOLE


def state_bytes(engine: LlamaEngine) -> int:
    """What llama.cpp's own state of the live sequence takes."""
    return int(llama().llama_state_seq_get_size_ext(engine.state._context, LIVE, WHOLE))


def load_file(engine: LlamaEngine, path: Path, tokens: Sequence[int]) -> None:
    """`llama_state_seq_load_file` into the emptied live sequence, unverified as it is. Raises EngineFailed."""
    engine.clear()
    ids, count = (ctypes.c_int32 * max(1, len(tokens)))(), ctypes.c_size_t()
    got = llama().llama_state_seq_load_file(
        engine.state._context, os.fsencode(path), LIVE, ids, len(tokens), ctypes.byref(count)
    )
    if not got or list(ids[: count.value]) != list(tokens):
        raise EngineFailed(f"{path}: llama.cpp did not load its own file: {LOG.reason()}")
    engine._tokens[:] = tokens


def whole_state(engine: LlamaEngine) -> bytes:
    """A copy of the live sequence's state, for llama.cpp's own restore."""
    return engine.state.whole()


def backend() -> str:
    """What llama.cpp says of the machine that it was built for."""
    return str(llama().llama_print_system_info().decode(errors="replace")).strip()


def offloads() -> bool:
    """Whether this build can use a GPU."""
    return bool(llama().llama_supports_gpu_offload())


class DiskCache:
    """llama-cpp-python's `Llama` with its `LlamaDiskCache`, used as its own completion call does."""

    def __init__(self, model: Path, folder: Path, context_tokens: int, threads: int) -> None:
        from llama_cpp import Llama, LlamaDiskCache

        self._folder = folder
        with contextlib.redirect_stderr(io.StringIO()):
            self._llama: Any = Llama(
                str(model), n_ctx=context_tokens, n_threads=threads, n_threads_batch=threads, verbose=False
            )
            self._cache: Any = LlamaDiskCache(str(folder), capacity_bytes=1 << 40)

    def keep(self, tokens: Sequence[int]) -> int:
        """Read tokens and store their state; returns the bytes that its folder then takes."""
        with contextlib.redirect_stderr(io.StringIO()):
            self._llama.reset()
            self._llama.eval(list(tokens))
            self._state = self._llama.save_state()
            self._cache[list(tokens)] = self._state
        self._tokens = list(tokens)
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    def first_token_ms(self, prompt: Sequence[int]) -> float:
        """Look the prompt up, load what is found, read the rest and choose one token."""
        with contextlib.redirect_stderr(io.StringIO()):
            self._llama.reset()
            begun = time.perf_counter()
            state = self._cache[list(prompt)]
            self._llama.load_state(state)
            self._llama.eval(list(prompt[self._llama.n_tokens :]))
            self._llama.sample(temp=0.0)
            took_ms = (time.perf_counter() - begun) * 1000
            self._cache[self._tokens] = self._state  # looking an entry up removes it
        return took_ms

    def close(self) -> None:
        self._cache.cache.close()
        self._llama.close()
        shutil.rmtree(self._folder, ignore_errors=True)
