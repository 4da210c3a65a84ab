"""Templates that rewrite history, what a turn says of it (V2), and stopping at any moment, on every kind of memory."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chats import ALL, GREEDY, Talk
from engine_tools import FAMILIES, Engines
from faulty_files import FailingFiles

from strata_cli.errors import NoRoom
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.reply import ReplyOptions
from strata_cli.turn import Policy, Watch

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THOUGHT, ANSWER = "let me think of it for long, and then for longer. " * 3, "It is four."
GLUE = 64


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(lambda family, seed: tiny(family, seed=seed, template=THINKING))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def plain(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


def scripted(engine: LlamaEngine, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reply is this text: noise never writes what a reasoning model does."""
    tokens = iter(
        [*engine.vocabulary.tokenize(text, special=True), engine.vocabulary.tokenize("<|im_end|>", special=True)[0]]
    )
    monkeypatch.setattr(engine, "sample", lambda: next(tokens))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("restart", [False, True])
def test_C17_dropped_reasoning_costs_the_last_reply_and_the_new_turn(
    engines: Engines, tmp_path: Path, family: str, restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(family, ctx_size=4096)
    talk = Talk(engine, tmp_path / "home", policy=ALL).open("one")
    for number in range(3):
        scripted(engine, f"<think>{THOUGHT}</think>\n{ANSWER}", monkeypatch)
        result = talk.say(f"Question {number}?", 400)
        if number:
            assert result.prompt_tokens - result.reused_tokens <= len(ANSWER) + len("Question 1?") + GLUE
            assert result.not_reused is not None and result.not_reused.code in ("rewritten", "window")
        assert THOUGHT in result.reply
        if restart:
            talk.close()
            talk = Talk(engine, talk.store.root, policy=ALL).open("one")
    talk.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_C19_a_reply_whose_tokens_do_not_round_trip_is_not_read_again(
    plain: Engines, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ways to write a space: the sampled one is kept."""
    engine = plain(family)
    with Talk(engine, tmp_path / "home", policy=ALL).open("one") as talk:
        vocabulary = engine.vocabulary
        byte_space = next(t for t in range(len(vocabulary)) if vocabulary.piece(t) == b" " and t < 260)
        tokens = [*vocabulary.tokenize("a", special=False), byte_space, *vocabulary.tokenize("b", special=False)]
        assert vocabulary.tokenize("a b", special=False) != tokens
        queue = iter([*tokens, vocabulary.tokenize("<|im_end|>", special=True)[0]])
        monkeypatch.setattr(engine, "sample", lambda: next(queue))
        first = talk.say("Hm?", 20)
        assert (first.reply, list(first.reply_tokens)) == ("a b", tokens)
        monkeypatch.undo()
        second = talk.say("And?", 3)
        assert second.not_reused is None and second.reused_tokens == first.prompt_tokens + len(tokens)


def test_V2_a_turn_says_why_not_more_was_reused(plain: Engines, tmp_path: Path) -> None:
    engine = plain("llama")
    with Talk(engine, tmp_path / "home", policy=ALL).open("one") as talk:
        first = talk.say("Tell me of the sea. " * 5, 6)
        assert first.not_reused is None
        talk.chat.set_system("Another system prompt.")
        changed = talk.say("And now?", 6)
        assert changed.not_reused is not None and changed.not_reused.code == "rewritten"
        assert 0 < changed.not_reused.at_token < first.prompt_tokens
        assert any("reading the rest" in notice.text for notice in talk.notices)


@pytest.mark.parametrize("family", FAMILIES)
def test_C31_stopped_while_the_prompt_is_read(plain: Engines, tmp_path: Path, family: str) -> None:
    """The text waits for its answer, and the same line again answers it, from what was read by then."""
    engine = plain(family, batch_size=64)
    with Talk(engine, tmp_path / "home", policy=ALL).open("one") as talk:
        talk.say("One.", 4)
        before = len(engine.tokens)
        calls = iter([False, False, True])
        stopped = talk.say("Tell me of the sea. " * 12, 4, watch=Watch(cancelled=lambda: next(calls, True)))
        assert stopped.finish == "interrupted" and stopped.reply == "" and len(engine.tokens) > before
        again = talk.say("Tell me of the sea. " * 12, 4)
        assert again.reused_tokens >= before and again.reply_tokens
        assert len(talk.store.read_log("one").branch()) == 4
    with Talk(plain(family, batch_size=64), tmp_path / "calm", policy=ALL).open("one") as talk:
        talk.say("One.", 4)
        calm = talk.say("Tell me of the sea. " * 12, 4)
    if not engine.memory.has_parts:
        assert calm.reply_tokens[0] == again.reply_tokens[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("after", [1, 2, 5])
def test_C31_stopped_while_the_reply_is_written(plain: Engines, tmp_path: Path, family: str, after: int) -> None:
    """What was shown is kept, marked, and the next turn goes on from it, also after a restart."""
    engine = plain(family)
    shown: list[str] = []
    talk = Talk(engine, tmp_path / "home", policy=ALL).open("one")
    result = talk.say("Count.", 40, watch=Watch(show=shown.append, cancelled=lambda: len(shown) >= after))
    assert result.finish == "interrupted" and "".join(shown) == result.reply
    line = talk.store.read_log("one").branch()[-1]
    assert line.marks == ("interrupted",) and line.tokens == result.reply_tokens
    talk.close()
    with Talk(engine, talk.store.root, policy=ALL).open("one") as later:
        following = later.say("Go on.", 4)
        assert following.not_reused is None
        assert following.prompt_tokens - following.reused_tokens <= len("Go on.") + GLUE


def test_A5_what_nobody_can_keep_is_left_only_when_asked_twice(plain: Engines, tmp_path: Path) -> None:
    class FullDisk(FailingFiles):
        full = False

        def create(self, path: Path, reserve_bytes: int = 0) -> int:
            if self.full and reserve_bytes > 5000:
                raise OSError(errno.ENOSPC, "no space")
            return super().create(path, reserve_bytes)

    files = FullDisk()
    policy = Policy(min_tokens=0, root_min_tokens=0, ram_bytes=0, min_free_ram_bytes=0)
    with Talk(plain("llama"), tmp_path / "home", policy=policy, files=files).open("one") as talk:
        talk.say("Tell me of the sea.", 6)
        talk.chat.check_leave()
        files.full = True
        talk.say("And of the wind.", 6)
        with pytest.raises(NoRoom, match="neither memory nor disk"):
            talk.chat.check_leave()
        assert talk.chat.name == "one"
        talk.chat.check_leave()
        talk.chat.start("two")
        files.full = False
        assert talk.say("Hello.", 4).conversation == "two"
        talk.chat.open("one")
        result = talk.chat.turn("And?", ReplyOptions(GREEDY, limit_tokens=4), Watch())
        assert result.reply_tokens and len(talk.store.read_log("one").branch()) == 6
