"""However a process ends, the text of answered turns stays, and so does state (row A7).

SIGTERM idle, generating, at any moment, twice; SIGHUP; a terminal that dies; a reader that leaves. Cases C25, C27, C29.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_files import tree
from turns import Forked, Turns, fork_server, forked, store_of

from strata_cli.log import Line
from strata_cli.verify import verify

NAME = "talk"
TALKATIVE = "Count to 55."  # the tiny llama of seed 1 answers this with more than 2,700 tokens, in some seconds
LONG = ("--greedy", "-n", "6000", "--threads", "1", "--ctx-size", "8192")
SHORT = ("--greedy", "-n", "6", "--threads", "1")

__all__ = ["fork_server", "forked"]  # fixtures


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:
    return Turns(forked, tiny("llama"), flags=SHORT)


@pytest.fixture
def talkative(forked: Forked, tiny: Callable[..., Path]) -> Turns:
    return Turns(forked, tiny("llama", 1), flags=SHORT)


def start(turns: Turns, flags: tuple[str, ...] = SHORT) -> "subprocess.Popen[bytes]":
    turns = Turns(turns.strata, turns.model, flags=flags)
    return turns.strata.start(*turns.arguments("--repl", "jsonl", "-C", NAME), env=turns.env)


def send(process: "subprocess.Popen[bytes]", *texts: str) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(json.dumps({"prompt": text}).encode() + b"\n" for text in texts))
    process.stdin.flush()


def answers(process: "subprocess.Popen[bytes]", count: int) -> list[dict[str, Any]]:
    """The next envelopes; events, such as `parked`, are passed over."""
    assert process.stdout is not None
    found: list[dict[str, Any]] = []
    while len(found) < count:
        line = json.loads(process.stdout.readline())
        found += [line] if "ok" in line else []
    return found


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, list[dict[str, Any]], bytes]:
    """Status, the lines that were still to come, and stderr; the process must end within a bounded time."""
    out, err = process.communicate(timeout=20)
    lines = [json.loads(line) for line in out.splitlines()]
    return process.returncode, [line for line in lines if "ok" in line], err


def until_it_generates(turns: Turns) -> None:
    """The user's line is on disk before the first token is read."""
    deadline = time.monotonic() + 20
    while not lines(turns.strata.home) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)


def lines(home: Path) -> tuple[Line, ...]:
    return store_of(home).read_log(NAME).branch()


def assert_whole(home: Path) -> None:
    found = verify(store_of(home), None, lambda done, total: None)
    assert found.bad == () and found.notes == (), found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_A7_A8_C29_ended_while_idle(turns: Turns, number: signal.Signals) -> None:
    process = start(turns)
    send(process, "One.", "Two.", "Three.")
    last = answers(process, 3)[-1]["data"]
    process.send_signal(number)
    status, rest, err = ended(process)
    assert status == 143 and all(not line["ok"] for line in rest) and b"Traceback" not in err
    assert len(lines(turns.strata.home)) == 6
    assert_whole(turns.strata.home)
    result = turns.say(NAME, "Four.")
    held = last["tokens"]["prompt"] + last["tokens"]["generated"] - 1
    assert result["restore"]["from"] == "disk" and result["tokens"]["reused"] >= held


def test_A7_C29_ended_while_generating(talkative: Turns) -> None:
    process = start(talkative, LONG)
    send(process, TALKATIVE)
    until_it_generates(talkative)
    begun = time.monotonic()
    process.terminate()
    status, rest, err = ended(process)
    assert status == 143 and time.monotonic() - begun < 10 and b"Traceback" not in err
    assert rest == [] or rest[0]["data"]["finish_reason"] == "interrupted", rest
    said = lines(talkative.strata.home)
    # It had begun to answer: what was said stays, marked.
    assert len(said) == 2 and said[1].marks == ("interrupted",) and said[1].tokens
    assert_whole(talkative.strata.home)
    result = talkative.say(NAME, "Two.", "--ctx-size", "8192")
    assert result["finish_reason"] in ("length", "stop")
    assert result["tokens"]["reused"] >= len(said[1].tokens)


def test_C29_a_second_signal_within_a_second(talkative: Turns) -> None:
    process = start(talkative, LONG)
    send(process, TALKATIVE)
    until_it_generates(talkative)
    process.terminate()
    process.terminate()
    status, _, err = ended(process)
    assert status == 143 and b"Traceback" not in err
    assert_whole(talkative.strata.home)
    assert [(line.message or {})["role"] for line in lines(talkative.strata.home)][:1] in (["user"], [])
    assert talkative.say(NAME, "Two.", "--ctx-size", "8192")["finish_reason"] in ("length", "stop")


