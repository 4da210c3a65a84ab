"""What strata asks of an engine: the values that cross the border and the protocol behind it.

Owns the names of what an engine can do. Knows nothing of llama.cpp, of files or of conversations: `llama_engine`
implements the protocol, and tests that need a fault which llama.cpp can't give wrap it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from .errors import StrataError
from .identity import Identity

Buffer = bytes | bytearray | memoryview
Message = Mapping[str, Any]


class EngineFailed(StrataError):
    """llama.cpp refused or broke off a call. The engine has been emptied, or cut back to where it stood."""

    code = "engine"


class Cancelled(Exception):
    """A prompt was being read and the caller asked to stop: raised between two batches.

    What had been read by then stays in the engine (`Engine.tokens` tells).
    """


@dataclass(frozen=True)
class EngineOptions:
    """How to load a model. None means: not given, decide from what is remembered, configured or the model's own."""

    ctx_size: int | None = None
    gpu_layers: int | None = None
    split_mode: str | None = None
    tensor_split: tuple[float, ...] | None = None
    main_gpu: int | None = None
    threads: int | None = None
    batch_size: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attn: str | None = None
    loras: tuple[tuple[str, float], ...] | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `greedy` leaves everything else aside; a seed of None is a fresh one each turn."""

    greedy: bool = False
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None


@dataclass(frozen=True)
class Memory:
    """What the model's memory keeps, asked of the engine and never guessed from a name.

    `window_tokens` is 0 without a sliding window. `has_rows` is false where everything is recurrent; `has_parts` is
    false where the whole state can be cut by position.
    """

    has_rows: bool
    has_parts: bool
    recurrent: bool
    window_tokens: int

    @property
    def kind(self) -> str:
        if not self.has_parts:
            return "attention"
        if not self.has_rows:
            return "recurrent"
        return "hybrid" if self.recurrent else "window"


@dataclass(frozen=True)
class Captured:
    """The state of tokens [start, end) as llama.cpp serialises it, in memory that is the taker's until `release`.

    `rows` is a state that can be applied by itself; `part` is what `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY` gives. None:
    this memory has none, or it was not asked for. The bytes are there once `ready` came back; it raises EngineFailed
    where llama.cpp did not give them.
    """

    start: int
    end: int
    rows: memoryview | None
    part: memoryview | None
    release: Callable[[], None]
    ready: Callable[[], None] = lambda: None

    @property
    def size_bytes(self) -> int:
        return sum(view.nbytes for view in (self.rows, self.part) if view is not None)


@dataclass(frozen=True)
class Rebuild:
    """How to bring the engine to `len(tokens)`: keep rows [0, keep), apply `rows` in order, then `parts` in order.

    The rows may reach beyond the target: what lies behind it is cut.
    """

    tokens: Sequence[int]
    keep: int
    rows: Sequence[Buffer] = ()
    parts: Sequence[Buffer] = ()


@dataclass(frozen=True)
class ModelFacts:
    """What a loaded model says of itself. Sizes in tokens; `path` is where it was loaded from."""

    path: Path
    description: str
    architecture: str
    trained_tokens: int
    state_format: int
    build: str
    gpu_layers: int
    notes: tuple[str, ...] = field(default=())


class Vocabulary(Protocol):
    """Text to token ids and back. `digest` names the tokenizer: ids under another one mean nothing."""

    @property
    def digest(self) -> str: ...
    @property
    def bos(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def specials(self) -> Sequence[str]: ...
    def tokenize(self, text: str, *, special: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...
    def is_special(self, token: int) -> bool: ...
    def special_text(self, token: int) -> str: ...
    def __len__(self) -> int: ...


class Template(Protocol):
    """A chat template. `origin` says whose: the model's, or strata's fallback, with the reason."""

    @property
    def text(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def origin(self) -> str: ...
    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None, generation: bool, day: date
    ) -> str: ...


class Engine(Protocol):
    """One live sequence. `tokens` is what it holds, position by position; every method keeps it true."""

    @property
    def identity(self) -> Identity: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def model(self) -> ModelFacts: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def template(self) -> Template: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...

    def read(
        self,
        tokens: Sequence[int],
        *,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Decode tokens behind what is held. Raises NoRoom, Cancelled, EngineFailed."""

    def start_sampling(self, sampling: Sampling) -> None:
        """Prepare the choice of tokens for one reply."""

    def sample(self) -> int:
        """The next token after what is held. Needs a `read` since the last change of what is held."""

    def can_cut(self, position: int) -> bool:
        """Whether what is held can be cut to [0, position) and still answer rightly."""

    def cut(self, position: int) -> None: ...
    def clear(self) -> None: ...

    def chunks(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """[start, end) in ranges that each fit the arena."""

    def capture(self, start: int, end: int, *, rows: bool = True, behind: bool = False) -> Captured:
        """The state of [start, end), copied. Raises EngineFailed.

        `behind`: the copy may go on when this returns. The next call that needs the engine waits for it.
        """

    def prepare(self) -> None:
        """Make the next capture cheap. May be called from another thread, while the engine reads."""

    def check_state(self, state: Buffer, start: int, end: int, *, part: bool = False, whole: bool = False) -> int:
        """Where a state from elsewhere ends. Raises Bad for bytes that cannot be this model's state of [start, end),
        Refused where it cannot tell. `whole`: a state of [0, end) as llama.cpp's files have it."""

    def save_file(self, path: Path) -> int:
        """Write what is held as llama.cpp's own sequence file; returns its bytes. Raises EngineFailed."""

    def rebuild(self, plan: Rebuild) -> None:
        """Raises EngineFailed with the engine emptied."""

    def grow(self, context_tokens: int) -> None:
        """Exchange the context for one of another size: nothing is held afterwards, and `identity` may be another.

        Raises NoRoom or ModelUnavailable with the old size in place.
        """

    def close(self) -> None: ...
