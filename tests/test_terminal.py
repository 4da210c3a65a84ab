"""Typing at the prompt, through prompt_toolkit's pipe input: keys, pastes, history, completion (C53, C54)."""

import asyncio
import io
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from strata_cli.errors import Interrupted, StrataError
from strata_cli.files import Files
from strata_cli.output import Output
from strata_cli.signals import ENDING, Stop
from strata_cli.slash import Command, Said
from strata_cli.terminal import Desk, Words, below, typed
from strata_cli.typed_history import SLACK, TypedHistory, wanted

PROMPTS = "\x1b[?2004h"  # drawn when a prompt begins
ENTER, CTRL_C, CTRL_D, CTRL_J, ALT_ENTER, UP = "\r", "\x03", "\x04", "\n", "\x1b\r", "\x1b[A"


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


class Clock:
    """Monotonic seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A prompt with keys to press; `lines` is what it yields for keys that come in one burst each."""

    def __init__(self, pipe: PipeInput, history: TypedHistory | None) -> None:
        self.told, self.drawn = io.StringIO(), io.StringIO()
        self.clock, self.stop = Clock(), Stop()
        out = Output("run", stdout=io.StringIO(), stderr=self.told)
        desk = Desk(out, self.stop, lambda kind: [f"{kind}-one", f"{kind}-two"], lambda: "trip", history, self.clock)
        target = Vt100_Output(self.drawn, lambda: Size(rows=24, columns=80), term="xterm")
        self._pipe, self._typed = pipe, typed(desk, source=pipe, target=target)

    def ahead(self, text: str) -> None:
        """Keys that nobody reads yet."""
        self._pipe.send_text(text)

    def press(self, *bursts: str) -> Said | Command | StrataError:
        """The next line; every burst but the last is read before the next is sent, and none before the prompt."""
        before = self.drawn.getvalue().count(PROMPTS)

        def send() -> None:
            end = time.monotonic() + 20
            while self.drawn.getvalue().count(PROMPTS) == before and time.monotonic() < end:
                time.sleep(0.01)
            for burst in bursts:
                self._pipe.send_text(burst)
                time.sleep(0.05)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            return next(self._typed)
        finally:
            thread.join()


@pytest.fixture
def history(tmp_path: Path) -> TypedHistory:
    return TypedHistory(tmp_path / "state" / "history", 5, Files())


@contextmanager
def at_a_terminal(history: TypedHistory | None = None) -> Iterator[Terminal]:
    with create_pipe_input() as pipe, create_app_session(input=pipe):
        yield Terminal(pipe, history)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with at_a_terminal() as found:
        yield found


def test_enter_sends_and_a_command_is_a_command(terminal: Terminal) -> None:
    assert terminal.press("hello", ENTER) == Said("hello")
    assert terminal.press("/switch trip", ENTER) == Command("/switch", "trip", ("trip",))
    assert terminal.press("//help", ENTER) == Said("/help")
    assert isinstance(terminal.press("/nonsense", ENTER), StrataError)


@pytest.mark.parametrize("key", [CTRL_J, ALT_ENTER])
def test_C53_alt_enter_and_ctrl_j_begin_a_new_line(terminal: Terminal, key: str) -> None:
    assert terminal.press("one", key, "/exit", ENTER) == Said("one\n/exit")


def test_C53_a_paste_is_one_prompt_with_its_exact_text(terminal: Terminal) -> None:
    text = "".join(f"line {n}\twith a tab\n\n" for n in range(15)) + "/exit\n"
    assert terminal.press(paste(text), ENTER) == Said(text)
    assert terminal.press(paste("one\r\ntwo\rthree"), ENTER) == Said("one\ntwo\nthree")


@pytest.mark.parametrize("text", ["/exit", "/exit\n", "  /help", "/nonsense", "//x"])
def test_C53_a_pasted_line_is_never_a_command(terminal: Terminal, text: str) -> None:
    assert terminal.press(paste(text), ENTER) == Said(text)
    assert terminal.press("/help", ENTER) == Command("/help")