def test_C29_at_any_moment_of_many_turns(turns: Turns) -> None:
    """Signals that hit turns, saving and the time between."""
    chosen = random.Random(3)
    answered: list[str] = []
    for trial in range(8):
        process = start(turns)
        prompts = [f"Question {trial}.{i}" for i in range(30)]
        send(process, *prompts)
        got = answers(process, 1)
        time.sleep(chosen.random() * 0.15)
        process.send_signal(chosen.choice([signal.SIGTERM, signal.SIGHUP]))
        status, rest, err = ended(process)
        assert status == 143 and b"Traceback" not in err, err
        whole = [line for line in (*got, *rest) if line["ok"] and line["data"].get("finish_reason") == "length"]
        answered += prompts[: len(whole)]
        said = [str((line.message or {})["content"]) for line in lines(turns.strata.home)]
        assert [text for text in answered if text not in said] == []
        assert_whole(turns.strata.home)


def test_C29_a_terminal_that_dies(turns: Turns) -> None:
    import pexpect

    child = pexpect.spawn(
        turns.strata.command("run", "-m", turns.model, *SHORT, "-C", NAME)[0],
        turns.strata.command("run", "-m", str(turns.model), *SHORT, "-C", NAME)[1:],
        env=turns.strata.environment(**turns.env, TERM="xterm"),
        cwd=str(turns.strata.folder),
        timeout=30,
        dimensions=(24, 100),
    )
    child.expect_exact("\x1b[?2004h")
    child.send("One.\r")
    deadline = time.monotonic() + 20
    while len(lines(turns.strata.home)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.close(force=False)
    while child.isalive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.isalive() and len(lines(turns.strata.home)) == 2
    assert_whole(turns.strata.home)
    assert turns.say(NAME, "Two.")["restore"]["from"] == "disk"


def test_A7_C29_a_reader_that_leaves(talkative: Turns) -> None:
    process = talkative.strata.start("run", "-m", talkative.model, *LONG, "-C", NAME, TALKATIVE, env=talkative.env)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.close()
    process.stdout.read(1)
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=20) in (0, 141) and b"Traceback" not in told and b"BrokenPipe" not in told
    said = lines(talkative.strata.home)
    assert len(said) == 2 and 0 < len(said[1].tokens) < 6000
    assert_whole(talkative.strata.home)


# Locks


def test_C25_a_second_process_is_refused_and_told_who_holds_it(turns: Turns, tmp_path: Path) -> None:
    process = start(turns)
    send(process, "One.")
    answers(process, 1)
    home = turns.strata.home
    (tmp_path / "link").symlink_to(home)
    for env in ({}, {"STRATA_HOME": str(tmp_path / "link")}):
        refused = turns.strata(*turns.arguments("-C", NAME, "Two."), env={**turns.env, **env}, code=11).envelope
        assert refused["error"]["code"] == "locked" and str(process.pid) in refused["error"]["message"]
        assert "since" in refused["error"]["message"] and refused["error"]["hint"]
    refused = turns.run("-c", "Two.", code=11).envelope
    assert str(process.pid) in refused["error"]["message"]
    seen = turns.strata("inspect", NAME, "--transcript", "--json", code=0).data
    assert [each["content"] for each in seen["messages"]][:1] == ["One."]
    assert turns.strata("inspect", "--verify", "--json", code=0).data["bad"] == []
    assert turns.say("another", "One.")["reply_tokens"]
    send(process, "Two.")
    assert answers(process, 1)[0]["ok"]
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert ended(process)[0] == 0
    assert len(lines(home)) == 4


def test_C27_a_killed_process_leaves_no_lock_behind(turns: Turns) -> None:
    process = start(turns)
    send(process, "One.")
    answers(process, 1)
    process.kill()
    process.communicate()
    assert (turns.strata.home / "data" / "conversations" / f"{NAME}.lock").exists()
    begun = time.monotonic()
    assert turns.say(NAME, "Two.")["reply_tokens"] and len(lines(turns.strata.home)) == 4
    assert time.monotonic() - begun < 20
    assert not (turns.strata.home / "data" / "conversations" / f"{NAME}.lock").exists()


def test_C25_a_stopped_holder_keeps_its_lock_and_readers_work(turns: Turns) -> None:
    process = start(turns)
    send(process, "One.")
    answers(process, 1)
    os.kill(process.pid, signal.SIGSTOP)
    before = tree(turns.strata.home / "data" / "conversations")
    try:
        assert turns.run("-C", NAME, "Two.", code=11).envelope["error"]["code"] == "locked"
        assert turns.strata("inspect", "--json", code=0).data["conversations"][0]["name"] == NAME
        assert tree(turns.strata.home / "data" / "conversations") == before
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.terminate()
    assert ended(process)[0] == 143
