"""Prefixes and the writer, seen through HTTP: B3, B4, P2, P3, P4 of the semantics.

On a hybrid model, where state can be used only at the places that were kept: on attention alone any common beginning
would do, and a mark would show nothing.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from service import SMALL, Service, assistant, cached, read_tokens, text_of, user
from turns import store_of

COOK = {"role": "system", "content": "You are a cook of few words, and you answer every question with one dish. " * 3}
MARK = "strata_prefix"


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Path:
    return tiny("lfm2")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service.start(tmp_path_factory.mktemp("service"), model, "--ctx-size", "2048") as running:
        yield running


def tokens_of(service: Service, *messages: Mapping[str, Any]) -> int:
    """Tokens of these messages as the template writes them, with the words that ask for a reply."""
    prompt = service.post("/apply-template", {"messages": list(messages)}).json["prompt"]
    return len(service.post("/tokenize", {"content": prompt}).json["tokens"])


def opening(service: Service, *messages: Mapping[str, Any]) -> int:
    """Tokens that every conversation which goes on after these messages begins with."""
    prompt = service.post("/apply-template", {"messages": [*messages, user("HERE")]}).json["prompt"]
    return len(service.post("/tokenize", {"content": prompt.partition("HERE")[0]}).json["tokens"])


def conversations(home: Path) -> list[str]:
    return sorted(store_of(home).names())


def turn(answer: Mapping[str, Any]) -> dict[str, Any]:
    return assistant(text_of(answer))


def test_P2_a_new_conversation_starts_from_the_root_here_elsewhere_and_after_a_restart(
    model: Path, tmp_path: Path
) -> None:
    with Service.start(tmp_path, model) as service:
        first = service.chat([COOK, user("What goes with fennel?")])
        root = opening(service, COOK)
        assert cached(first) == 0 and root > 100
        second = service.chat([COOK, user("When are beans sown?")])
        assert cached(second) >= root
        command = [
            sys.executable,
            "-m",
            "strata_cli",
            "run",
            "-m",
            str(model),
            "-s",
            COOK["content"],
            "--json",
            "-n",
            "2",
        ]
        env = {"STRATA_HOME": str(service.home), "HOME": str(tmp_path), **SMALL}
        env["PYTHONPATH"] = str(Path(__file__).parent.parent)
        done = subprocess.run([*command, "--greedy", "Another cook."], capture_output=True, env=env, timeout=250)
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["data"]["tokens"]["reused"] >= root, told
        service.stop()
    with Service.start(tmp_path, model) as service:
        third = service.chat([COOK, user("And peas?")])
        assert cached(third) >= root
        cold = service.chat([{"role": "system", "content": "Other words."}, user("And peas?")])
        assert cached(cold) == 0
        assert len(conversations(service.home)) == 5


@pytest.mark.parametrize("how", ["number", "message"])
def test_P3_what_a_request_marks_is_where_the_next_one_starts(how: str, service: Service) -> None:
    shared = [user(f"A long recipe, marked by a {how}: " + "chop, stir, taste. " * 12), assistant("I have read it.")]
    marked, fields = shared, {MARK: 2}
    if how == "message":
        marked, fields = [shared[0], {**shared[1], MARK: True}], {}
    end = opening(service, *shared)
    service.chat([*marked, user("How long does it take?")], **fields)
    assert any(name.startswith("mark-") for name in store_of(service.home).names("prefixes"))
    other = service.chat([*shared, user("Can it be frozen?")])
    assert cached(other) == end

    plain = [user(f"A long recipe, not marked by a {how}: " + "chop, stir, taste. " * 12), assistant("I have read it.")]
    service.chat([*plain, user("How long does it take?")])
    assert cached(service.chat([*plain, user("Can it be frozen?")])) < 20, "without a mark nothing is kept there"


def test_P3_the_deepest_mark_wins_and_it_survives_a_restart(model: Path, tmp_path: Path) -> None:
    shared = [user("First part. " * 12), assistant("Yes."), user("Second part. " * 12), assistant("Yes, too.")]
    with Service.start(tmp_path, model) as service:
        service.chat([*shared[:2], user("One?")], **{MARK: 2})
        service.chat([*shared, user("Two?")], **{MARK: 4})
        end = opening(service, *shared)
        assert service.stop() in (0, 143)
    with Service.start(tmp_path, model) as service:
        assert cached(service.chat([*shared, user("Three?")])) == end


def test_P4_what_is_left_for_a_prefix_is_parked_however_much_they_share(service: Service) -> None:
    shared = [COOK, user("A menu for four, please. " * 8), assistant("With pleasure.")]
    before = len(conversations(service.home))
    one = [*shared, user("What comes first?")]
    one += [turn(service.chat(one, **{MARK: 3})), user("And then?")]
    other = [*shared, user("What comes last?")]
    other += [turn(service.chat(other)), user("And before it?")]
    assert len(conversations(service.home)) == before + 2
    for messages, text in ((one, "And then?"), (other, "And before it?")):
        told = service.chat(messages)
        assert read_tokens(told) <= tokens_of(service, user(text)) + 4, "all but the new turn is reused"
    assert len(conversations(service.home)) == before + 2, "each went on as itself"


def test_B3_a_write_that_fails_is_told_once_and_costs_no_answer(model: Path, tmp_path: Path) -> None:
    env = {"STRATA_STORE_MIN_FREE_DISK_MIB": str(1 << 30)}  # a petabyte: nothing may be written
    with Service.start(tmp_path, model, env=env) as service:
        messages: list[dict[str, Any]] = []
        for text in ("One.", "Two.", "Three."):
            messages.append(user(text))
            told = service.chat(messages)
            messages.append(turn(told))
        assert read_tokens(told) < told["usage"]["prompt_tokens"] / 2, "it is still in the engine"
        other = service.chat([user("Somebody else.")])
        assert text_of(other)
        again = service.chat([*messages, user("Four.")])
        assert cached(again) > 0, "it is still in memory"
        assert service.stop() in (0, 143)
    assert service.log.count("not saved") == 1, service.log
    assert not list((service.home / "data").rglob("*.seg")) and not list((service.home / "data" / "tmp").iterdir())
    assert len(conversations(service.home)) == 2, "text is kept"


def test_B4_leaving_writes_what_is_only_in_memory(model: Path, tmp_path: Path) -> None:
    env = {"STRATA_MEMORY_WRITE_POLICY": "evict"}
    one, other = [user("One conversation.")], [user("Another conversation.")]
    with Service.start(tmp_path, model, env=env) as service:
        for messages in (one, other):
            messages += [turn(service.chat(messages)), user("Go on.")]
        assert not list((service.home / "data").rglob("*.seg")), "it is in memory only"
        new_turn = tokens_of(service, user("Go on."))
        assert service.stop() in (0, 143)
    assert list((service.home / "data").rglob("*.seg"))
    with Service.start(tmp_path, model, env=env) as service:
        for messages in (one, other):
            assert read_tokens(service.chat(messages)) <= new_turn + 4, service.log
