"""The rows A1 to A13 of the semantics, seen by a client that sends its whole history over HTTP."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from service import SMALL, Service, assistant, cached, events, read_tokens, text_of, user
from turns import log_of, said, segment_files, store_of

SYSTEM = {"role": "system", "content": "You answer in few words, and you never repeat yourself. " * 2}
CHAT = "/v1/chat/completions"


def name_of(text: str) -> str:
    return "auto-" + hashlib.sha1(text.encode()).hexdigest()[:16]


def held_after(answer: Mapping[str, Any]) -> int:
    """Tokens that the engine had read when this answer ended: all but one that was chosen and not read."""
    usage, choice = answer["usage"], answer["choices"][0]
    return int(usage["prompt_tokens"] + usage["completion_tokens"]) - (choice["finish_reason"] == "length")


def metric(service: Service, name: str) -> float:
    found = re.search(rf"^strata_{name} (\S+)$", service.get("/metrics").data.decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settle(service: Service) -> None:
    """Until every turn's park has ended."""
    store = store_of(service.home)

    def written(name: str) -> bool:
        roles = [role for role, _ in said(service.home, name)]
        return roles[-1:] != ["assistant"] or store.read_head(name).turns == roles.count("user")

    until(lambda: all(map(written, store.names())))


class Talker:
    """One client with its history; `say` asks and remembers."""

    def __init__(self, *opening: dict[str, Any]) -> None:
        self.messages = list(opening)
        self.last: dict[str, Any] = {}

    def say(self, service: Service, text: Any, **fields: Any) -> dict[str, Any]:
        self.messages.append(user(text))
        self.last = service.chat(self.messages, **fields)
        self.messages.append(assistant(text_of(self.last)))
        return self.last