def test_C53_a_command_with_a_pasted_argument_is_one(terminal: Terminal) -> None:
    assert terminal.press("/switch ", paste("trip"), ENTER) == Command("/switch", "trip", ("trip",))


def test_C53_lines_that_come_in_one_breath_are_one_prompt(terminal: Terminal) -> None:
    """A terminal without bracketed paste sends the paste as keys."""
    assert terminal.press("one\r/exit\r\rlast", ENTER) == Said("one\n/exit\n\nlast")


def test_C53_200_kB_are_pasted_within_seconds(terminal: Terminal) -> None:
    text = "\n".join("x" * 79 for _ in range(2500)) + "\n" + "y" * 20_000
    begun = time.monotonic()
    assert terminal.press(paste(text), ENTER) == Said(text)
    assert time.monotonic() - begun < 30


def test_C54_ctrl_d_on_an_empty_line_ends_and_with_text_it_does_not(terminal: Terminal) -> None:
    assert terminal.press("abc", CTRL_D, ENTER) == Said("abc")
    with pytest.raises(StopIteration):
        terminal.press(CTRL_D)
    assert "Aborted" not in terminal.told.getvalue()


def test_C54_ctrl_c_clears_the_line_which_is_not_lost(terminal: Terminal) -> None:
    assert terminal.press("a long question", CTRL_C, "short", ENTER) == Said("short")
    assert terminal.press(UP, UP, ENTER) == Said("a long question")


def test_C54_ctrl_c_on_an_empty_line_hints_and_twice_leaves(terminal: Terminal) -> None:
    assert terminal.press(CTRL_C, "still here", ENTER) == Said("still here")
    assert terminal.told.getvalue().count("Ctrl-D or /exit leaves") == 1
    terminal.clock.now += 3
    assert terminal.press(CTRL_C, "and here", ENTER) == Said("and here")
    with pytest.raises(Interrupted):
        terminal.press(CTRL_C, CTRL_C)


def test_C54_ctrl_c_soon_after_an_interrupted_answer_leaves(terminal: Terminal) -> None:
    assert terminal.press("hi", ENTER) == Said("hi")
    terminal.stop.interrupted_at = terminal.clock.now - 1
    with pytest.raises(Interrupted):
        terminal.press(CTRL_C)


@pytest.fixture
def signals() -> Iterator[None]:
    """The handlers come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def while_the_event_loop_is_built(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> None:
    """Each of these signals comes in the middle of one event loop's making."""
    build, left = asyncio.SelectorEventLoop.__init__, list(numbers)

    def interrupted(self: asyncio.SelectorEventLoop, *arguments: object) -> None:
        if left:
            os.kill(os.getpid(), left.pop(0))
        build(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.SelectorEventLoop, "__init__", interrupted)


