"""One reply, token by token.

Owns when a reply ends: at the model's own end, at a stop text, at a limit, or when somebody asks. The last token is
chosen and not read, so that the state ends where the next turn begins to read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .engine import Engine, EngineFailed, Sampling
from .streaming import ReplyText


@dataclass(frozen=True)
class ReplyOptions:
    """`limit_tokens` 0: what the context has left. `on_full`: see `full_context`."""

    sampling: Sampling = field(default_factory=Sampling)
    limit_tokens: int = 0
    stops: Sequence[str] = ()
    on_full: str = "stop"


@dataclass(frozen=True)
class Reply:
    """`tokens` as sampled, without the token that ends a reply. `finish`: stop, length or interrupted."""

    text: str
    tokens: tuple[int, ...]
    finish: str
    failed: EngineFailed | None = None


def write_reply(
    engine: Engine,
    options: ReplyOptions,
    *,
    show: Callable[[str], None],
    cancelled: Callable[[], bool],
    make_room: Callable[[], bool] = lambda: False,
) -> Reply:
    """Sample until the reply ends. A failing engine ends it as an interruption would, and is told.

    `make_room` is asked when the context is full: true where there is more of it now.
    """
    text, tokens = ReplyText(options.stops), list[int]()
    finish, failed = "interrupted", None
    engine.start_sampling(options.sampling)
    while not cancelled():
        token = engine.sample()
        if engine.vocabulary.is_end(token):
            finish = "stop"
            break
        shown = text.push(engine.vocabulary.piece(token))
        if shown:
            show(shown)
        if text.stopped:
            finish = "stop"
            tokens += [token] if shown else []
            break
        tokens.append(token)
        full = len(engine.tokens) == engine.context_tokens
        if len(tokens) == options.limit_tokens or (full and not make_room()):
            finish = "length"
            break
        try:
            engine.read([token])
        except EngineFailed as error:
            failed = error
            break
    if rest := text.finish():
        show(rest)
    return Reply(text.text, tuple(tokens), finish, failed)