def strata(home: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One command beside the service; the `data` of its envelope."""
    command = [sys.executable, "-m", "strata_cli", *map(str, arguments), "--json"]
    source = str(Path(__file__).parent.parent)
    own = {"HOME": str(home.parent), "STRATA_HOME": str(home), "PYTHONPATH": source, **SMALL, **(env or {})}
    done = subprocess.run(command, env=own, capture_output=True, stdin=subprocess.DEVNULL, timeout=240)
    assert done.returncode == 0, done
    return dict(json.loads(done.stdout.splitlines()[-1])["data"])


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Path:
    return tiny("llama")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("rows")
    greedy = ["-m", model, "--greedy", "-n", "8", "--threads", "1"]
    strata(folder / "home", "run", *greedy, "-C", "notes", "Begun in a terminal.")
    with Service.start(folder, model, "--ctx-size", "8192", "--batch-size", "16") as running:
        yield running


def names(service: Service) -> list[str]:
    return sorted(store_of(service.home).names())


def test_A1_the_first_user_message_names_the_conversation(service: Service) -> None:
    talker = Talker(SYSTEM)
    talker.say(service, "Where is Lima?")
    talker.say(service, "And Quito?")
    name = name_of("Where is Lima?")
    assert [role for role, _ in said(service.home, name)] == ["user", "assistant"] * 2
    assert store_of(service.home).read_head(name).key == name.removeprefix("auto-")


def test_A1_what_has_no_user_text_stays_out_of_everything(service: Service) -> None:
    settle(service)
    before = names(service), metric(service, "parks_total")
    assert service.chat([SYSTEM, user("")])["choices"]
    assert service.post("/tokenize", {"content": "Where is Lima?"}).status == 200
    assert service.post("/v1/completions", {"prompt": "Where is Lima?", "max_tokens": 3}).status == 200
    assert (names(service), metric(service, "parks_total")) == before


def test_A1_strata_save_false_keeps_a_request_out(service: Service) -> None:
    talker = Talker(SYSTEM)
    first = talker.say(service, "Where is Rome?")
    before, stored = names(service), log_of(service.home, name_of("Where is Rome?"))
    again = service.chat([*talker.messages, user("Not for the books: and Bern?")], strata_save=False)
    assert cached(again) == held_after(first), "what is stored is used"
    assert service.chat([user("Nor this one.")], strata_save=False)["choices"]
    assert names(service) == before and log_of(service.home, name_of("Where is Rome?")) == stored
    assert "books" not in "".join(path.read_text() for path in (service.home / "data").rglob("*.jsonl"))
    assert cached(talker.say(service, "And Bern?")) >= held_after(first), "the conversation goes on where it stood"


def test_A2_messages_continue_what_they_begin_with(service: Service) -> None:
    talker = Talker(SYSTEM)
    first = talker.say(service, "Name a tree.")
    name, reply = name_of("Name a tree."), text_of(first)
    parts = [{"type": "text", "text": "  Name a tree.\n"}]
    thought = f"<think>A tree?</think>\n{reply} "
    other = [SYSTEM, user(parts), assistant([{"type": "text", "text": thought}]), user("Another one.")]
    before = names(service)
    second = service.chat(other)
    assert names(service) == before and cached(second) == held_after(first)
    assert said(service.home, name)[1] == ("assistant", reply), "the stored text stays as generated"


def test_A2_another_history_gets_a_name_of_its_own_and_its_state_by_tokens(service: Service) -> None:
    talker = Talker(SYSTEM)
    talker.say(service, "Name a flower of the mountains.")
    second = talker.say(service, "And one of the sea.")
    name = name_of("Name a flower of the mountains.")
    before, text = names(service), said(service.home, name)
    edited = [*talker.messages[:3], user("And one of the desert.")]
    other = service.chat(edited)
    assert sorted({*names(service)} - {*before}) == [f"{name}-2"]
    assert said(service.home, name) == text, "nothing is overwritten"
    assert cached(other) > len("Name a flower of the mountains."), "state is found by tokens"
    assert service.chat([SYSTEM, user("Name a flower of the mountains.")])["choices"]
    assert f"{name}-3" in names(service), "one user message without a reply is always a new conversation"
    assert cached(service.chat([*talker.messages, user("Thanks.")])) == held_after(second)


def test_A2_a_reply_is_generated_again(service: Service) -> None:
    talker = Talker(SYSTEM)
    talker.say(service, "Name a bird.")
    talker.say(service, "Name its colour.")
    before, reply = names(service), talker.messages[-1]["content"]
    again = service.chat(talker.messages[:-1])
    assert names(service) == before and text_of(again) == reply
    assert [line.message["role"] for line in log_of(service.home, name_of("Name a bird.")).lines if line.message].count(
        "assistant"
    ) == 3, "the other reply stays as an alternative"


def test_A2_a_client_continues_what_a_terminal_began_with_a_name(service: Service) -> None:
    (_, question), (_, reply) = said(service.home, "notes")
    answer = service.chat([user(question), assistant(reply), user("Goes on in an editor.")])
    assert read_tokens(answer) < 60 < cached(answer) + 40
    assert [text for role, text in said(service.home, "notes") if role == "user"] == [
        "Begun in a terminal.",
        "Goes on in an editor.",
    ]


def test_A2_a_tool_call_compares_as_json(service: Service) -> None:
    """The client's history says the call as an object of its own, and its result with another role."""
    call = {"id": "abc123def", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": [2]}'}}
    history = [
        SYSTEM,
        user("Call f for me."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc123def", "content": "three"},
    ]
    first = service.chat(history)
    before = names(service)
    spaced = {**call, "function": {"name": "f", "arguments": '{"y":[2],"x":1}'}}
    later = [*history[:2], {"role": "assistant", "content": "", "tool_calls": [spaced]}, history[3]]
    second = service.chat([*later, assistant(text_of(first)), user("Thanks.")])
    assert names(service) == before and cached(second) == held_after(first)


def test_A3_switching_parks_and_restores_and_staying_costs_nothing(service: Service) -> None:
    one, other = Talker(SYSTEM), Talker(SYSTEM)
    one.say(service, "One: how deep is the sea?")
    settle(service)
    files = [len(segment_files(service.home, name_of("One: how deep is the sea?")))]
    restores = metric(service, "restores_total")
    last = one.say(service, "And how cold?")
    assert cached(last) >= held_after(last) - 200 and metric(service, "restores_total") == restores
    other.say(service, "Other: how high is the sky?")
    settle(service)
    mine = segment_files(service.home, name_of("One: how deep is the sea?"))
    assert len(mine) > files[0], "parked before the other one is read"
    back = one.say(service, "And how salty?")
    assert cached(back) == held_after(last) and metric(service, "restores_total") > restores
    settle(service)
    assert mine < segment_files(service.home, name_of("One: how deep is the sea?")), "nothing is rewritten"


def test_A10_the_lines_after_a_park_and_a_restore(service: Service) -> None:
    one = Talker(SYSTEM)
    one.say(service, "What is said on stderr?")
    service.chat([SYSTEM, user("Something in between.")])
    one.say(service, "And then?")
    name = name_of("What is said on stderr?")
    until(lambda: service.log.count(f"to {name} in") == 2)
    assert re.search(rf"^\[strata\] saved [\d,]+ tokens \([\d.]+ [kMG]?B\) to {name} in \d+ ms$", service.log, re.M)
    assert re.search(rf"^\[strata\] restored [\d,]+ tokens from {name} in \d+ ms$", service.log, re.M)


def test_A13_what_cannot_be_kept_apart_is_refused_and_never_half_done(service: Service) -> None:
    settle(service)
    before = names(service), metric(service, "parks_total")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for body in (
        {"messages": [user([{"type": "text", "text": "See:"}, image])]},
        {"messages": [user("a"), assistant("b"), user([image])]},
        {"messages": [user("Twice, please.")], "n": 2},
    ):
        answer = service.post(CHAT, body)
        assert answer.status == 400 and re.search("images|one live", answer.error["message"]), answer.data
    assert (names(service), metric(service, "parks_total")) == before


def test_a_conversation_that_another_process_holds_is_answered_under_another_name(service: Service) -> None:
    talker = Talker(SYSTEM)
    talker.say(service, "Will I be held?")
    service.chat([SYSTEM, user("Something else.")])
    name, store = name_of("Will I be held?"), store_of(service.home)
    settle(service)
    with store.hold(name, 60):
        assert talker.say(service, "Am I held?")["choices"]
    assert f"{name}-2" in names(service) and f"{name} is not continued: " in service.log
    assert len(said(service.home, name)) == 2 and len(said(service.home, f"{name}-2")) == 4


def test_P1_a_root_is_named_while_nobody_asks(model: Path, tmp_path: Path) -> None:
    with Service.start(tmp_path, model) as service:
        service.chat([SYSTEM, user("Once.")])
        until(lambda: any(name.startswith("root-") for name in store_of(service.home).names("prefixes")))


def test_a_client_that_goes_away_while_its_prompt_is_read_cancels_it(service: Service) -> None:
    """Without that, each of these requests would leave its reply. A busy machine may miss the moment: three tries."""
    for attempt in range(3):
        long = f"A very long letter, {attempt}: " + "and so on, " * 650
        body = json.dumps({"messages": [user(long)], "max_tokens": 4}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        with service.raw(f"{head}{len(body)}\r\n\r\n".encode() + body):
            until(lambda: service.get("/slots").json[0]["is_processing"])
        assert service.chat([user("Next, please.")])["choices"]
        if [role for role, _ in said(service.home, name_of(long))] == ["user"]:
            return
    raise AssertionError("each prompt was read to its end, and answered")


# -- with settings of their own


def test_A4_what_is_short_keeps_its_text_and_no_state(model: Path, tmp_path: Path) -> None:
    env = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "512", "STRATA_AUTO_SESSIONS_ROOT_MIN_TOKENS": "256"}
    with Service.start(tmp_path, model, env=env) as service:
        talker = Talker()
        talker.say(service, "Short.")
        service.chat([user("Another one.")])
        again = talker.say(service, "Still short.")
        assert cached(again) < 20, "only what the engine still held"
        assert [role for role, _ in said(service.home, name_of("Short."))] == ["user", "assistant"] * 2
        assert list((service.home / "data" / "segments").rglob("*.seg")) == []
        long = Talker()
        first = long.say(service, "Long. " * 120)
        service.chat([user("Yet another one.")])
        assert cached(long.say(service, "Still long.")) == held_after(first) > 512


@pytest.fixture(scope="module")
def full(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that can keep state neither in memory nor on the disk; that of `kept` is there from before."""
    folder = tmp_path_factory.mktemp("full")
    strata(
        folder / "home", "run", "-m", model, "--greedy", "-n", "8", "--threads", "1", "-C", "kept", "I was kept. " * 20
    )
    env = {"STRATA_MEMORY_RAM_MIB": "0", "STRATA_STORE_MIN_FREE_DISK_MIB": "900000000"}
    with Service.start(folder, model, env=env) as running:
        yield running


def test_A5_what_fits_nowhere_is_left_and_the_request_is_answered_by_reading(full: Service) -> None:
    (_, question), (_, reply) = said(full.home, "kept")
    one, kept = Talker(), Talker(user(question), assistant(reply))
    assert cached(kept.say(full, "First of all.")) > 200, "where nothing is held, it is restored"
    one.say(full, "Nobody takes me.")
    assert cached(kept.say(full, "Am I read?")) < 20, "its state is there, and is not put over what is held"
    assert full.log.count("fits neither memory nor disk") == 2
    again = one.say(full, "Am I still here?")
    assert cached(again) < 20, "left, and so read"
    assert full.log.count("fits neither memory nor disk") == 3
    assert [role for role, _ in said(full.home, name_of("Nobody takes me."))] == ["user", "assistant"] * 2


def test_A6_no_failure_to_park_fails_a_request_and_it_is_told_once(full: Service) -> None:
    for number in range(3):
        assert full.chat([user(f"Request {number}.")])["choices"]
    assert full.log.count("not saved: ") == 1 and re.search(r"^\[strata\] not saved: .+$", full.log, re.M)


def test_A7_A8_a_signal_parks_what_is_held_and_the_next_start_brings_it_back(model: Path, tmp_path: Path) -> None:
    options = ["--ctx-size", "8192"]
    talker, other = Talker(SYSTEM), Talker(SYSTEM)
    with Service.start(tmp_path, model, *options) as service:
        other.say(service, "Somebody else.")
        last = talker.say(service, "I am held when the signal comes.")
        asked = [*talker.messages, user("Speak until you are stopped.")]
        body = {"messages": asked, "stream": True, "max_tokens": 7000, "temperature": 0}
        connection = service.connection()
        connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        stream = connection.getresponse()
        stream.read(2000)
        service.process.send_signal(signal.SIGTERM)
        rest = stream.read().decode()
        connection.close()
        assert service.process.wait(60) == 143
        assert '"code":"shutting_down"' in rest, "the client is told that this is not the whole answer"
    line = log_of(service.home, name_of("I am held when the signal comes.")).branch()[-1]
    assert line.message and line.message["role"] == "assistant" and line.message["content"]
    assert "interrupted" in line.marks
    with Service.start(tmp_path, model, *options) as service:
        told = [*asked, assistant(line.message["content"]), user("Go on.")]
        back = service.chat(told)
        assert cached(back) >= held_after(last) + len(line.tokens) - 1, "the interrupted reply is not read again"
        assert cached(other.say(service, "Me too.")) > 100
        assert service.stop() == 143


def test_A8_killed_between_requests_at_most_the_last_turn_is_read_again(model: Path, tmp_path: Path) -> None:
    one, other = Talker(SYSTEM), Talker(SYSTEM)
    with Service.start(tmp_path, model) as service:
        befores = [one.say(service, "First of one."), other.say(service, "First of the other.")]
        one.say(service, "Second of one.")
        other.say(service, "Second of the other.")
        service.process.kill()
        service.process.wait(60)
    with Service.start(tmp_path, model) as service:
        for talker, before in zip((one, other), befores, strict=True):
            assert cached(talker.say(service, "Are you there?")) >= held_after(before)


def test_A6_A11_what_cannot_be_restored_is_read_and_answered_the_same(model: Path, tmp_path: Path) -> None:
    one = Talker(SYSTEM)
    with Service.start(tmp_path, model) as service:
        one.say(service, "Will I be damaged?")
        good = service.chat([*one.messages, user("How are you?")], strata_save=False)
        service.stop()
    for path in (tmp_path / "home" / "data" / "segments").rglob("*.seg"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with Service.start(tmp_path, model) as service:
        again = one.say(service, "How are you?")
        assert text_of(again) == text_of(good) and cached(again) == 0
        assert re.search(r"^\[strata\] reused 0 of .* reading the rest: ", service.log, re.M)


def test_A9_the_newest_keep_their_state_and_text_is_never_removed(model: Path, tmp_path: Path) -> None:
    with Service.start(tmp_path, model, env={"STRATA_AUTO_SESSIONS_KEEP": "2"}) as service:
        for number in range(5):
            service.chat([user(f"Number {number}.")])
        asked = [name_of(f"Number {number}.") for number in range(5)]
        store = store_of(service.home)

        def with_state() -> list[str]:
            return [name for name in asked if store.read_head(name).states]

        until(lambda: len(with_state()) <= 2)
        assert asked[-1] in with_state()
        assert all([role for role, _ in said(service.home, name)] == ["user", "assistant"] for name in asked)


def test_A12_switched_off_only_named_text_is_kept(model: Path, tmp_path: Path) -> None:
    greedy = ["-m", model, "--greedy", "-n", "8", "--threads", "1"]
    strata(tmp_path / "home", "run", *greedy, "-C", "notes", "I have a name.")
    before = sorted((tmp_path / "home" / "data" / "segments").rglob("*.*"))
    with Service.start(tmp_path, model, env={"STRATA_AUTO_SESSIONS_ENABLED": "false"}) as service:
        talker = Talker()
        talker.say(service, "I have none.")
        talker.say(service, "Still none.")
        (_, question), (_, reply) = said(service.home, "notes")
        service.chat([user(question), assistant(reply), user("Said to a named one.")])
        assert service.stop() == 143
    assert names(service) == ["notes"]
    assert said(service.home, "notes")[2] == ("user", "Said to a named one.")
    assert sorted((tmp_path / "home" / "data" / "segments").rglob("*.*")) == before


def test_requests_are_answered_in_the_order_of_their_arrival(service: Service) -> None:
    """Three that arrive while a long one runs."""
    ends: list[str] = []
    body = {"stream": True, "temperature": 0}
    sockets = []
    for number, tokens in enumerate((600, 2, 2, 2)):
        asked = json.dumps({**body, "messages": [user(f"In order: {number}.")], "max_tokens": tokens}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
        sockets.append(service.raw(f"{head}\r\nContent-Length: {len(asked)}\r\n\r\n".encode() + asked))
        time.sleep(0.05)
    for connection in sockets:
        data = b""
        while more := connection.recv(65536):
            data += more
        connection.close()
        ends.append(data.decode())
    assert all("data: [DONE]" in each for each in ends)
    store = store_of(service.home)

    def moments() -> list[str]:
        return [store.read_head(name_of(f"In order: {number}.")).last_turn for number in range(4)]

    until(lambda: all(moments()))
    assert moments() == sorted(moments())


def test_a_queue_that_is_full_says_so(model: Path, tmp_path: Path) -> None:
    with Service.start(tmp_path, model, "--queue", "0", "--ctx-size", "8192") as service:
        connection = service.connection()
        body = {"messages": [user("Long.")], "stream": True, "max_tokens": 7000}
        connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        stream = connection.getresponse()
        stream.read(100)
        answer = service.post(CHAT, {"messages": [user("And me?")]})
        assert (answer.status, answer.error["code"]) == (503, "queue_full") and answer.headers["retry-after"]
        connection.close()
        stream.close()
        until(lambda: not service.get("/slots").json[0]["is_processing"])
        assert list(events(service.post(CHAT, {"messages": [user("Now?")], "max_tokens": 2, "stream": True}).data))
