"""Plain text and tokens on the engine: what is reused, that nothing is kept, and the small answers beside it."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chats import SYSTEM, Talk
from engine_tools import FAMILIES, GREEDY, Engines, text_tokens

from strata_cli.errors import ContextFull, NoRoom, Refused, UsageProblem
from strata_cli.llama_engine.template import JinjaTemplate
from strata_cli.reply import ReplyOptions
from strata_cli.serve.completions import (
    Completed,
    CompletionRequest,
    complete,
    detokenized,
    prompt_tokens,
    templated,
    tokenized,
)
from strata_cli.turn import Watch

FIVE = ReplyOptions(GREEDY, limit_tokens=5)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


def ask(talk: Talk, prompt: Any, watch: Watch | None = None, **more: Any) -> Completed:
    session: Any = SimpleNamespace(chat=talk.chat, store=talk.store)
    return complete(session, CompletionRequest(prompt, FIVE, **more), watch or Watch())


def files(root: Path) -> list[str]:
    folders = ("conversations", "segments", "prefixes")
    return sorted(path.name for folder in folders for path in (root / folder).rglob("*") if path.is_file())


@pytest.mark.parametrize("family", FAMILIES)
def test_A1_nothing_of_a_completion_is_kept_and_its_tokens_are_reused(
    family: str, engines: Engines, tmp_path: Path
) -> None:
    tokens = tuple(text_tokens(300))
    with Talk(engines(family), tmp_path / "a") as talk:
        first = ask(talk, tokens)
        again = ask(talk, (*talk.engine.tokens, 70, 71))
        assert first.reused_tokens == 0 and again.reused_tokens == 304 and again.prompt_tokens == 306
        assert (first.finish, first.reply_tokens) == ("length", 5)
    assert files(tmp_path / "a") == []


@pytest.mark.parametrize("family", FAMILIES)
def test_A3_what_was_open_is_parked_and_comes_back(family: str, engines: Engines, tmp_path: Path) -> None:
    def talk_of(root: str, between: bool) -> tuple[Any, Any]:
        with Talk(engines(family), tmp_path / root).open("mine") as talk:
            talk.say("Name two rivers.")
            if between:
                ask(talk, tuple(text_tokens(300, seed=5)))
                assert talk.chat.opened is None
                talk.chat.open("mine")
            last = talk.say("Which is longer?")
            return last.reply_tokens, last.reused_tokens

    with_it, without = talk_of("a", True), talk_of("b", False)
    assert with_it[0] == without[0] and with_it[1] == without[1]


def test_state_of_a_conversation_serves_a_completion_that_begins_like_it(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a").open("mine") as talk:
        talk.say("Name two rivers. " * 10)
        held = tuple(talk.engine.tokens)
    before = files(tmp_path / "a")
    with Talk(engines("llama"), tmp_path / "a") as talk:
        warm = ask(talk, (*held, 70, 71))
    with Talk(engines("llama"), tmp_path / "b") as talk:
        cold = ask(talk, (*held, 70, 71))
    assert (warm.reused_tokens, cold.reused_tokens, warm.text) == (len(held), 0, cold.text)
    assert files(tmp_path / "a") == before


def test_a_client_that_goes_away_ends_it(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        gone = ask(talk, tuple(text_tokens(900)), Watch(cancelled=lambda: True))
        assert gone.finish == "interrupted" and gone.reply_tokens == 0 and talk.chat.opened is None
        assert ask(talk, tuple(text_tokens(900)), only_read=True).finish == "length"
        assert len(talk.engine.tokens) == 900


def test_what_cannot_fit_is_not_tokenised(engines: Engines, tmp_path: Path) -> None:
    """Tokenising cannot be broken off: a text whose bytes are too many is refused before."""
    long = "a" * (64 << 20)
    with Talk(engines("llama"), tmp_path / "a").open("mine") as talk:
        for refused in (
            lambda: ask(talk, long),
            lambda: tokenized({"content": long}, talk.chat),
            lambda: templated(talk.chat, [{"role": "user", "content": long}], None, talk.chat.day),
        ):
            with pytest.raises(ContextFull, match="67,108,864 bytes"):
                refused()
        assert talk.chat.name == "mine"
        assert len(tokenized({"content": "ab" * 5000}, talk.chat)["tokens"]) == 10_000, "it may be counted"


@pytest.mark.parametrize("prompt", ["", (), (-1,), (10**6,), (3, 10**30)])
def test_what_is_no_prompt(prompt: Any, engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a").open("mine") as talk:
        with pytest.raises(UsageProblem):
            ask(talk, prompt)
        with pytest.raises(NoRoom):
            ask(talk, tuple(text_tokens(1024)))
        assert talk.chat.name == "mine", "what was open stays open"


def test_tokens_and_back(engines: Engines) -> None:
    chat: Any = SimpleNamespace(engine=engines("llama"))
    vocabulary = chat.engine.vocabulary
    text = "H\u00e9llo <|im_end|>"
    plain = tokenized({"content": text, "parse_special": False}, chat)["tokens"]
    special = tokenized({"content": text}, chat)["tokens"]
    assert len(special) < len(plain) and prompt_tokens(text, vocabulary) == tuple(special)
    assert detokenized({"tokens": special}, vocabulary) == {"content": text}
    assert detokenized({"tokens": plain}, vocabulary) == {"content": text}
    pieces = tokenized({"content": "\u00e9a", "with_pieces": True}, chat)["tokens"]
    assert [each["piece"] for each in pieces] == [[0xC3], [0xA9], "a"]
    assert detokenized({"tokens": []}, vocabulary) == {"content": ""}
    for body in ({}, {"content": 7}, {"content": "a", "with_pieces": "yes"}):
        with pytest.raises(UsageProblem):
            tokenized(body, chat)
    for tokens in (None, "ab", [1.5], [True], [-1], [10**9]):
        with pytest.raises(UsageProblem):
            detokenized({"tokens": tokens}, vocabulary)


def test_a_template_is_applied_as_a_turn_would(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a").open("mine") as talk:
        said = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi <|im_end|>"}]
        answer = templated(talk.chat, said, None, talk.chat.day)["prompt"]
        tokens = talk.chat.prompt_for("Hi <|im_end|>").tokens
        assert answer == detokenized({"tokens": list(tokens)}, talk.engine.vocabulary)["content"]
        assert answer.endswith("<|im_start|>assistant\n")
        with pytest.raises(Refused):
            templated(talk.chat, [{"role": "user", "content": [{"type": "image_url"}]}], None, talk.chat.day)


def test_two_threads_render_without_each_others_settings() -> None:
    """/apply-template looks at the template while a turn renders it on the engine's thread."""
    text = "{{ strftime_now('%Y') }}{{ messages[0]['content'] }}{% if add_generation_prompt %}+{% endif %}"
    template = JinjaTemplate(text, "model", "", "")
    said = [{"role": "user", "content": "a"}]

    def render(year: int) -> set[str]:
        day, asks = date(year, 1, 1), bool(year % 2)
        return {template.render(said, tools=None, generation=asks, day=day) for _ in range(400)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(render, (2021, 2022, 2023, 2024)))
    finally:
        sys.setswitchinterval(before)
    assert found == [{"2021a+"}, {"2022a"}, {"2023a+"}, {"2024a"}]
