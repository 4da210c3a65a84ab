"""What trials work with: engines, folders, chats over directories of their own, and texts of a wanted length.

Owns that all of it is made where it is needed and gone afterwards. What is measured is in the trials.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

from ..conversation import Chat
from ..engine import Sampling
from ..files import Files
from ..llama_engine.live import LlamaEngine
from ..reply import ReplyOptions
from ..restore import execute
from ..store import Store
from ..turn import Policy, Watch
from .words import text_of

GREEDY = Sampling(greedy=True)
DAY = date(2026, 1, 1)
SYSTEM = "You are a careful assistant. Answer in plain words."


@dataclass
class Desk:
    """`load(model, context_tokens)` gives an engine. `scale` multiplies the token counts of the workloads."""

    folder: Path
    load: Callable[[str, int], LlamaEngine]
    model_path: Callable[[str], Path]
    scale: float
    threads: int
    server: Path | None = None
    rivals: bool = True
    _engines: dict[tuple[str, int], LlamaEngine] = field(default_factory=dict)
    _made: int = 0

    def tokens(self, count: float) -> int:
        """A workload's number of tokens at this scale."""
        return max(32, round(count * self.scale))

    def engine(self, model: str, context_tokens: int, number: int = 0) -> LlamaEngine:
        """An empty engine with at least this context; `number` 1 is a second one beside it."""
        key = (model, number)
        known = self._engines.get(key)
        if known is None or known.context_tokens < context_tokens:
            self.close_engines(None if number == 0 else key)
            known = self._engines[key] = self.load(model, -(-context_tokens // 256) * 256)
        known.clear()
        return known

    def close_engines(self, only: tuple[str, int] | None = None) -> None:
        """Free what is loaded; one of them, or all."""
        for key in [key for key in self._engines if only in (None, key)]:
            self._engines.pop(key).close()

    def new_folder(self) -> Path:
        """A folder of its own that does not exist yet."""
        self._made += 1
        return self.folder / f"{self._made:03}"

    def text(self, engine: LlamaEngine, tokens: int, seed: int) -> str:
        """A text of about `tokens` tokens for this model."""
        return text_of(lambda text: len(engine.vocabulary.tokenize(text, special=False)), tokens, seed)

    def close(self) -> None:
        """Free the engines and remove everything that was written."""
        self.close_engines()
        shutil.rmtree(self.folder, ignore_errors=True)


def chat_in(
    engine: LlamaEngine, root: Path, *, save: bool = True, ram_mib: int = 2048, min_tokens: int = 0, root_min: int = 16
) -> Chat:
    """A chat as a new process has it: with nothing verified and nothing in memory. The engine stays as it is."""
    policy = Policy(
        save=save,
        min_tokens=min_tokens,
        root_min_tokens=root_min,
        ram_bytes=ram_mib << 20,
        min_free_ram_bytes=0,
        leave_s=3600.0,
    )
    return Chat(
        engine, open_store(root), policy, day=DAY, say=lambda _: None, remembered_model={}, remembered_options={}
    )


def open_store(root: Path, files: Files | None = None) -> Store:
    return Store.open(root, files or Files(), lambda: datetime.now(UTC), command="strata bench")


def options(limit_tokens: int) -> ReplyOptions:
    return ReplyOptions(GREEDY, limit_tokens=limit_tokens)


def converse(
    engine: LlamaEngine, root: Path, name: str, texts: Sequence[str], *, system: str = SYSTEM, limit: int = 8
) -> int:
    """Make a stored conversation of these turns; returns its tokens in the engine, which is left empty."""
    chat = chat_in(engine, root)
    chat.start(name)
    chat.set_system(system)
    for text in texts:
        chat.turn(text, options(limit), Watch())
    held = len(engine.tokens)
    chat.finish()
    engine.clear()
    return held


def stand_at(chat: Chat, name: str, text: str) -> None:
    """Open a conversation and bring the engine to where the turn `text` would begin to read."""
    chat.open(name)
    _, plan = chat.plan(text)
    execute(plan, chat.engine, chat.keeper.shelf)


def without_state(root: Path, target: Path) -> Path:
    """A copy of a directory's text alone: what `cold` reads."""
    shutil.copytree(root, target, ignore=shutil.ignore_patterns("segments"))
    return target
