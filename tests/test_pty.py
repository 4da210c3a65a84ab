"""The loop on a real pseudo-terminal: Ctrl-C, pastes, resize, a terminal that dies, what stands on the screen."""

# ruff: noqa: F811
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Strata
from turns import log_of, said, store_of
from windows import CTRL_C, CTRL_D, PATIENCE_S, TALKATIVE, Window, open_loop, there, windows  # noqa: F401

from strata_cli.safe_text import safe_text


def test_a_turn_then_ctrl_d(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip")
    window.ready()
    window.type("Hello\r")
    window.wait_until(lambda: len(said(strata.home, "trip")) == 2)
    window.ready()
    status = re.compile(r"trip \| .*\.gguf \| \d+ of [\d,]+ tokens, \d+% of the prompt reused")
    # It is drawn a moment after the prompt above it.
    window.wait_until(lambda: status.match(next(line for line in reversed(window.screen.display) if line.strip())))
    window.type(CTRL_D)
    assert window.ends() == 0
    assert "Aborted" not in window.shown and "Traceback" not in window.shown


@pytest.mark.parametrize("wait_s", [0.0, 0.3, 1.0])
def test_C31_ctrl_c_stops_the_answer_and_keeps_it(
    open_loop: Callable[..., Window], strata: Strata, wait_s: float
) -> None:
    window = open_loop("-C", "trip", "--ctx-size", "8192", seed=1, limit=6000)
    window.ready()
    window.type(f"{TALKATIVE}\r")
    window.wait_until(lambda: len(log_of(strata.home, "trip").branch()) == 1 if there(strata) else False)
    window.look(wait_s)
    window.process.send(CTRL_C)
    window.wait_for("interrupted")
    window.look(2.1)
    window.ready()
    branch = log_of(strata.home, "trip").branch()
    if len(branch) == 2:
        assert branch[1].marks == ("interrupted",)
        shown = safe_text(str((branch[1].message or {})["content"]))
        assert shown[:20] in window.raw.replace("\r\n", "\n")
    window.type("/set max-tokens 4\r")
    window.ready()
    window.type("And now?\r")
    window.wait_until(lambda: len(said(strata.home, "trip")) == len(branch) // 2 * 2 + 2)
    window.ready()
    window.type(CTRL_D)
    assert window.ends() == 0
    checked = strata("inspect", "--verify", "--json", code=0).data
    assert checked["bad"] == []


def test_C31_ctrl_c_twice_within_two_seconds_leaves_with_130_and_keeps_everything(
    open_loop: Callable[..., Window], strata: Strata
) -> None:
    window = open_loop("-C", "trip", "--ctx-size", "8192", seed=1, limit=6000)
    window.ready()
    window.type(f"{TALKATIVE}\r")
    window.wait_until(lambda: there(strata) and len(log_of(strata.home, "trip").branch()) == 1)
    window.look(0.5)
    window.process.send(CTRL_C)
    window.wait_for("interrupted")
    window.process.send(CTRL_C)
    assert window.ends() == 130
    branch = log_of(strata.home, "trip").branch()
    assert len(branch) == 2 and branch[1].marks == ("interrupted",) and branch[1].tokens


def test_C54_ctrl_c_on_an_empty_line(open_loop: Callable[..., Window]) -> None:
    window = open_loop()
    window.ready()
    window.type(CTRL_C)
    window.wait_for("Ctrl-D or /exit leaves")
    window.ready()
    window.look(2.1)
    window.type(CTRL_C)
    window.look(0.3)
    assert window.process.isalive()
    window.process.send(CTRL_C)
    assert window.ends() == 130


def test_C53_a_paste_of_thirty_lines_is_one_prompt(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip")
    window.ready()
    text = "".join(f"line {n}\t.\r" if n % 7 else "/exit\r\r" for n in range(30))
    window.type(f"\x1b[200~{text}\x1b[201~")
    window.look(0.3)
    window.type("\r")
    window.wait_until(lambda: there(strata) and len(said(strata.home, "trip")) == 2)
    assert said(strata.home, "trip")[0] == ("user", text.replace("\r", "\n"))
    window.ready()
    window.type("/exit\r")
    assert window.ends() == 0


def test_a_window_that_changes_its_size(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip")
    window.ready()
    window.type("a line that is longer than forty columns and will be folded")
    window.look(0.2)
    window.process.setwinsize(24, 40)
    window.screen.resize(24, 40)
    window.look(0.5)
    window.type(" at its end\r")
    window.wait_until(lambda: there(strata) and len(said(strata.home, "trip")) == 2)
    assert said(strata.home, "trip")[0][1].endswith("will be folded at its end")
    window.type(CTRL_D)
    assert window.ends() == 0


def test_A7_a_terminal_that_dies_while_typing(
    open_loop: Callable[..., Window], strata: Strata, windows: list[Window]
) -> None:
    window = open_loop("-C", "trip")
    window.ready()
    window.type("Hello\r")
    window.wait_until(lambda: there(strata) and len(said(strata.home, "trip")) == 2)
    window.ready()
    pid = window.process.pid
    os.close(window.process.child_fd)  # the window is gone: SIGHUP, and every read fails
    end = time.monotonic() + PATIENCE_S
    status = None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.05)
    assert status in (0, 143, -signal.SIGHUP), status
    windows.clear()
    assert len(said(strata.home, "trip")) == 2
    assert store_of(strata.home).read_head("trip").states, "its state is on the disk"


def test_the_last_two_turns_are_shown_when_a_conversation_is_opened(
    open_loop: Callable[..., Window], strata: Strata, tiny: Callable[..., Path]
) -> None:
    for text in ("First [bold]question[/].", "Second \x1b]0;evil\x07question.", "Third question."):
        strata("run", "-m", tiny("llama"), "--greedy", "-n", "3", "-C", "trip", text, code=0)
    strata("run", "-m", tiny("llama"), "--greedy", "-n", "3", "-C", "other", "Elsewhere.", code=0)
    window = open_loop("-C", "trip")
    window.ready()
    window.wait_until(lambda: "> Third question." in window.shown)
    assert "> Third question." in window.shown and "> Second \\x1b]0;evil\\x07question." in window.shown
    assert "First" not in window.shown and "\x1b]0;evil" not in window.raw
    window.type("/switch other\r")
    window.wait_for("> Elsewhere.")
    window.ready()
    window.type("/switch nobody\r")
    window.wait_for("no conversation")
    window.ready()
    window.wait_until(lambda: any(line.startswith("other | ") for line in window.screen.display))
    window.type("/switch tr\t\x15/exit\r")  # Tab completes, Ctrl-U clears the line
    assert window.ends() == 0


def test_no_save_and_no_history_write_nothing(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("--no-save")
    window.ready()
    window.type("A secret.\r")
    window.wait_for(r"tokens, \d+% of")
    window.type(CTRL_D)
    assert window.ends() == 0
    for path in strata.home.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path
    assert not (strata.home / "state" / "history").exists()
    window = open_loop("-C", "x", "--no-history")
    window.ready()
    window.type("Not kept as history.\r")
    window.wait_for(r"tokens, \d+% of")
    window.type(CTRL_D)
    assert window.ends() == 0
    assert not (strata.home / "state" / "history").exists()


def test_a_dumb_terminal_gets_no_escapes(open_loop: Callable[..., Window], strata: Strata) -> None:
    window = open_loop("-C", "trip", TERM="dumb")
    window.wait_for(r"^>")
    window.type("Hello\r")
    window.wait_until(lambda: there(strata) and len(said(strata.home, "trip")) == 2)
    window.look(0.5)
    window.type(CTRL_D)
    assert window.ends() == 0
    assert "\x1b[" not in window.raw.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")
