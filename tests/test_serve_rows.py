"""The rows A1, A2, A3, A10, A13 over HTTP; those that need a start of their own are in test_serve_restarts.py."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients import CHAT, SYSTEM, Talker, held_after, metric, name_of, names, settle, strata, until
from service import Service, assistant, cached, read_tokens, text_of, user
from turns import log_of, said, segment_files, store_of


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
