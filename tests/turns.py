"""Turns through the command line on a tiny model: what the tests of `strata run` share. Not a test."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pytest
from conftest import Result, Strata
from fork_server import ForkServer

from strata_cli.files import Files
from strata_cli.log import Log
from strata_cli.store import Store

SMALL = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}  # state of any length is kept


@dataclass(frozen=True)
class Forked(Strata):
    """The command line in processes forked from one that has imported it already; `start` starts a new interpreter."""

    server: ForkServer | None = None

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float = 280,  # a shared machine can be slow; pytest has the last word
        code: int | None = None,
    ) -> Result:
        if self.server is None:
            return super().__call__(*arguments, stdin=stdin, env=env, timeout_s=timeout_s, code=code)
        sent = stdin.encode() if isinstance(stdin, str) else stdin or b""
        words = [str(argument) for argument in arguments]
        result = Result(*self.server.run(words, self.environment(**(env or {})), self.folder, sent, timeout_s))
        assert code is None or result.exit_code == code, result
        return result


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    if sys.platform != "linux":
        yield None
        return
    server = ForkServer(Path(__file__).parent.parent)
    yield server
    server.close()


@pytest.fixture
def forked(strata: Strata, fork_server: ForkServer | None) -> Forked:
    return Forked(strata.home, strata.folder, strata.env, fork_server)


@dataclass(frozen=True)
class Turns:
    """One model and a home; `say` is one process for one turn, `loop` one process for many."""

    strata: Strata
    model: Path
    flags: tuple[str, ...] = ("--greedy", "-n", "12", "--threads", "1")
    env: Mapping[str, str] = field(default_factory=lambda: SMALL)

    def elsewhere(self, label: str = "other") -> "Turns":
        """The same in another home, where nothing is stored yet."""
        home = self.strata.home.with_name(f"{self.strata.home.name}-{label}")
        env = {**self.strata.env, "STRATA_HOME": str(home)}
        return replace(self, strata=replace(self.strata, home=home, env=env))

    def arguments(self, *more: str | Path) -> list[str | Path]:
        return ["run", "-m", self.model, *self.flags, "--json", *more]

    def run(self, *more: str | Path, code: int | None = None, stdin: str | None = None) -> Result:
        return self.strata(*self.arguments(*more), env=self.env, code=code, stdin=stdin)

    def say(self, name: str, text: str, *more: str | Path) -> dict[str, Any]:
        return self.run("-C", name, *more, text, code=0).data

    def loop(self, *items: str | Sequence[str], start: Sequence[str | Path] = ()) -> list[dict[str, Any]]:
        """A string is a prompt, a list a command with its arguments; returns the `data` of each answer."""
        lines = [
            json.dumps({"prompt": item} if isinstance(item, str) else {"command": item[0], "args": list(item[1:])})
            for item in items
        ]
        result = self.run("--repl", "jsonl", *start, stdin="\n".join(lines) + "\n", code=0)
        return answers(result.lines, len(items))


def answers(lines: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The `data` of each answered line; a turn's park is final in the event `parked` that follows it."""
    told = [line for line in lines if "event" not in line]
    assert len(told) == count and all(line["ok"] for line in told), lines
    parks = iter([line for line in lines if line.get("event") == "parked"])
    found = []
    for line in told:
        data = line["data"]
        if line["command"] == "run" and data["finish_reason"] != "interrupted":
            data = {**data, "park": {**data["park"], **{k: v for k, v in next(parks).items() if k in data["park"]}}}
        found.append(data)
    return found


def answer_of(stream: IO[bytes]) -> dict[str, Any]:
    """The next answer on a loop's stdout; events of what was parked meanwhile are passed over."""
    while True:
        line = json.loads(stream.readline())
        if "event" not in line:
            return dict(line)


def store_of(home: Path) -> Store:
    return Store.open(home / "data", Files(), lambda: datetime.now(UTC))


def log_of(home: Path, name: str) -> Log:
    return store_of(home).read_log(name)


def said(home: Path, name: str) -> list[tuple[str, str]]:
    """Role and content of the branch in force."""
    return [(line.message["role"], line.message["content"]) for line in log_of(home, name).branch() if line.message]


def user_lines(home: Path, name: str) -> list[str]:
    """Every user's line of the log, also those of abandoned branches."""
    found = [line.message for line in log_of(home, name).lines if line.message]
    return [message["content"] for message in found if message["role"] == "user"]


def segment_files(home: Path, name: str) -> set[str]:
    head = store_of(home).read_head(name)
    return {ref.file for state in head.states.values() for ref in (*state.segments, *state.parts)}


def held_after(data: Mapping[str, Any]) -> int:
    """Tokens that the engine had read when this turn ended: all but a token that was chosen and not read."""
    tokens = data["tokens"]
    return tokens["prompt"] + tokens["generated"] - (data["finish_reason"] == "length")
