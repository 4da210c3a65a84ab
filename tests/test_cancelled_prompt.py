"""A prompt that is cancelled while it is read: kept while its conversation is open, and nothing is left of it later."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chats import ALL, Talk
from engine_tools import Engines

from strata_cli.turn import Policy, Watch

LONG = "Tell me of the sea. " * 20


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


def cancelled(talk: Talk, text: str) -> None:
    """Asked, and given up once the prompt is read: its root and its end are captured."""
    result = talk.say(text, watch=Watch(cancelled=lambda: len(talk.engine.tokens) > len(LONG)))
    assert result.finish == "interrupted" and not result.reply_tokens


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_A5_what_a_cancelled_prompt_captured_goes_with_it(engines: Engines, tmp_path: Path, family: str) -> None:
    with Talk(engines(family), tmp_path / "home", policy=ALL).open("one") as talk:
        cancelled(talk, LONG)
        tier = talk.chat.keeper.shelf.tier
        assert tier.unwritten("one"), "kept while it may be asked again"
        talk.open("two").say("And you?")
        talk.chat.keeper.wait()
        assert tier.unwritten() == [], "nobody would ever write it"
        again = talk.open("one").say(LONG)
        assert again.reply_tokens and talk.warnings == []


def test_A5_nothing_of_it_keeps_anybody_from_leaving(engines: Engines, tmp_path: Path) -> None:
    """Memory that takes nothing, and a prompt that is provisional: no warning, and no question."""
    policy = Policy(min_tokens=0, root_min_tokens=0, ram_bytes=0)
    with Talk(engines("llama"), tmp_path / "home", policy=policy).open("one") as talk:
        cancelled(talk, LONG)
        talk.chat.check_leave()
        talk.open("two").say("And you?")
        assert talk.warnings == []


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_the_same_prompt_asked_again_goes_on_where_reading_ended(engines: Engines, tmp_path: Path, family: str) -> None:
    with Talk(engines(family), tmp_path / "home", policy=ALL).open("one") as talk:
        cancelled(talk, LONG)
        cancelled(talk, LONG)
        again = talk.say(LONG)
        assert again.reused_tokens > len(LONG) and again.reply_tokens
        talk.chat.keeper.wait()
        assert talk.chat.keeper.shelf.tier.unwritten() == [], "the turn that was answered is written whole"
        assert talk.chat.stored(talk.chat.root_tokens) is not None, "with the root that the first try captured"
