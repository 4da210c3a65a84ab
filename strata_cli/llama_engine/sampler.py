"""The choice of the next token: llama.cpp's own sampler chain.

Owns the order of the steps, which is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw.
"""

import secrets
from typing import Any

from ..engine import Sampling
from .binding import llama

PENALTY_WINDOW_TOKENS = 64  # llama.cpp's default `repeat_last_n`


class LlamaSampler:
    """One reply's sampler chain; `close` frees it."""

    def __init__(self, sampling: Sampling, vocabulary_tokens: int) -> None:
        self._lc = llama()
        self._chain = self._lc.llama_sampler_chain_init(self._lc.llama_sampler_chain_default_params())
        for step in self._steps(sampling, vocabulary_tokens):
            self._lc.llama_sampler_chain_add(self._chain, step)

    def _steps(self, sampling: Sampling, vocabulary_tokens: int) -> list[Any]:
        lc = self._lc
        steps = []
        if sampling.repeat_penalty != 1.0:
            window, penalty = PENALTY_WINDOW_TOKENS, sampling.repeat_penalty
            steps.append(lc.llama_sampler_init_penalties(vocabulary_tokens, window, penalty, 0.0, 0.0))
        if sampling.greedy or sampling.temperature <= 0:
            return [*steps, lc.llama_sampler_init_greedy()]
        if sampling.top_k > 0:
            steps.append(lc.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1:
            steps.append(lc.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0:
            steps.append(lc.llama_sampler_init_min_p(sampling.min_p, 1))
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
        steps += [lc.llama_sampler_init_temp(sampling.temperature), lc.llama_sampler_init_dist(seed)]
        return steps

    def sample(self, context: Any) -> int:
        """The next token after the last one that was read."""
        return int(self._lc.llama_sampler_sample(self._chain, context, -1))

    def close(self) -> None:
        if self._chain is not None:
            self._lc.llama_sampler_free(self._chain)
            self._chain = None
