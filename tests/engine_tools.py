"""What tests of the real engine share: engines of all four kinds, logits, greedy tokens, llama.cpp's own restore.

Not a test. Reaches behind `LlamaEngine` where a yardstick needs llama.cpp itself; nothing of strata's own recipe for
saving and restoring is used here.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from strata_cli.engine import EngineOptions, Sampling
from strata_cli.llama_engine import load
from strata_cli.llama_engine.live import LlamaEngine

KINDS = {"llama": "attention", "gemma3": "window", "lfm2": "hybrid", "mamba": "recurrent"}
FAMILIES = tuple(KINDS)
LIVE = 0
GREEDY = Sampling(greedy=True)


class Engines:
    """Loaded engines, one for each model and set of options, emptied each time they are asked for."""

    def __init__(self, tiny: Callable[..., Path]) -> None:
        self._tiny = tiny
        self._loaded: dict[tuple[object, ...], LlamaEngine] = {}

    def __call__(self, family: str, seed: int = 0, **options: object) -> LlamaEngine:
        options = {"ctx_size": 1024, "threads": 1, **options}
        key = (family, seed, *sorted(options.items()))
        if key not in self._loaded:
            path = self._tiny(family, seed)
            digest = "b3:" + blake3(path.read_bytes()).hexdigest()
            self._loaded[key] = load(path, EngineOptions(**options), digest=digest)  # type: ignore[arg-type]
        engine = self._loaded[key]
        engine.clear()
        return engine

    def close(self) -> None:
        for engine in self._loaded.values():
            engine.close()


def text_tokens(count: int, seed: int = 0) -> list[int]:
    """Byte tokens of no particular text, for the tiny models' vocabulary."""
    chosen = random.Random(seed)
    return [3 + chosen.randrange(32, 127) for _ in range(count)]


def logits(engine: LlamaEngine) -> npt.NDArray[np.float32]:
    """What the engine says of the next token, after a `read`."""
    found = engine._lc.llama_get_logits_ith(engine._context, -1)
    return np.ctypeslib.as_array(found, shape=(len(engine.vocabulary),)).copy()


def greedy(engine: LlamaEngine, count: int) -> list[int]:
    """Choose and read `count` tokens; the last one is read too."""
    engine.start_sampling(GREEDY)
    chosen = []
    for _ in range(count):
        chosen.append(engine.sample())
        engine.read([chosen[-1]])
    return chosen


def whole(engine: LlamaEngine) -> bytes:
    """The live sequence as llama.cpp's own save gives it."""
    size = engine._lc.llama_state_seq_get_size_ext(engine._context, LIVE, 0)
    buffer = (ctypes.c_uint8 * size)()
    assert engine._lc.llama_state_seq_get_data_ext(engine._context, buffer, size, LIVE, 0) == size
    return bytes(buffer)


def native_restore(engine: LlamaEngine, saved: bytes, tokens: Sequence[int]) -> None:
    """llama.cpp's own whole restore into an empty sequence: the yardstick."""
    engine.clear()
    buffer = (ctypes.c_uint8 * len(saved)).from_buffer_copy(saved)
    assert engine._lc.llama_state_seq_set_data_ext(engine._context, buffer, len(saved), LIVE, 0) == len(saved)
    engine._tokens[:] = tokens
