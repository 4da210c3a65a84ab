"""Chats over a session directory for tests: one loaded tiny engine that many conversations and directories share.

Not a test. A `Talk` is what a process is: its own `Store`, its own `Chat`, an engine that holds nothing at first.
"""

import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from strata_cli.conversation import Chat
from strata_cli.engine import Engine, Sampling
from strata_cli.files import Files
from strata_cli.reply import ReplyOptions
from strata_cli.store import Store
from strata_cli.turn import Notice, Policy, TurnResult, Watch

GREEDY = Sampling(greedy=True)
ALL = Policy(min_tokens=0, root_min_tokens=0)
SYSTEM = "You answer in few words."


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


def cold_reply(engine: Engine, root: Path, scratch: Path, name: str, text: str, limit: int = 5) -> tuple[int, ...]:
    """The reply of a process that has the text of `root` and no state: everything is read."""
    shutil.copytree(root, scratch)
    shutil.rmtree(scratch / "segments", ignore_errors=True)
    try:
        with Talk(engine, scratch).open(name) as talk:
            result = talk.say(text, limit)
            assert result.reused_tokens == 0
            return result.reply_tokens
    finally:
        shutil.rmtree(scratch)
