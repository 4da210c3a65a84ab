"""`--messages`: which conversation a stateless client's history belongs to (A1, A2), and what it costs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chats import Talk
from conftest import Result
from engine_tools import Engines
from turns import Forked, fork_server, forked  # noqa: F401

from strata_cli.errors import Refused, UsageProblem
from strata_cli.log import Line, Log
from strata_cli.messages import Incoming, compared, continued, kept_messages, named, read_messages, split, take_in
from strata_cli.names import key_of


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def log_of(*messages: dict[str, Any]) -> Log:
    lines = [Line(n, n - 1 or None, "message", "", message) for n, message in enumerate(messages, 1)]
    return Log(tuple(lines), ())


def incoming(*messages: dict[str, Any]) -> Incoming:
    return split(messages, None, "test")


# -- reading


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "{}",
        "[]",
        "[1]",
        '[{"role": "king", "content": ""}]',
        '[{"role": "user", "content": 7}]',
        "NaN",
        '[{"role": "user"}]',
        '[{"role": "tool", "content": null}]',
    ],
)
def test_what_is_no_list_of_messages(text: str) -> None:
    with pytest.raises(UsageProblem):
        read_messages(text, "--messages")


def test_media_are_refused_by_name() -> None:
    part = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(Refused, match="images"):
        read_messages(json.dumps([user([part])]), "--messages")


def test_system_prompts_open_and_the_last_turn_is_said() -> None:
    given = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user("1"), assistant("2")]
    with pytest.raises(UsageProblem, match="does not end"):
        split(given, None, "x")
    found = split(given, "3", "x")
    assert (found.system, found.said) == ("a\n\nb", user("3"))
    assert found.key == key_of("1")


# -- comparing (A2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a\nb"), user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
        (user(" a \n"), user("a")),
        (assistant("<think>hm</think>\n\nyes"), assistant("yes")),
        (assistant("hm</think>yes"), assistant("yes", reasoning_content="hm")),
        (
            assistant('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'),
            assistant(None, tool_calls=[{"function": {"name": "f", "arguments": '{ "x" : 1 }'}}]),
        ),
        (assistant(""), assistant(None)),
    ],
)
def test_A2_equal_messages(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compared(one) == compared(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), assistant("a")),
        (user("a b"), user("ab")),
        (user("<think>a</think>b"), user("b")),
        (
            assistant(None, tool_calls=[{"function": {"name": "f", "arguments": '{"x": 1}'}}]),
            assistant(None, tool_calls=[{"function": {"name": "f", "arguments": '{"x": 2}'}}]),
        ),
    ],
)
def test_A2_different_messages(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compared(one) != compared(other)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([user("1"), assistant("2"), user("3"), assistant("4"), user("5")], 4),
        ([user("1"), assistant("2"), user("3")], 3),  # the last reply is being regenerated
        ([user("1"), assistant("2"), user("other")], None),
        ([user("1"), assistant("other"), user("3"), assistant("4"), user("5")], None),
        ([user("1"), assistant("2"), user("3"), assistant("4 and more"), user("5")], 3),  # its beginning was stored
        ([user("1"), assistant("2"), user("3"), assistant("5"), user("6")], None),
        ([user("1")], None),
    ],
)
def test_A2_the_stored_messages_are_their_beginning(sent: list[dict[str, Any]], kept: int | None) -> None:
    log = log_of(user("1"), assistant("2"), user("3"), assistant("4"))
    assert kept_messages(log, incoming(*sent)) == kept


# -- on the engine


@pytest.fixture
def cli(forked: Forked) -> Forked:  # noqa: F811
    """The command line, forked from a process that has imported it."""
    return forked


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    made = Engines(tiny)
    yield made
    made.close()


def send(talk: Talk, *messages: dict[str, Any]) -> Any:
    """What `run --messages` does: find, open, take in, say."""
    history = incoming(*messages)
    talk.chat.leave_conversation()
    found = continued(talk.store, history)
    talk.chat.start(None) if found is None else talk.chat.open(found.name)
    talk.chat.set_system(history.system)
    take_in(talk.chat, history, found.kept if found else 0)
    return talk.say(history.said)  # type: ignore[arg-type]


def test_A1_A2_a_client_that_keeps_its_own_history(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, {"role": "system", "content": "Be brief."}, user("one"))
        assert first.conversation == f"auto-{key_of('one')}"
        history = [{"role": "system", "content": "Be brief."}, user("one"), assistant(first.reply)]
        second = send(talk, *history, user("two"))
    assert second.conversation == first.conversation
    assert second.reused_tokens >= first.prompt_tokens + len(first.reply_tokens) - 1
    with Talk(engines("llama"), tmp_path / "a") as talk:
        history += [user("two"), assistant(second.reply)]
        third = send(talk, *history, user("three"))
    assert third.conversation == first.conversation and third.source == "disk"
    assert third.reused_tokens >= second.prompt_tokens + len(second.reply_tokens) - 1


def test_A2_one_user_message_always_gets_a_name_of_its_own(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        names = [send(talk, user("one")).conversation for _ in range(3)]
    assert names == [f"auto-{key_of('one')}{end}" for end in ("", "-2", "-3")]


def test_A2_a_reply_is_regenerated_and_the_old_one_stays(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        second = send(talk, user("one"), assistant(first.reply), user("two"))
        again = send(talk, user("one"), assistant(first.reply), user("two"))
        log = talk.store.read_log(first.conversation)
    assert again.conversation == first.conversation
    assert again.reply_tokens == second.reply_tokens  # greedy
    assert again.prompt_tokens - again.reused_tokens <= 30
    assert len(log.branch()) == 4 and len(log.alternatives()) == 1


def test_A2_another_history_is_another_conversation_and_state_is_found_all_the_same(
    engines: Engines, tmp_path: Path
) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        send(talk, user("one"), assistant(first.reply), user("two"))
        other = send(talk, user("one"), assistant(first.reply), user("something else"))
        assert other.conversation == f"auto-{key_of('one')}-2"
        assert other.reused_tokens >= first.prompt_tokens
        assert len(talk.store.read_log(first.conversation).branch()) == 4


@pytest.mark.parametrize("reply", ["more", "another"])
def test_A2_a_reply_that_the_client_knows_otherwise_keeps_the_line_that_it_answers(
    reply: str, engines: Engines, tmp_path: Path
) -> None:
    """One that goes on beyond what is stored is taken for the stored one; any other with `--replace`."""
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        second = send(talk, user("one"), assistant(first.reply), user("two"))
        told = f"{second.reply.strip()} and more" if reply == "more" else "Something else."
        sent = [user("one"), assistant(first.reply), user("two"), assistant(told), user("three")]
        name = str(first.conversation)
        where = continued(talk.store, incoming(*sent))
        if reply == "more":
            assert where is not None and where.name == name
        else:
            assert where is None
            where = named(talk.store, name, incoming(*sent), talk.store.read_head(name), replace=True)
            assert where is not None
        talk.chat.leave_conversation()
        talk.chat.open(name)
        take_in(talk.chat, incoming(*sent), where.kept)
        third = talk.say(sent[-1])  # type: ignore[arg-type]
        log = talk.store.read_log(name)
        said = [(line.message or {})["content"] for line in log.branch()]
    assert said == [*(message["content"] for message in sent), third.reply]
    assert third.reused_tokens >= second.prompt_tokens - 1, "all that both say is reused"


def test_A2_a_line_that_waits_for_its_reply_stays_when_another_is_said(engines: Engines, tmp_path: Path) -> None:
    """A client gives a request up while its prompt is read, and sends the question along with the next one."""
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        name, history = str(first.conversation), [user("one"), assistant(first.reply)]
        opened = talk.chat.opened
        assert opened is not None
        opened.append(parent=opened.answered[-1].id, kind="message", message=user("two, which waits"))
        sent = [*history, user("two, which waits"), user("three")]
        second = send(talk, *sent)
        said = [(line.message or {})["content"] for line in talk.store.read_log(name).branch()]
        assert second.conversation == name and said == [*(each["content"] for each in sent), second.reply]
        assert "two, which waits" in read_by(talk)
        again = send(talk, *sent, assistant(second.reply), user("four"))
        assert again.reused_tokens >= second.prompt_tokens


def test_A2_what_a_full_context_left_out_is_said_again_by_a_client(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        opened = talk.chat.opened
        assert opened is not None
        talk.chat._dropped = opened.answered[0].id
        second = talk.say("two")
        assert "one" not in read_by(talk), "it is left out, as a full context does"
        send(talk, user("one"), assistant(first.reply), user("two"), assistant(second.reply), user("three"))
        assert "one" in read_by(talk) and "three" in read_by(talk)


def read_by(talk: Talk) -> str:
    """What the engine holds, as text."""
    piece = talk.engine.vocabulary.piece
    return b"".join(piece(token) for token in talk.engine.tokens).decode(errors="replace")


def test_A2_a_named_conversation_is_found_too(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        talk.chat.start("mine")
        first = talk.say("one")
        assert send(talk, user("one"), assistant(first.reply), user("two")).conversation == "mine"


def test_a_tool_result_is_said_as_the_tools(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        first = send(talk, user("one"))
        done = send(talk, user("one"), assistant(first.reply), {"role": "tool", "content": "42"})
        lines = talk.store.read_log(str(done.conversation)).branch()
    assert [(line.message or {})["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]


def test_messages_that_nobody_answered_here_are_history(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        done = send(talk, user("one"), assistant("a reply from elsewhere"), user("two"), user("three"))
        prompt = bytes(b"".join(talk.engine.vocabulary.piece(token) for token in talk.engine.tokens))
        assert prompt.count(b"a reply from elsewhere") == 1 and b"two" in prompt and b"three" in prompt
        said = [user("one"), assistant("a reply from elsewhere"), user("two"), user("three"), assistant(done.reply)]
        again = send(talk, *said, user("four"))
    assert again.conversation == done.conversation and again.source == "live"


# -- the command line


@pytest.fixture
def told(cli: Forked, tiny: Callable[..., Path]) -> Callable[..., Result]:
    def tell(messages: list[dict[str, Any]], *flags: str, code: int = 0) -> Result:
        (cli.folder / "m.json").write_text(json.dumps(messages))
        model = ["-m", str(tiny("llama")), "--greedy", "-n", "8", "--json", "--threads", "1"]
        env = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}
        return cli("run", "--messages", "m.json", *flags, *model, env=env, code=code)

    return tell


def test_run_messages(told: Callable[..., Result], cli: Forked) -> None:
    first = told([user("one")]).envelope["data"]
    history = [user("one"), assistant(first["reply"]), user("two")]
    second = told(history).envelope["data"]
    assert second["conversation"] == first["conversation"] == f"auto-{key_of('one')}"
    assert second["tokens"]["reused"] >= first["tokens"]["prompt"]
    assert "do not continue" in told([user("x"), assistant("y"), user("z")], "-C", first["conversation"], code=2).stdout
    before = (cli.home / "data" / "conversations" / f"{first['conversation']}.jsonl").read_bytes()
    plan = told([*history, assistant(second["reply"]), user("three")], "--plan").envelope["data"]
    assert plan["tokens"]["reused"] >= second["tokens"]["prompt"]
    assert (cli.home / "data" / "conversations" / f"{first['conversation']}.jsonl").read_bytes() == before
    replaced = told([user("x"), assistant("y"), user("z")], "-C", first["conversation"], "--replace").envelope["data"]
    assert replaced["conversation"] == first["conversation"]


def test_save_messages(told: Callable[..., Result], cli: Forked, tiny: Callable[..., Path]) -> None:
    given = [{"role": "system", "content": "You are an agent."}, user("one"), assistant("two")]
    (cli.folder / "m.json").write_text(json.dumps(given))
    saved = cli("save", "job", "--messages", "m.json", "-m", tiny("llama"), "--json", code=0).envelope["data"]
    assert (saved["name"], saved["turns"]) == ("job", 1) and saved["usable"] and saved["tokens"] > 30
    assert saved["bytes_written"] > 1000 and saved["segments"] >= 1
    data = told([*given, user("three")]).envelope["data"]
    assert data["conversation"] == "job"
    assert data["tokens"]["reused"] >= saved["tokens"] - 1
    assert cli("save", "job", "--messages", "m.json", "-m", tiny("llama")).exit_code == 2
