"""The copy of a park goes on behind the prompt (design.md, "Parking"): nobody touches the engine before it has ended.

A copy can be held up and made to fail here, in the copier's thread alone: llama.cpp gives neither on demand.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chats import ALL, Talk
from engine_tools import FAMILIES, Engines, text_tokens

from strata_cli.engine import EngineFailed
from strata_cli.llama_engine.copier import Copier
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.llama_engine.state import SequenceState

IN_MEMORY = replace(ALL, min_free_ram_bytes=0)
EVICT = replace(IN_MEMORY, write_early=False)
TEXTS = ("The first of all questions, and it is not too short.", "And the second?", "And what follows from both?")


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest, engines: Engines) -> LlamaEngine:
    return engines(request.param)


class Copies:
    """What happens in the copier's thread: `go` lets a copy begin, `failures` counts those that are to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.failures, self.made = threading.Event(), 0, 0
        self.go.set()
        get = SequenceState._get

        def held_up(state: SequenceState, *arguments: object) -> None:
            if threading.current_thread().name == "strata-copier":
                assert self.go.wait(60)
                self.made += 1
                if self.failures:
                    self.failures -= 1
                    raise EngineFailed("the copy broke off")
            get(state, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(SequenceState, "_get", held_up)

    def hold(self, seconds: float) -> None:
        """Hold copies up from now on, for that long."""
        self.go.clear()
        threading.Timer(seconds, self.go.set).start()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def names_only_what_is_there(root: Path, talk: Talk) -> bool:
    head = talk.chat.opened.head if talk.chat.opened else None
    assert head is not None
    refs = [ref for state in head.states.values() for ref in (*state.segments, *state.parts)]
    return bool(refs) and all((root / "segments" / ref.file).exists() for ref in refs)


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


@pytest.mark.parametrize("policy", [IN_MEMORY, EVICT], ids=["park", "evict"])
def test_a_copy_that_fails_is_told_once_and_costs_reading_alone(
    engine: LlamaEngine, copies: Copies, tmp_path: Path, policy: object
) -> None:
    """The head never names what was not copied, and what comes later covers it again."""
    with Talk(engine, tmp_path / "plain", policy=IN_MEMORY).open("one") as talk:
        expected = talk.say_all(TEXTS)
    root = tmp_path / "data"
    with Talk(engine, root, policy=policy).open("one") as talk:  # type: ignore[arg-type]
        copies.failures = 1
        replies = [talk.say(TEXTS[0])]
        replies[0].ticket.done.wait(60)
        talk.chat.keeper.wait()
        talk.open("other")
        talk.say("Something else altogether.")
        talk.open("one")
        replies += [talk.say(text) for text in TEXTS[1:]]
        assert [result.reply_tokens for result in replies] == expected
        told = talk.notices
    assert sum("the copy broke off" in notice.text and notice.warning for notice in told) >= 1
    assert sum(notice.text.startswith("not saved") for notice in told) <= 1
    with Talk(engine, root, policy=IN_MEMORY).open("one") as talk:
        again = talk.say("Once more?")
        assert again.not_reused is None or again.not_reused.code != "missing"
        talk.chat.keeper.wait()
        assert names_only_what_is_there(root, talk)
