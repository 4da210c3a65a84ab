"""Prune beside two processes that chat (C09, C40): nothing in use goes, nothing dangles, no word is lost.

A few seconds in the normal run, a minute in slow mode. Some of the prunes are killed.
"""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Strata
from directories import dangling
from turns import SMALL, fork_server, forked, store_of, user_lines  # noqa: F401

from strata_cli.inventory import take_inventory

FLAGS = ("--greedy", "-n", "6", "--threads", "1", "--repl", "jsonl", "--json")
KEEP = 2


class Chatter:
    """One `strata run` that is asked line by line: new conversations, and back to its own."""

    def __init__(self, strata: Strata, model: Path, seed: int) -> None:
        self.rng, self.said = random.Random(seed), dict[str, list[str]]()
        self.seed, self.count, self.current = seed, 0, ""
        env = {**SMALL, "STRATA_AUTO_SESSIONS_KEEP": str(KEEP + 2)}
        self.process = strata.start("run", "-m", model, "-s", "You answer in few words.", *FLAGS, env=env)

    def ask(self, **line: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.process.stdout.readline())
            if "strata" in answer and answer.get("command") != "parked":
                assert answer["ok"], answer
                return answer["data"]

    def step(self) -> None:
        others = [name for name in self.said if name != self.current]
        if others and self.rng.random() < 0.4:
            self.current = self.rng.choice(others)
            self.ask(command="/switch", args=[self.current])
        elif self.rng.random() < 0.3:
            self.ask(command="/new")
        self.count += 1
        text = f"Question {self.count} of {self.seed}"
        data = self.ask(prompt=text)
        self.current = data["conversation"]
        self.said.setdefault(self.current, []).append(text)

    def close(self) -> int:
        _, told = self.process.communicate(timeout=60)
        assert b"Traceback" not in told
        return self.process.returncode


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_C09_C40_prune_beside_two_live_processes(forked: Any, tiny: Any, seconds: float) -> None:  # noqa: F811
    strata, rng = forked, random.Random(5)
    chatters = [Chatter(strata, tiny("llama"), seed) for seed in (1, 2)]
    store = store_of(strata.home)
    command = ["prune", "-y", "--keep", str(KEEP), "--max-size", "1MB", "--wait", "30", "--json"]
    killed = done = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for chatter in chatters:
            chatter.step()
        assert not dangling_when_quiet(store)
        if rng.random() < 0.3:
            process = strata.start(*command)
            time.sleep(rng.random() * 0.8)
            process.kill()
            process.communicate()
            killed += 1
            continue
        result = strata(*command)
        data = result.envelope["data"]
        # What is in use stays, whatever the budget says.
        in_use = [kept for kept in data["kept"] if kept["reason"].startswith("in use")]
        assert result.exit_code == (3 if data["over_bytes"] else 0), result
        assert data["over_bytes"] <= sum(kept["bytes"] for kept in in_use)
        current = {chatter.current for chatter in chatters}
        assert not current & {item["name"] for item in data["items"]}
        done += 1
    assert done and [chatter.close() for chatter in chatters] == [0, 0]
    assert strata(*command).exit_code in (0, 3)
    assert not dangling(store)
    with_state = [record for record in take_inventory(store).conversations if record.files]
    assert len(with_state) <= KEEP
    for chatter in chatters:
        for name, texts in chatter.said.items():
            assert user_lines(strata.home, name) == texts
    assert strata("inspect", "--verify", "--json", code=0).data["bad"] == []


def dangling_when_quiet(store: Any) -> list[str]:
    """Seen while nobody sweeps: what is missing then is missed."""
    with store.shared():
        return dangling(store)
