"""The copy of a park goes on behind the prompt (design.md, "Parking"): nobody touches the engine before it has ended.

What a copy that fails costs is `test_failed_copies`.
"""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from chats import Talk
from engine_tools import Engines, text_tokens
from held_copies import IN_MEMORY, TEXTS, Copies, copies, engine, engines

from strata_cli.engine import EngineFailed
from strata_cli.errors import Interrupted
from strata_cli.going_back import undo
from strata_cli.llama_engine.copier import Copier
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.llama_engine.loading import Handles
from strata_cli.llama_engine.state import SequenceState
from strata_cli.signals import Stop

__all__ = ["copies", "engine", "engines"]  # fixtures


# -- the engine


def test_a_copy_behind_is_the_copy_at_once(engine: LlamaEngine) -> None:
    engine.clear()
    engine.read(text_tokens(150))
    at_once = engine.capture(30, 150)
    behind = engine.capture(30, 150, behind=True)
    behind.ready()
    assert [bytes(view or b"") for view in (behind.rows, behind.part)] == [
        bytes(view or b"") for view in (at_once.rows, at_once.part)
    ]
    for captured in (at_once, behind):
        captured.release()


USES: dict[str, Callable[[LlamaEngine], object]] = {
    "read": lambda engine: engine.read([5]),
    "cut": lambda engine: engine.cut(0),
    "clear": lambda engine: engine.clear(),
    "can_cut": lambda engine: engine.state.reaches(140),
    "capture": lambda engine: engine.capture(0, 150).release(),
    "chunks": lambda engine: engine.state._sizes(0, 150),
    "whole": lambda engine: engine.state.whole(),
    "position": lambda engine: engine.state.position(),
    "settle": lambda engine: engine.settle(),
}


@pytest.mark.parametrize("use", USES)
def test_whatever_needs_the_engine_waits_for_the_copy(engines: Engines, copies: Copies, use: str) -> None:
    engine = engines("gemma3")
    engine.clear()
    engine.read(text_tokens(150))
    copies.hold(0.2)
    captured = engine.capture(0, 150, behind=True)
    assert not copies.go.is_set(), "the capture waited for its copy"
    USES[use](engine)
    assert copies.go.is_set() and copies.made
    captured.ready()
    captured.release()


def test_memory_that_is_being_filled_is_not_given_back(engines: Engines, copies: Copies) -> None:
    engine = engines("llama")
    engine.clear()
    engine.read(text_tokens(100))
    copies.hold(0.2)
    engine.capture(0, 100, behind=True).release()
    assert copies.made == 1


def test_a_failed_copy_is_told_to_whoever_waits_and_leaves_the_engine_usable(engines: Engines, copies: Copies) -> None:
    engine = engines("llama")
    engine.clear()
    engine.read(text_tokens(100))
    copies.failures = 1
    captured = engine.capture(0, 100, behind=True)
    for _ in range(2):
        with pytest.raises(EngineFailed, match="the copy broke off"):
            captured.ready()
    captured.release()
    engine.read([5])
    assert len(engine.tokens) == 101
    assert bytes(engine.capture(0, 100).rows or b"")


def test_an_unexpected_error_is_a_failed_copy_and_the_thread_goes_on() -> None:
    def broken() -> None:
        raise ValueError("no such thing")

    copier, done = Copier(), []
    failed = copier.start(broken)
    with pytest.raises(EngineFailed, match="no such thing"):
        failed.wait()
    copier.start(lambda: done.append(1)).wait()
    copier.close()
    assert done == [1]


