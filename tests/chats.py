"""Chats over a session directory for tests: one loaded tiny engine that many conversations and directories share.

Not a test. A `Talk` is what a process is: its own `Store`, its own `Chat`, an engine that holds nothing at first.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from engine_tools import logits
from faulty_files import UnflushedFiles

from strata_cli.conversation import Chat
from strata_cli.engine import Engine, Sampling
from strata_cli.files import Files
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.reply import ReplyOptions
from strata_cli.store import Store
from strata_cli.turn import Notice, Policy, TurnResult, Watch

GREEDY = Sampling(greedy=True)
ALL = Policy(min_tokens=0, root_min_tokens=0)
SYSTEM = "You answer in few words."
TIES = 3  # two tokens are equals when their logits differ by less than this many times what the batch split changes
MOST_NOISE = 0.7  # what the split may change at all; the tiny models' logits spread by about 4, and 0.16 was seen
SPLITS = (1, 7, 64)


class Talk:
    """A chat in the directory `root`; `notices` is what it told. Close it before the next one has the engine."""

    def __init__(self, engine: Engine, root: Path, *, files: Files | None = None, policy: Policy = ALL) -> None:
        engine.clear()
        self.notices: list[Notice] = []
        self.engine = engine
        self.store = Store.open(root, files or Files(), lambda: datetime.now(UTC))
        self.chat = Chat(
            engine,
            self.store,
            policy,
            day=date(2026, 1, 1),
            say=self.notices.append,
            remembered_model={"path": str(engine.model.path), "weights": engine.identity.weights},
            remembered_options={"ctx_size": engine.context_tokens},
        )

    def open(self, name: str) -> "Talk":
        """Continue NAME, or begin it."""
        if name in self.store.names():
            self.chat.open(name)
        else:
            self.chat.start(name)
            self.chat.set_system(SYSTEM)
        return self

    def say(self, text: str, limit: int = 5, *, strict: bool = False, watch: Watch | None = None) -> TurnResult:
        """One greedy turn."""
        options = ReplyOptions(GREEDY, limit_tokens=limit)
        return self.chat.turn(text, options, watch or Watch(), strict=strict)

    def say_all(self, texts: Sequence[str], limit: int = 5) -> list[tuple[int, ...]]:
        return [self.say(text, limit).reply_tokens for text in texts]

    @property
    def warnings(self) -> list[str]:
        return [notice.text for notice in self.notices if notice.warning]

    def close(self) -> None:
        """End as a process does, but for the engine."""
        self.chat.finish()
        self.engine.clear()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Reference:
    """What a right process answers to a prompt: one reply for each way of reading that prompt."""

    prompt: tuple[int, ...]
    replies: tuple[tuple[int, ...], ...]

    def allows(self, engine: Engine, reply: tuple[int, ...]) -> bool:
        """Whether `reply` is right. Another batch split may differ in the last digits, and so choose between equals."""
        return reply in self.replies or _differs_by_a_tie(engine, self.prompt, self.replies[0], reply)


def _differs_by_a_tie(engine: Engine, prompt: tuple[int, ...], expected: tuple[int, ...], got: tuple[int, ...]) -> bool:
    at = next((i for i, (one, two) in enumerate(zip(expected, got, strict=False)) if one != two), None)
    if at is None or not isinstance(engine, LlamaEngine):
        return False
    read = [_read_in(engine, [*prompt, *got[:at]], size) for size in (4096, *SPLITS)]
    noise = max(float(np.abs(one - read[0]).max()) for one in read[1:])
    found = read[0]
    return noise < MOST_NOISE and float(max(found) - min(found[expected[at]], found[got[at]])) < TIES * noise


def _read_in(engine: LlamaEngine, tokens: Sequence[int], size: int) -> npt.NDArray[np.float32]:
    """The logits after these tokens when they are read `size` at a time."""
    engine.clear()
    for start in range(0, len(tokens), size):
        engine.read(tokens[start : start + size])
    found = logits(engine)
    engine.clear()
    return found


def cold(engine: Engine, root: Path, scratch: Path, name: str, text: str, limit: int = 5) -> Reference:
    """The answer of a process that has the text of `root` and no state: everything is read."""
    shutil.copytree(root, scratch, ignore=shutil.ignore_patterns("segments"))
    try:
        with Talk(engine, scratch, files=UnflushedFiles(), policy=Policy(automatic=False)).open(name) as talk:
            prompt = talk.chat.prompt_for(text).tokens
            result = talk.say(text, limit)
            assert result.reused_tokens == 0
            return Reference(tuple(prompt), (result.reply_tokens,))
    finally:
        shutil.rmtree(scratch)
