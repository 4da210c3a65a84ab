"""A copy behind the prompt that fails: it is told once and costs reading, whatever the policy and whatever follows."""

from dataclasses import replace
from pathlib import Path

import pytest
from chats import Talk
from engine_tools import Engines
from held_copies import IN_MEMORY, TEXTS, Copies, copies, engine, engines

from strata_cli import keeper
from strata_cli.errors import DiskFull, NoRoom
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.store import Store
from strata_cli.turn import Policy, TurnResult

__all__ = ["copies", "engine", "engines"]  # fixtures
EVICT = replace(IN_MEMORY, write_early=False)
both_policies = pytest.mark.parametrize("policy", [IN_MEMORY, EVICT], ids=["park", "evict"])


def settled(talk: Talk, text: str) -> TurnResult:
    """A turn, and all that is written behind it."""
    result = talk.say(text)
    assert result.ticket.done.wait(60)
    talk.chat.keeper.wait()
    return result


def not_saved(talk: Talk) -> list[str]:
    return [text for text in talk.warnings if text.startswith("not saved")]


def missing(root: Path, store: Store) -> list[str]:
    """What heads name and the directory does not have."""
    heads = [store.read_head(name) for name in store.names()]
    states = [state for head in heads for state in head.states.values()]
    files = [ref.file for state in states for ref in (*state.segments, *state.parts)]
    return [file for file in files if not (root / "segments" / file).exists()]


@both_policies
def test_it_is_told_once_and_costs_reading_alone(
    engine: LlamaEngine, copies: Copies, tmp_path: Path, policy: Policy
) -> None:
    """The replies are those of a chat without it, also after a switch; no head names what was never copied."""
    with Talk(engine, tmp_path / "plain", policy=IN_MEMORY).open("one") as talk:
        expected = talk.say_all(TEXTS)
    root = tmp_path / "data"
    with Talk(engine, root, policy=policy).open("one") as talk:
        copies.failures = 1
        replies = [settled(talk, TEXTS[0]).reply_tokens]
        talk.open("other")
        talk.say("Something else altogether.")
        talk.open("one")
        replies += [settled(talk, text).reply_tokens for text in TEXTS[1:]]
        assert replies == expected
    assert not_saved(talk) == ["not saved: the copy broke off"] and not missing(root, talk.store)
    assert talk.chat.keeper.shelf.tier.unwritten() == []


@both_policies
def test_what_comes_later_covers_it_again(engine: LlamaEngine, copies: Copies, tmp_path: Path, policy: Policy) -> None:
    with Talk(engine, tmp_path / "data", policy=policy).open("one") as talk:
        copies.failures = 1
        for text in TEXTS:
            settled(talk, text)
        held = len(talk.engine.tokens)
    (state,) = talk.store.read_head("one").states.values()
    assert state.tokens == held and not missing(tmp_path / "data", talk.store)


@both_policies
def test_its_figures_are_those_of_what_is_kept(
    engine: LlamaEngine, copies: Copies, tmp_path: Path, policy: Policy
) -> None:
    """And nobody is told that it was saved."""
    with Talk(engine, tmp_path / "data", policy=replace(policy, root_min_tokens=10**6)).open("one") as talk:
        copies.failures = 1
        parked = settled(talk, TEXTS[0]).parked
        assert parked.skipped == "failed"
        kept = sum(path.suffix in (".seg", ".part") for path in (tmp_path / "data" / "segments").rglob("*"))
        assert parked.segments == (kept if policy.write_early else len(talk.chat.keeper.shelf.tier))
        assert parked.tokens == 0 or not engine.memory.has_rows
        assert (parked.state_bytes == 0) == (parked.segments == 0)
        if not parked.segments:
            assert not [notice for notice in talk.notices if notice.text.startswith("saved ")]


def test_with_short_memory_it_holds_nothing_up(
    engines: Engines, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is over the bounds is written before each capture: a failed copy of before must not break each of them."""
    monkeypatch.setattr(keeper, "UNWRITTEN_BYTES", 1)
    with Talk(engines("llama"), tmp_path / "data", policy=EVICT).open("one") as talk:
        copies.failures = 1
        talk.say(TEXTS[0])
        talk.open("other")
        talk.say(TEXTS[2])
        talk.open("one")
        talk.chat.keeper.shelf.tier.limit_bytes = 1
        for text in TEXTS[1:]:
            assert settled(talk, text).parked.skipped is None
        assert len(not_saved(talk)) == 1
        talk.chat.check_leave()
        held = len(talk.engine.tokens)
    (state,) = talk.store.read_head("one").states.values()
    assert state.tokens == held


def test_its_memory_is_used_again(engines: Engines, copies: Copies, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "data", policy=replace(IN_MEMORY, ram_bytes=0)).open("one") as talk:
        copies.failures = 1
        for text in TEXTS:
            settled(talk, text)
        assert len(talk.chat.keeper.shelf.tier) == 0
        base = engine.state.arena._current
        assert base is not None and base.live == 0


def test_state_that_nobody_takes_is_named_by_no_head(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk and full memory, and the user leaves all the same: what was given up is in no head."""

    def full(*_: object, **__: object) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(Store, "write_segment", full)
    with Talk(engines("llama"), tmp_path / "data", policy=replace(IN_MEMORY, ram_bytes=0)).open("one") as talk:
        settled(talk, TEXTS[0])
        with pytest.raises(NoRoom):
            talk.chat.check_leave()
        talk.chat.leave_conversation(release=False)
    assert not missing(tmp_path / "data", talk.store)
