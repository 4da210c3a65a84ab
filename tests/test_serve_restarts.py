"""The rows A4 to A9, A11, A12 and P1 over HTTP: with settings of their own, over a signal, a kill, a damaged disk."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients import CHAT, SYSTEM, Talker, held_after, name_of, names, strata, until
from service import Service, assistant, cached, events, text_of, user
from turns import log_of, said, store_of


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Path:
    return tiny("llama")


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


def test_P1_a_root_is_named_while_nobody_asks(model: Path, tmp_path: Path) -> None:
    with Service.start(tmp_path, model) as service:
        service.chat([SYSTEM, user("Once.")])
        until(lambda: any(name.startswith("root-") for name in store_of(service.home).names("prefixes")))


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
