"""What is typed while nobody reads it, signals between two lines, and what the loop says then, on a pseudo-terminal."""

# ruff: noqa: F811
import os
import re
import signal
import termios
import time
from collections.abc import Callable

import pytest
from conftest import Strata
from turns import log_of, said, store_of
from windows import CTRL_C, CTRL_D, TALKATIVE, Window, open_loop, there, windows  # noqa: F401

FAULTS = ("Traceback", "Exception ignored", "never awaited")


def asking(window: Window, strata: Strata, text: str = TALKATIVE) -> None:
    """The prompt is sent and its answer streams."""
    turns = len(log_of(strata.home, "trip").branch()) if there(strata) else 0
    window.type(f"{text}\r")
    window.wait_until(lambda: there(strata) and len(log_of(strata.home, "trip").branch()) > turns)
    begun = len(window.raw)
    window.wait_until(lambda: len(window.raw) > begun + 20)


def talkative(open_loop: Callable[..., Window]) -> Window:
    window = open_loop("-C", "trip", "--ctx-size", "8192", seed=1, limit=2000, rows=50)
    window.ready()
    return window


def modes(window: Window) -> tuple[bool, bool, bool, bool]:
    """Whether the terminal echoes, makes a newline of Enter, edits lines itself, and makes a signal of Ctrl-C."""
    found = termios.tcgetattr(window.process.child_fd)
    return (
        bool(found[3] & termios.ECHO), bool(found[0] & termios.ICRNL),
        bool(found[3] & termios.ICANON), bool(found[3] & termios.ISIG),
    )  # fmt: skip


def test_two_commands_typed_during_an_answer_are_two_and_are_not_in_it(
    open_loop: Callable[..., Window], strata: Strata
) -> None:
    window = talkative(open_loop)
    asking(window, strata)
    begun = len(window.raw)
    window.process.send("/set temp 0.25\r/set top-k 7\rhalf a l")
    window.look(0.3)
    assert modes(window)[1:] == (False, False, True), "the answer is over already"
    assert "/set" not in window.raw[begun:]
    window.process.send("ine")
    window.wait_until(lambda: window.at_cursor == "> half a line")
    assert re.search(r"^> /set temp 0\.25\n.*\ntemp +0\.25\n(.*\n)?> /set top-k 7\n.*\ntop-k +7$", window.shown, re.M)
    assert len(said(strata.home, "trip")) == 2, "none of it was sent to the model"
    window.type(f"\x15{CTRL_D}")
    assert window.ends() == 0


