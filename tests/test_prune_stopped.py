"""A writer or a reader is stopped at each of its steps, prune runs meanwhile, and it goes on (C09, N11).

Real processes: the one that is stopped stops itself (SIGSTOP) before the call that is its turn. Prune may wait, or
leave alone what is in use; nothing that a head names may be missing, and who was stopped completes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from directories import dangling
from turns import SMALL, Forked, Turns, fork_server, forked, store_of, user_lines  # noqa: F401

CODE = """
import os, signal, sys
from strata_cli.files import Files

name, part, at = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
real, seen = getattr(Files, name), 0

def stopping(self, *arguments, **options):
    global seen
    if part in str(arguments[-1] if name == "rename" else arguments[0]):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGSTOP)
    return real(self, *arguments, **options)

setattr(Files, name, stopping)
from strata_cli.cli import main
main()
"""
PRUNE = ("prune", "-y", "--named", "--keep", "0", "--wait", "0.3", "--json")


@pytest.fixture
def turns(forked: Forked, tiny: Any) -> Turns:  # noqa: F811
    return Turns(forked, tiny("llama"))


def stopped_at_each(turns: Turns, call: str, part: str, *arguments: str | Path) -> Iterator[int]:
    """Run the command again and again, stopped before its first, second, ... such call; ends where it has no more."""
    for step in range(1, 20):
        words = [str(each).replace("STEP", str(step)) for each in arguments]
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, call, part, str(step), *words],
            env=turns.strata.environment(**SMALL),
            cwd=turns.strata.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            told = process.communicate()[0]
            assert process.returncode == 0, told
            return
        try:
            yield step
        finally:
            process.send_signal(signal.SIGCONT)
            told = process.communicate(timeout=120)[0]
        assert process.returncode == 0, (step, told)


def nothing_dangles(turns: Turns) -> None:
    store = store_of(turns.strata.home)
    with store.shared():
        assert dangling(store) == []


def all_is_well(turns: Turns) -> None:
    nothing_dangles(turns)
    assert turns.strata("inspect", "--verify", "--json", code=0).data["bad"] == []


@pytest.mark.parametrize("part", ["/segments/", "/conversations/"])
def test_C09_a_writer_between_its_segments_and_its_head(turns: Turns, part: str) -> None:
    turns.say("before", "Something that prune may take")
    words = [str(each) for each in turns.arguments("-C", "at-STEP", "Hello there")]
    steps = 0
    for steps in stopped_at_each(turns, "rename", part, *words):
        store = store_of(turns.strata.home)
        on_disk = set(store.segment_sizes())
        result = turns.strata(*PRUNE)
        if result.exit_code == 11:
            assert set(store.segment_sizes()) == on_disk
        else:
            assert result.exit_code == 0 and f"at-{steps}" not in {item["name"] for item in result.data["items"]}
        nothing_dangles(turns)
    assert steps >= 1
    all_is_well(turns)
    for step in range(1, steps + 1):
        assert user_lines(turns.strata.home, f"at-{step}") == ["Hello there"]
        assert turns.say(f"at-{step}", "And now?")["tokens"]["reused"] > 0


def test_N11_prune_during_a_save(turns: Turns, tmp_path: Path) -> None:
    turns.say("mine", "Hello there")
    turns.say("mine", "And more")
    steps = 0
    for steps in stopped_at_each(turns, "open", "/segments/", "save", "mine", "-o", tmp_path / "STEP.strata"):
        assert turns.strata(*PRUNE).exit_code == 11, steps
        nothing_dangles(turns)
    assert steps >= 2
    all_is_well(turns)
    assert turns.strata(*PRUNE, code=0).data["items"]
    for step in range(1, steps + 1):
        other = turns.elsewhere()
        other.strata("restore", tmp_path / f"{step}.strata", "--as", f"mine-{step}", code=0)
        all_is_well(other)
        assert other.say(f"mine-{step}", "And now?")["tokens"]["reused"] > 0


def test_N11_prune_during_a_restore(turns: Turns, tmp_path: Path) -> None:
    other = turns.elsewhere()
    other.say("mine", "Hello there")
    other.strata("save", "mine", "-o", tmp_path / "mine.strata", code=0)
    turns.say("before", "Something that prune may take")
    words = ("restore", tmp_path / "mine.strata", "--as", "copy-STEP")
    steps = 0
    for call, part in (("rename", "/segments/"), ("rename", "/conversations/")):
        for steps in stopped_at_each(turns, call, part, *words):
            assert turns.strata(*PRUNE).exit_code in (0, 11), steps
            nothing_dangles(turns)
        assert steps >= 1
        all_is_well(turns)
        copy = f"copy-{steps}"
        assert turns.say(copy, "And now?")["tokens"]["reused"] > 0
        for name in store_of(turns.strata.home).names():
            if name.startswith("copy"):
                turns.strata("prune", "-y", name, code=0)