def test_C54_ctrl_c_while_a_prompt_is_being_built_is_a_hint_and_twice_leaves(
    signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_a_terminal() as terminal:
        terminal.stop.install()
        while_the_event_loop_is_built(monkeypatch, signal.SIGINT)
        assert terminal.press("x", ENTER) == Said("x")
        assert terminal.told.getvalue().count("Ctrl-D or /exit leaves") == 1
        while_the_event_loop_is_built(monkeypatch, signal.SIGINT, signal.SIGINT)
        with pytest.raises(Interrupted):
            terminal.press()


def test_A7_sigterm_while_a_prompt_is_being_built_ends_the_input(
    signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_a_terminal() as terminal:
        terminal.stop.install()
        while_the_event_loop_is_built(monkeypatch, signal.SIGTERM)
        with pytest.raises(StopIteration):
            terminal.press()
        assert terminal.stop.ending


def test_what_was_typed_before_the_prompt_is_a_line_for_each_enter(terminal: Terminal) -> None:
    terminal.ahead(f"one\r  \r/help\rtwo{ALT_ENTER}{paste('three' + ENTER)}\rfo")
    assert terminal.press() == Said("one")
    assert terminal.press() == Command("/help")
    assert terminal.press() == Said("two\nthree\n")
    assert terminal.press("ur", ENTER) == Said("four")


def test_empty_lines_are_passed_over(terminal: Terminal) -> None:
    assert terminal.press(ENTER, "  ", ENTER, "x", ENTER) == Said("x")


def test_the_line_below_has_no_markup_and_no_control_characters() -> None:
    assert below("trip\x1b]0;title\x07 | <b>m</b>", 80) == [("", "trip\\x1b]0;title\\x07 | <b>m</b>")]


@pytest.mark.parametrize(
    ("text", "shown"), [("abcdef", "abcdef"), ("abcdefg", "abcde\u2026"), ("ab\u65c5\u884cx", "ab\u65c5\u2026")]
)
def test_the_line_below_is_one_line(text: str, shown: str) -> None:
    assert below(text, 6) == [("", shown)]


def test_history_is_private_and_comes_back(history: TypedHistory) -> None:
    with at_a_terminal(history) as first:
        first.press("one\n[x] two", ENTER)
        first.press("three", ENTER)
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.path.parent.stat().st_mode) == 0o700
    with at_a_terminal(TypedHistory(history.path, 5, Files())) as second:
        assert second.press("", UP, UP, ENTER) == Said("one\n[x] two")


def test_history_is_bounded_and_survives_bad_lines(history: TypedHistory) -> None:
    history.add("old")
    history.path.write_bytes(history.path.read_bytes() + b'\xff\n{"a": 1}\n"torn')
    assert history.entries() == ["old"]
    for n in range(SLACK + 20):
        history.add(f"entry {n}")
    assert history.entries() == [f"entry {n}" for n in range(SLACK + 15, SLACK + 20)]
    assert len(history.path.read_bytes().splitlines()) <= SLACK + 5
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600


def test_C67_a_looser_file_is_tightened_and_other_kinds_are_left_alone(history: TypedHistory, tmp_path: Path) -> None:
    history.add("one")
    history.path.chmod(0o644)
    history.add("two")
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/null"), tmp_path):
        odd = TypedHistory(path, 5, Files())
        assert odd.entries() == []
        odd.add("x")
        assert odd.trouble


@pytest.mark.parametrize(
    ("environ", "setting", "entries", "save", "kept"),
    [
        ({}, True, 1000, True, True), ({"STRATA_NO_HISTORY": "1"}, True, 1000, True, False),
        ({"STRATA_NO_HISTORY": ""}, True, 1000, True, True), ({}, False, 1000, True, False),
        ({}, True, 0, True, False), ({}, True, 1000, False, False),
    ],
)  # fmt: skip
def test_when_a_history_is_kept(environ: dict[str, str], setting: bool, entries: int, save: bool, kept: bool) -> None:
    assert wanted(environ, setting=setting, entries=entries, save=save) is kept


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("/sw", ["/switch"]), ("/switch ", ["conversations-one", "conversations-two"]),
        ("/switch conversations-t", ["conversations-two"]), ("/prefix p", ["prefixes-one", "prefixes-two"]),
        ("/set top", ["top-k", "top-p"]), ("hello /sw", []), ("//sw", []), ("hello\n/sw", []), ("/new x", []),
    ],
)  # fmt: skip
def test_completion_offers_words_and_names(text: str, offered: list[str]) -> None:
    words = Words(lambda kind: [f"{kind}-one", f"{kind}-two"])
    found = words.get_completions(Document(text), CompleteEvent())
    assert [each.text for each in found] == offered


def test_completion_of_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    words = Words(lambda kind: [])
    for text in (f"/read {tmp_path}/no", f"/restore {tmp_path}/no", f"/save trip -o {tmp_path}/no"):
        assert [each.text for each in words.get_completions(Document(text), CompleteEvent())] == ["tes.txt"]
