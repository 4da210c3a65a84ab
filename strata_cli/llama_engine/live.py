"""The live sequence: what is read, what is chosen, what can be gone back to.

Owns the account of the tokens that llama.cpp holds, and keeps it true after every failure. Loading is `loading`,
serialised state is `state`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..engine import Buffer, Cancelled, Captured, EngineFailed, Memory, ModelFacts, Rebuild, Sampling
from ..errors import NoRoom
from ..identity import Identity
from ..state_shape import Shape, check_state
from .binding import LOG, llama
from .sampler import LlamaSampler
from .state import LIVE, SequenceState
from .template import JinjaTemplate
from .vocabulary import LlamaVocabulary


class LlamaEngine:
    """Implements `engine.Engine` on one llama_context with two sequences."""

    def __init__(
        self,
        *,
        handles: Any,
        memory: Memory,
        shape: Shape | None,
        identity: Identity,
        model: ModelFacts,
        vocabulary: LlamaVocabulary,
        template: JinjaTemplate,
        context_tokens: int,
        batch_tokens: int,
        reopen: Callable[[int], Identity],
    ) -> None:
        self._lc, self._handles, self._context = llama(), handles, handles.context
        self.memory, self.identity, self.model = memory, identity, model
        self.shape = shape
        self.vocabulary, self.template = vocabulary, template
        self.context_tokens, self.batch_tokens = context_tokens, batch_tokens
        self.state = SequenceState(self._context, memory)
        self._batch = self._lc.llama_batch_init(batch_tokens, 0, 1)
        self._sampler: LlamaSampler | None = None
        self._reopen = reopen
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def read(
        self,
        tokens: Sequence[int],
        *,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """See `Engine.read`. Batches are counted from the first of `tokens`, so equal splits read equally."""
        if len(self._tokens) + len(tokens) > self.context_tokens:
            raise NoRoom(
                f"{len(self._tokens) + len(tokens):,} tokens do not fit the context of {self.context_tokens:,}",
                hint=f"--ctx-size {len(self._tokens) + len(tokens) + 1024}",
            )
        for at in range(0, len(tokens), self.batch_tokens):
            if cancelled is not None and cancelled():
                raise Cancelled
            self._decode(tokens[at : at + self.batch_tokens])
            if progress is not None:
                progress(min(at + self.batch_tokens, len(tokens)), len(tokens))

    def _decode(self, tokens: Sequence[int]) -> None:
        self.settle()
        batch, start, done = self._batch, len(self._tokens), False
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0] = LIVE
            batch.logits[i] = i == len(tokens) - 1
        try:
            result = self._lc.llama_decode(self._context, batch)
            if result:
                raise EngineFailed(f"llama.cpp could not read {len(tokens)} tokens (code {result}): {LOG.reason()}")
            self._tokens.extend(tokens)
            done = True
        finally:
            if not done:  # a signal that raises here counts, too: what is held must be what the account says
                self._recover(start)

    def _recover(self, position: int) -> None:
        # A failed decode leaves a recurrent or hybrid memory corrupt behind a position that looks valid.
        if self.memory.has_parts:
            self.clear()
        else:
            self.state.cut(position)
            del self._tokens[position:]

    def start_sampling(self, sampling: Sampling) -> None:
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = LlamaSampler(sampling, len(self.vocabulary))

    def sample(self) -> int:
        if self._sampler is None:
            raise EngineFailed("sampling was not started")
        self.settle()
        return self._sampler.sample(self._context)

    def can_cut(self, position: int) -> bool:
        if position == len(self._tokens) or position == 0:
            return True
        if self.memory.recurrent:
            return False
        return self.state.reaches(position)

    def cut(self, position: int) -> None:
        if position >= len(self._tokens):
            return
        if position == 0:
            self.clear()
            return
        self.state.cut(position)
        del self._tokens[position:]

    def clear(self) -> None:
        self.state.clear()
        self._tokens.clear()

    def chunks(self, start: int, end: int) -> list[tuple[int, int]]:
        return self.state.chunks(start, end)

    def capture(self, start: int, end: int, *, rows: bool = True, behind: bool = False) -> Captured:
        return self.state.capture(start, end, rows=rows, behind=behind)

    def settle(self) -> None:
        """Wait until nothing is being copied behind the caller's back."""
        self.state.settle()

    def prepare(self) -> None:
        self.state.arena.prepare()

    def check_state(self, state: Buffer, start: int, end: int, *, part: bool = False, whole: bool = False) -> int:
        """See `Engine.check_state`."""
        return check_state(self.shape, state, start, end, part=part, whole=whole)

    def save_file(self, path: Path) -> int:
        """See `Engine.save_file`. llama.cpp streams layer by layer: it takes memory for one layer's rows."""
        return self.state.save_file(path, self._tokens)

    def rebuild(self, plan: Rebuild) -> None:
        """See `Engine.rebuild`. Rows first and parts last: copying an empty partial over clears a recurrent one."""
        try:
            self._rebuild(plan)
        except BaseException:
            self.clear()
            raise
        self._tokens[:] = plan.tokens

    def _rebuild(self, plan: Rebuild) -> None:
        target, parts = len(plan.tokens), list(plan.parts)
        if plan.keep == 0:
            self.clear()
        elif self.memory.has_parts:
            first = parts[0] if not self.memory.recurrent else parts[-1]
            self.state.keep_rows(plan.keep, first)
            # A window's part must not be added twice; a recurrent one has to follow the rows, which clear it.
            parts = parts[1:] if not self.memory.recurrent else (parts if plan.rows else [])
        elif plan.keep < len(self._tokens):
            self.state.cut(plan.keep)
        for rows in plan.rows:
            self.state.apply(rows)
        if plan.rows:
            self.state.cut(target)
        for part in parts:
            self.state.apply(part, part=True)
        if self.state.position() != target or not self.state.reaches(target):
            raise EngineFailed(f"the engine stands at {self.state.position()} instead of {target} after a restore")

    def grow(self, context_tokens: int) -> None:
        """See `Engine.grow`."""
        before = self.context_tokens
        self.clear()
        try:
            self._open(context_tokens)
        except BaseException:
            self._open(before)
            raise

    def _open(self, context_tokens: int) -> None:
        self.state.close()
        self.identity = self._reopen(context_tokens)
        self._context, self.context_tokens = self._handles.context, context_tokens
        self.state = SequenceState(self._context, self.memory)

    def close(self) -> None:
        try:
            self.state.close()
        finally:
            self._free()

    def _free(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        if self._batch is not None:
            self._lc.llama_batch_free(self._batch)
            self._batch = None
            self._handles.free()
