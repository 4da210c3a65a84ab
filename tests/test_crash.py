"""A real `strata run` is killed at random points. Nothing that was answered is lost, nothing false is restored.

Issue 3's crash harness: 40 kills normally, 500 with `-m slow`. After each kill the conversation opens, has the text of
every answered turn, verifies, and goes on with the right reply; at the end all its replies are those of a run that
nobody killed. A `strata prune` that takes all state is killed, too, beside the run and after it. Cases N09, C40.
"""

import itertools
import json
import random
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chats import Reference, Talk, cold
from conftest import Strata
from directories import dangling
from engine_tools import Engines
from faulty_files import UnflushedFiles

from strata_cli.engine import Engine
from strata_cli.verify import verify

NAME, LIMIT = "talk", 6
KILLS_A_HOME = 4
ALL_STATE = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    found = Engines(tiny)
    yield found
    found.close()


@dataclass
class Home:
    """One STRATA_HOME in which processes are killed one after another, and what they answered before."""

    path: Path
    engine: Engine
    answered: list[tuple[str, list[int]]] = field(default_factory=list)
    said: int = 0

    @property
    def data(self) -> Path:
        return self.path / "data"


@dataclass
class Victim:
    """A process on its way to its death."""

    home: Home
    process: subprocess.Popen[bytes]
    prompts: list[str]


def start(strata: Strata, home: Home) -> Victim:
    arguments = ["run", "--repl", "jsonl", "--json", "-C", NAME, "-m", home.engine.model.path]
    arguments += ["--greedy", "-n", str(LIMIT), "--threads", "1", "--ctx-size", "4096", "-s", "You are brief."]
    process = strata.start(*arguments, env={**ALL_STATE, "STRATA_HOME": str(home.path)})
    prompts = [f"Question {home.said + i}" for i in range(20)]
    home.said += len(prompts)
    assert process.stdin is not None
    process.stdin.write(b"".join(json.dumps({"prompt": each}).encode() + b"\n" for each in prompts))
    process.stdin.flush()
    return Victim(home, process, prompts)


def kill(victim: Victim, chosen: random.Random) -> None:
    """Wait for the first answer or, now and then, not even for that; then kill at any moment of any turn."""
    process = victim.process
    assert process.stdout is not None and process.stderr is not None and process.stdin is not None
    if chosen.random() < 0.85:
        select.select([process.stdout], [], [], 60)
        time.sleep(chosen.random() * 0.2)
    else:
        time.sleep(chosen.random() * 1.0)
    process.kill()
    lines = [json.loads(line) for line in process.stdout.read().split(b"\n") if line.endswith(b"}")]
    told = process.stderr.read()
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == -9, told
    envelopes = [line for line in lines if "ok" in line]  # the rest are events, such as `parked`
    for line, prompt in zip(envelopes, victim.prompts, strict=False):
        data = answer(line)
        victim.home.answered.append((prompt, data["reply_tokens"]))


def answer(envelope: dict[str, Any]) -> dict[str, Any]:
    assert envelope["ok"], envelope["error"]
    return envelope["data"]


def kill_prune(strata: Strata, home: Home, chosen: random.Random) -> None:
    """A prune that takes all state of what nobody has open, killed at any moment from its start to after its end."""
    command = ["prune", "-y", "--named", "--keep", "0", "--json"]
    process = strata.start(*command, env={"STRATA_HOME": str(home.path)})
    time.sleep(chosen.random() * 1.2)
    process.kill()
    _, told = process.communicate()
    assert b"Traceback" not in told and process.returncode in (-9, 0, 3), told


def check(home: Home, scratch: Path) -> int:
    """What must hold after a kill. Returns how many tokens the next turn reused."""
    if not home.answered and not (home.data / "conversations" / f"{NAME}.jsonl").exists():
        return 0
    talk = Talk(home.engine, home.data)
    found = verify(talk.store, None, lambda done, total: None)
    assert found.bad == () and dangling(talk.store) == [], found
    pairs = spoken(talk, home)
    assert [each for each in home.answered if each not in pairs] == [], "an answered turn is lost"
    right = cold(home.engine, home.data, scratch, NAME, "Where were we?", LIMIT)
    with talk.open(NAME):
        result = talk.say("Where were we?", LIMIT)
    assert right.allows(home.engine, result.reply_tokens)
    # A kill between text and state costs reading that turn again, and nothing else.
    assert all("are not stored" in warning for warning in talk.warnings), talk.warnings
    home.answered.append(("Where were we?", list(result.reply_tokens)))
    return result.reused_tokens


def spoken(talk: Talk, home: Home) -> list[tuple[str, list[int]]]:
    lines = talk.store.read_log(NAME).branch()
    pairs = itertools.pairwise(lines)
    return [
        (str((one.message or {})["content"]), list(two.tokens))
        for one, two in pairs
        if ((one.message or {})["role"], (two.message or {})["role"]) == ("user", "assistant")
    ]


def replay(home: Home, scratch: Path) -> None:
    """Every reply of the conversation is the one that it gets in a run that nobody kills."""
    with Talk(home.engine, home.data) as talk:
        pairs = spoken(talk, home)
        setup = talk.store.read_log(NAME).setup()
    with Talk(home.engine, scratch, files=UnflushedFiles()).open(NAME) as talk:
        talk.chat.set_system(str(setup["system"]))
        for text, tokens in pairs:
            prompt = tuple(talk.chat.prompt_for(text).tokens)
            reply = talk.say(text, LIMIT).reply_tokens
            if reply != tuple(tokens):
                assert Reference(prompt, (reply,)).allows(home.engine, tuple(tokens)), text
                break  # two equals: from here on both conversations are right, and differ


def kill_many(strata: Strata, engines: Engines, folder: Path, kills: int, seed: int, *, prune: bool = False) -> None:
    """`prune`: prunes are killed beside the runs and after them, before anybody looks; they count as kills."""
    chosen, reused, turns = random.Random(seed), 0, 0
    for batch in range(kills // (2 * KILLS_A_HOME)):
        homes = [
            Home(folder / f"{batch}-{family}", engines(family, threads=1, ctx_size=4096))
            for family in ("llama", "lfm2")
        ]
        for _ in range(KILLS_A_HOME):
            victims = [start(strata, home) for home in homes]
            if prune and chosen.random() < 0.5:
                kill_prune(strata, chosen.choice(homes), chosen)
            for victim in victims:
                kill(victim, chosen)
            for home in homes if prune else ():
                kill_prune(strata, home, chosen)
            for home in homes:
                reused += check(home, folder / "scratch")
        for home in homes:
            replay(home, folder / f"replay-{home.path.name}")
            turns += len(home.answered)
    assert turns > kills and (prune or reused > 20 * kills), (turns, reused)


def test_N09_40_kills_lose_nothing(strata: Strata, engines: Engines, tmp_path: Path) -> None:
    kill_many(strata, engines, tmp_path, 40, seed=1)


def test_N09_C40_kills_of_prune_lose_nothing(strata: Strata, engines: Engines, tmp_path: Path) -> None:
    kill_many(strata, engines, tmp_path, 16, seed=3, prune=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_N09_C40_200_kills_of_prune_lose_nothing(strata: Strata, engines: Engines, tmp_path: Path) -> None:
    kill_many(strata, engines, tmp_path, 200, seed=4, prune=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_N09_500_kills_lose_nothing(strata: Strata, engines: Engines, tmp_path: Path) -> None:
    kill_many(strata, engines, tmp_path, 504, seed=2)