def test_a_paste_during_an_answer_is_one_message(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = talkative(open_loop)
    asking(window, strata)
    assert window.raw.rfind("\x1b[?2004h") > window.raw.rfind("\x1b[?2004l"), "pastes are marked"
    window.process.send("\x1b[200~one\r/exit\rthree\x1b[201~")
    window.wait_until(lambda: window.at_cursor == "  three")
    window.process.send(CTRL_C + CTRL_D)
    assert window.ends() == 0
    assert window.raw.rfind("\x1b[?2004h") < window.raw.rfind("\x1b[?2004l")
    assert len(said(strata.home, "trip")) == 2


@pytest.mark.parametrize("ending", ["/exit", "twice", "thrice", "SIGTERM", "SIGTERM at the prompt"])
def test_the_terminal_is_as_it_was_however_the_loop_ends(
    open_loop: Callable[..., Window], strata: Strata, ending: str
) -> None:
    window = open_loop("-C", "trip", "--ctx-size", "8192", seed=1, limit=2000)
    window.wait_for("/help lists")
    before = (False, True, True, True)  # pexpect itself turns echo off
    window.ready()
    if ending not in ("/exit", "SIGTERM at the prompt"):
        asking(window, strata)
    if ending.startswith("SIGTERM"):
        window.process.kill(signal.SIGTERM)
    for key in {"/exit": ["/exit\r"], "twice": [CTRL_C] * 2, "thrice": [CTRL_C] * 3}.get(ending, []):
        window.process.send(key)
        time.sleep(0.03)  # signals that come faster than they are taken are one
    window.wait_until(lambda: not window.process.isalive())
    assert modes(window) == before
    assert window.ends() == {"/exit": 0, "twice": 130, "thrice": 130}.get(ending, 143)
    assert not any(fault in window.raw for fault in FAULTS), window.shown


def test_a_stopped_loop_leaves_the_terminal_as_it_was(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = talkative(open_loop)
    asking(window, strata)
    window.process.kill(signal.SIGTSTP)
    os.waitid(os.P_PID, window.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert modes(window)[1:] == (True, True, True)
    window.process.kill(signal.SIGCONT)
    window.wait_until(lambda: modes(window)[1:3] == (False, False))
    window.process.send("/tokens\r")
    window.wait_for("tokens held")
    window.ready()
    window.type(CTRL_D)
    assert window.ends() == 0


@pytest.mark.parametrize("between_s", [0.0, 0.005, 0.03])
def test_C31_ctrl_c_twice_leaves_with_130_whenever_the_second_comes(
    open_loop: Callable[..., Window], strata: Strata, between_s: float
) -> None:
    window = talkative(open_loop)
    asking(window, strata)
    window.process.send(CTRL_C)
    if between_s:
        window.wait_for("interrupted")
        time.sleep(between_s)
    window.process.send(CTRL_C)
    assert window.ends() == 130
    assert not any(fault in window.raw for fault in FAULTS), window.shown
    branch = log_of(strata.home, "trip").branch()
    assert len(branch) == 2 and branch[1].marks == ("interrupted",)


def test_A7_sigterm_at_the_prompt_parks_what_is_held(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip")
    window.ready()
    window.type("Hello\r")
    window.ready()
    window.process.kill(signal.SIGTERM)
    assert window.ends() == 143
    assert store_of(strata.home).read_head("trip").states
    assert not any(fault in window.raw for fault in FAULTS), window.shown


def test_a_prompt_that_was_interrupted_says_how_it_goes_on_and_retry_does_so(
    open_loop: Callable[..., Window], strata: Strata
) -> None:
    (strata.folder / "long.txt").write_text("Tell me of the sea. " * 700)
    window = open_loop("-C", "trip", "--ctx-size", "16384", "--batch-size", "64", rows=400)
    window.ready()
    window.type("/read long.txt\r")
    window.ready()
    window.type("And?\r")
    window.wait_until(lambda: there(strata) and len(log_of(strata.home, "trip").branch()) == 1)
    window.look(0.5)
    window.process.send(CTRL_C)
    window.wait_for(r"the prompt is not answered: /retry goes on with it")
    window.ready()
    held = re.compile(r"^([\d,]+) of 16,384 tokens held; the last turn reused ([\d,]+) of", re.M)
    for line in ("/tokens", "/retry", "/tokens"):
        window.type(f"{line}\r")
        window.ready()
    (before, _), (_, reused) = held.findall(window.shown)
    assert len(before) > 2 and before == reused
    assert [role for role, _ in said(strata.home, "trip")] == ["user", "assistant"]
    window.type(CTRL_D)
    assert window.ends() == 0


def test_what_somebody_types_who_means_to_leave(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip", limit=3)
    window.ready()
    for line in ("exit", "quit"):
        window.type(f"{line}\r")
        window.ready()
    assert window.shown.count("/exit leaves") == 1
    assert [text for role, text in said(strata.home, "trip") if role == "user"] == ["exit", "quit"]
    window.type("/set ctx-size 4096\r")
    window.wait_for(r"^ctx-size +4096")
    window.ready()
    window.type("/exit\r")
    assert window.ends() == 0


def test_C54_ctrl_c_on_a_dumb_terminal_hints_and_twice_leaves(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip", limit=3, TERM="dumb")
    window.wait_for(r"^>")
    window.type(CTRL_C)
    window.wait_for("Ctrl-D or /exit leaves")
    window.type("Hello\r")
    window.wait_until(lambda: there(strata) and len(said(strata.home, "trip")) == 2)
    window.type(CTRL_C)
    window.look(0.3)
    assert window.process.isalive()
    window.process.send(CTRL_C)
    assert window.ends() == 130
    assert not any(fault in window.raw for fault in FAULTS), window.shown