@contextmanager
def interrupted_in(seconds: float) -> Iterator[Stop]:
    """A Ctrl-C some time from now, taken as a command takes it; the handlers that were there come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    stop = Stop()
    stop.install()
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with stop.deferring(), stop.raising():
            yield stop
    finally:
        timer.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_interrupt_while_waiting_is_raised_and_the_next_call_waits_on(engines: Engines, copies: Copies) -> None:
    engine = engines("llama")
    engine.clear()
    engine.read(text_tokens(100))
    copies.hold(1.0)
    captured = engine.capture(0, 100, behind=True)
    with pytest.raises(Interrupted), interrupted_in(0.2):
        engine.settle()
    assert not copies.go.is_set()
    engine.settle()
    assert copies.go.is_set()
    captured.release()


def test_an_interrupt_never_frees_a_context_that_is_being_copied(
    engines: Engines, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/context N` right after a turn, and Ctrl-C: the old context lives until the copy has ended."""
    engine, freed = engines("llama"), []
    free = Handles.free_context

    def watched(handles: Handles) -> None:
        freed.append(copies.go.is_set())
        free(handles)

    monkeypatch.setattr(Handles, "free_context", watched)
    with Talk(engine, tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        copies.hold(1.0)
        talk.say(TEXTS[0])
        size = engine.context_tokens
        with pytest.raises(Interrupted), interrupted_in(0.2):
            talk.chat.grow(2 * size)
        assert all(freed)
        assert talk.say(TEXTS[1]).finish == "length"


def test_an_interrupt_in_the_walk_is_no_file_that_cannot_be_read(
    engines: Engines, copies: Copies, tmp_path: Path
) -> None:
    with Talk(engines("llama"), tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        assert talk.say(TEXTS[0]).ticket.done.wait(60)
        copies.hold(0.5)
        talk.say(TEXTS[1])
        undo(talk.chat, 1)
        with pytest.raises(Interrupted), interrupted_in(0.2):
            for _ in range(1000):
                talk.chat.plan("Another one?")
                time.sleep(0.01)


def test_without_a_thread_the_copy_is_made_at_once(
    engines: Engines, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more threads are to be had (a limit of the system): the turn waits, and everything after it is right."""
    engine, start = engines("llama"), threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "strata-copier":
            raise RuntimeError("can't start new thread")
        start(thread)

    engine.state.close()
    with monkeypatch.context() as limited, Talk(engine, tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        limited.setattr(threading.Thread, "start", refused)
        first = talk.say(TEXTS[0])
        assert first.ticket.done.wait(60) and first.parked.segments and copies.made == 0
        talk.say(TEXTS[1])
    with Talk(engine, tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        assert talk.say(TEXTS[2]).source == "disk"
    assert copies.made


def test_a_capture_that_cannot_begin_leaves_nothing_behind(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines("gemma3")
    engine.clear()
    engine.read(text_tokens(100))
    expected = bytes(engine.capture(50, 100).rows or b"")

    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    for behind in (False, True):
        with monkeypatch.context() as failing:
            failing.setattr(SequenceState, "_copied", broken)
            with pytest.raises(MemoryError):
                engine.capture(0, 50, behind=behind)
        assert bytes(engine.capture(50, 100).rows or b"") == expected


def test_a_prune_is_not_locked_out_by_a_copy(engines: Engines, copies: Copies, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        copies.hold(0.5)
        talk.say(TEXTS[0])
        with talk.store.exclusive():
            assert not copies.go.is_set()


def test_a_copy_that_has_ended_holds_no_memory() -> None:
    """Who waits for it keeps it for as long as the state is in memory: that held a second arena's worth (W10)."""
    copier, memory = Copier(), np.zeros(8, np.uint8)
    held = weakref.ref(memory)

    def copy(target: np.ndarray = memory) -> None:
        target[:] = 1

    copying = copier.start(copy)
    del memory, copy
    copying.wait()
    copier.close()
    deadline = time.monotonic() + 10
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert held() is None


def test_closing_waits_for_the_copy_and_ends_the_thread() -> None:
    copier, done = Copier(), []

    def slow() -> None:
        time.sleep(0.1)
        done.append(threading.current_thread())

    copier.start(slow)
    copier.close()
    (thread,) = done
    thread.join(10)
    assert not thread.is_alive()
    copier.close()


# -- a chat


def test_B3_a_turn_ends_before_its_copy_and_the_next_one_is_right(
    engine: LlamaEngine, copies: Copies, tmp_path: Path
) -> None:
    """Held up at each turn: the replies, and the state that is restored afterwards, are those of a chat without."""
    with Talk(engine, tmp_path / "plain", policy=IN_MEMORY).open("one") as talk:
        expected = talk.say_all(TEXTS)
    replies, root = [], tmp_path / "data"
    with Talk(engine, root, policy=IN_MEMORY).open("one") as talk:
        for text in TEXTS:
            copies.go.wait()
            result = talk.say(text)
            replies.append(result.reply_tokens)
            copies.hold(0.1)
        assert result.ticket.done.wait(60)
    assert replies == expected and copies.made
    with Talk(engine, root, policy=IN_MEMORY).open("one") as talk:
        again = talk.say("Once more?")
        assert again.source == "disk" and again.not_reused is None
    with Talk(engine, tmp_path / "plain", policy=IN_MEMORY).open("one") as talk:
        assert talk.say("Once more?").reply_tokens == again.reply_tokens


def test_B3_the_turn_does_not_wait_for_the_copy(engine: LlamaEngine, copies: Copies, tmp_path: Path) -> None:
    with Talk(engine, tmp_path / "data", policy=IN_MEMORY).open("one") as talk:
        said: list[bool] = []
        copies.hold(1.0)
        result = talk.say(TEXTS[0])
        said.append(copies.go.is_set())
        assert result.ticket.done.wait(60)
        assert said == [False], "the turn ended only with its copy"
        assert result.parked.skipped is None and result.ticket.failure is None
