"""Issue 5 on the real engine: another reply, fewer turns, an edit, a fork, on every kind of memory, after a restart.

What is evaluated is counted exactly, and replies are compared with a process that took the same steps and never ended.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chats import ALL, SYSTEM, Talk
from engine_tools import Engines

from strata_cli.errors import NoRoom, Refused
from strata_cli.going_back import fork, retry_text, undo
from strata_cli.llama_engine import loading
from strata_cli.prompt import common
from strata_cli.reply import ReplyOptions
from strata_cli.turn import Watch

FAMILIES = ["llama", "gemma3", "lfm2", "mamba"]
SHORT = ["One two three?", "And four?", "Five?"]
LONG = ["Tell me of the sea. " * 9, "And of the wind that blows there. " * 6, "What then? " * 18]
GLUE = len("<|im_start|>assistant\n") + 8  # no tiny template adds more tokens than this around a message


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def told(talk: Talk, texts: list[str]) -> None:
    for text in texts:
        talk.say(text, 6)


def reopened(talk: Talk, restart: bool) -> Talk:
    """The same process, or another one."""
    if not restart:
        return talk
    root, engine = talk.store.root, talk.engine
    talk.close()
    return Talk(engine, root, policy=ALL).open("one")


@pytest.mark.parametrize("texts", [SHORT, LONG], ids=["20", "200"])
def test_C06_retry_reads_the_glue_alone(engines: Engines, tmp_path: Path, family: str, texts: list[str]) -> None:
    replies = []
    for restart in (False, True):
        talk = Talk(engines(family), tmp_path / f"home{restart}", policy=ALL).open("one")
        told(talk, texts)
        talk = reopened(talk, restart)
        result = talk.say(retry_text(talk.chat), 9)
        assert result.prompt_tokens - result.reused_tokens <= GLUE, (result.prompt_tokens, result.reused_tokens)
        assert result.not_reused is None
        replies.append(result.reply_tokens)
        branch = talk.store.read_log("one").branch()
        assert len(branch) == 2 * len(texts) and len(talk.store.read_log("one").alternatives()) == 1
        talk.close()
    assert replies[0] == replies[1]


@pytest.mark.parametrize("texts", [SHORT, LONG], ids=["20", "200"])
def test_B14_undo_and_a_new_turn_read_the_new_turn(
    engines: Engines, tmp_path: Path, family: str, texts: list[str]
) -> None:
    replies = []
    for restart in (False, True):
        talk = Talk(engines(family), tmp_path / f"home{restart}", policy=ALL).open("one")
        told(talk, texts)
        talk = reopened(talk, restart)
        assert undo(talk.chat, 1) == (len(texts) - 1, texts[-1])
        result = talk.say("Something else", 9)
        assert result.prompt_tokens - result.reused_tokens <= len("Something else") + 2 * GLUE + 8
        replies.append(result.reply_tokens)
        talk.close()
    assert replies[0] == replies[1]


def test_C06_an_edit_reads_the_message_and_its_glue(engines: Engines, tmp_path: Path, family: str) -> None:
    talk = Talk(engines(family), tmp_path / "home", policy=ALL).open("one")
    told(talk, LONG)
    talk = reopened(talk, restart=True)
    undo(talk.chat, 1)
    result = talk.say(LONG[-1] + "indeed", 6)
    assert result.prompt_tokens - result.reused_tokens <= len(LONG[-1]) + len("indeed") + 2 * GLUE + 8
    talk.close()


def test_a_fork_shares_every_file_and_leaves_the_other_as_it_is(engines: Engines, tmp_path: Path, family: str) -> None:
    talk = Talk(engines(family), tmp_path / "home", policy=ALL).open("one")
    told(talk, LONG)
    talk.chat.keeper.wait()
    files = set(talk.store.segment_sizes())
    assert fork(talk.chat, "two") == "two"
    assert set(talk.store.segment_sizes()) == files
    result = talk.say("And now?", 6)
    assert (
        result.conversation == "two" and result.prompt_tokens - result.reused_tokens <= len("And now?") + 2 * GLUE + 8
    )
    talk.close()
    with Talk(talk.engine, talk.store.root, policy=ALL).open("one") as other:
        again = other.say("And now?", 6)
        assert again.reply_tokens == result.reply_tokens and again.not_reused is None
        assert len(other.store.read_log("one").branch()) == 2 * len(LONG) + 2


def test_a_fork_at_a_turn_has_the_turns_before_it(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "home", policy=ALL).open("one") as talk:
        told(talk, LONG)
        whole = talk.store.read_log("one")
        fork(talk.chat, "first", 1)
        log = talk.store.read_log("first")
        assert [line.message for line in log.branch()] == [line.message for line in whole.branch()[:2]]
        assert common(log.tokens(), whole.tokens()) == len(log.tokens())
        result = talk.say("Else?", 4)
        assert result.prompt_tokens - result.reused_tokens <= len("Else?") + 2 * GLUE + 8
        fork(talk.chat, "root", 0)
        assert talk.store.read_log("root").branch() == () and talk.chat.system == SYSTEM


def test_B14_thirty_turns_keep_four_boundaries(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("lfm2", ctx_size=4096), tmp_path / "home", policy=ALL).open("one") as talk:
        told(talk, [f"Turn {i}?" for i in range(30)])
        talk.chat.keeper.wait()
        parts = [name for name in talk.store.segment_sizes() if name.endswith(".part")]
        state = next(iter(talk.store.read_head("one").states.values()))
        assert len(parts) <= 4 and {ref.file for ref in state.parts} == set(parts)
        assert len(state.segments) >= 30


def test_a_window_writes_its_own_rows(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("gemma3"), tmp_path / "home", policy=ALL).open("one") as talk:
        told(talk, ["Tell me of the sea. " * 20])
        result = talk.say("Hm?", 3)
        result.ticket.done.wait(20)
        own = result.prompt_tokens - result.reused_tokens + len(result.reply_tokens)
        sizes = talk.store.segment_sizes()
        state = next(iter(talk.store.read_head("one").states.values()))
        last, whole = max(state.parts, key=lambda ref: ref.end), max(ref.bytes for ref in state.parts)
        assert own < 64 and sizes[last.file] < whole * 0.8


@pytest.mark.parametrize("restart", [False, True])
def test_grow_reads_nothing_again(engines: Engines, tmp_path: Path, family: str, restart: bool) -> None:
    talk = Talk(engines(family), tmp_path / "home", policy=ALL).open("one")
    before = talk.engine.context_tokens
    told(talk, LONG)
    held = len(talk.engine.tokens)
    talk = reopened(talk, restart)
    try:
        talk.chat.grow(4 * before)
        assert talk.engine.context_tokens == 4 * before
        result = talk.say("And now?", 6)
        assert result.reused_tokens == held and result.not_reused is None
        talk.chat.keeper.wait()
        assert talk.store.read_head("one").engine["ctx_size"] == 4 * before
    finally:
        talk.close()
        talk.engine.grow(before)


def test_C34_a_full_context_stops_grows_or_drops(engines: Engines, tmp_path: Path, family: str) -> None:
    engine = engines(family)
    before = engine.context_tokens
    engine.grow(512)
    greedy = ReplyOptions(limit_tokens=8)
    greedy = replace(greedy, sampling=replace(greedy.sampling, greedy=True))
    try:
        with Talk(engine, tmp_path / "home", policy=ALL).open("one") as talk:
            told(talk, ["Tell me of the sea. " * 12])
            with pytest.raises(NoRoom, match="no room for an answer"):
                talk.say("More of it. " * 30, 8)
            assert len(talk.store.read_log("one").branch()) == 2
            dropped = talk.chat.turn("More of it. " * 20, replace(greedy, on_full="drop-oldest"), Watch())
            assert dropped.finish in ("stop", "length") and dropped.prompt_tokens < 512
            assert any("left out" in text for text in talk.warnings)
            grown = talk.chat.turn("More of it. " * 30, replace(greedy, on_full="grow"), Watch())
            assert talk.engine.context_tokens >= 1024 and grown.reused_tokens >= dropped.prompt_tokens
            assert len(talk.store.read_log("one").branch()) == 6
    finally:
        engine.grow(before)


def test_C34_a_reply_that_fills_the_context_goes_on_after_it_grew(
    engines: Engines, tmp_path: Path, family: str
) -> None:
    engine = engines(family)
    before = engine.context_tokens
    options = ReplyOptions(limit_tokens=0, on_full="grow")
    options = replace(options, sampling=replace(options.sampling, greedy=True), limit_tokens=300)
    replies = []
    try:
        for size in (256, 2048):
            engine.grow(size)
            with Talk(engine, tmp_path / f"home{size}", policy=ALL).open("one") as talk:
                found = talk.chat.turn("Count. " * 25, options, Watch())
                replies.append(found.reply_tokens)
        assert replies[0][:20] == replies[1][:20]
        if len(replies[1]) > 60:
            assert len(replies[0]) > 60, "the reply stopped where the context was full"
    finally:
        engine.grow(before)


def test_C34_a_warning_comes_once_at_four_fifths(engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    before = engine.context_tokens
    engine.grow(512)
    try:
        with Talk(engine, tmp_path / "home", policy=ALL).open("one") as talk:
            told(talk, ["Tell me of the sea. " * 10])
            assert not any(notice.code == "context" for notice in talk.notices)
            told(talk, ["More of it. " * 12, "And?"])
            warned = [notice.text for notice in talk.notices if notice.code == "context"]
            assert len(warned) == 1 and "of 512 tokens of the context are used" in warned[0]
    finally:
        engine.grow(before)


@pytest.mark.parametrize("architecture", ["deepseek4"])
def test_A13_an_architecture_that_breaks_the_recipe_is_refused(engines: Engines, architecture: str) -> None:
    """Before any call that would abort the process: right after the load, by the name in the file."""
    engine = engines("llama")
    facts = replace(engine.model, architecture=architecture)
    with pytest.raises(Refused, match=architecture):
        loading._refuse(engine._lc, engine._handles.model, facts)
    loading._refuse(engine._lc, engine._handles.model, engine.model)


def test_retry_goes_on_where_the_reading_of_a_prompt_was_interrupted(
    engines: Engines, tmp_path: Path, family: str
) -> None:
    talk = Talk(engines(family, batch_size=64), tmp_path / "home", policy=ALL).open("one")
    told(talk, SHORT[:1])
    read: list[int] = []
    stopped = Watch(progress=lambda done, _: read.append(done), cancelled=lambda: len(read) > 2)
    assert talk.say(LONG[0] * 4, watch=stopped).finish == "interrupted"
    result = talk.say(retry_text(talk.chat))
    assert result.reused_tokens == read[-1] < result.prompt_tokens and result.not_reused is None
    with Talk(engines(family, batch_size=64), tmp_path / "control", policy=ALL).open("one") as control:
        told(control, SHORT[:1])
        assert control.say(LONG[0] * 4).reply_tokens == result.reply_tokens
