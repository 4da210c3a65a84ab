"""Prefixes on the real engine: roots that are kept by themselves, and openings that somebody asked for (P1 to P5)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import disk_bytes
from turns import Turns, fork_server, forked, held_after, said, store_of  # noqa: F401

from strata_cli.inventory import take_inventory

SYSTEM = "You answer in few words, and never twice the same. " * 2
TOOLS = [{"type": "function", "function": {"name": "look", "description": "look around", "parameters": {}}}]
ENV = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0", "STRATA_AUTO_SESSIONS_ROOT_MIN_TOKENS": "32"}
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def slow(family: str) -> Any:
    return pytest.param(family, marks=pytest.mark.slow)


@pytest.fixture
def turns(forked: Any, tiny: Any) -> Turns:  # noqa: F811
    return Turns(forked, tiny("llama"), env=ENV)


def prefixes(turns: Turns) -> list[dict[str, Any]]:
    return turns.strata("prefix", "list", "--json", code=0).data["prefixes"]


def evaluated(data: dict[str, Any]) -> int:
    return data["tokens"]["evaluated"]


@pytest.mark.parametrize("family", ["llama", "gemma3", "lfm2", "mamba"])
def test_P1_P2_a_root_is_kept_once_and_found_by_everybody(turns: Turns, tiny: Any, family: str) -> None:
    turns = replace(turns, model=tiny(family))
    first = turns.run("-s", SYSTEM, "What is first?", code=0).data
    (root,) = prefixes(turns)
    assert root["name"].startswith("root-") and root["pinned"] is False and root["title"] == SYSTEM[:60].strip()
    assert root["usable"] and root["tokens"] >= len(SYSTEM)
    another = turns.run("-s", SYSTEM, "Quite another thing?", code=0).data
    assert another["tokens"]["reused"] == root["tokens"]
    assert evaluated(another) == another["tokens"]["prompt"] - root["tokens"] < evaluated(first)
    same_process = turns.loop("Say a.", ["/new"], "Tell b!", ["/new", "mine"], "Now c.", start=["-s", SYSTEM])
    for data in (same_process[0], same_process[2], same_process[4]):
        assert data["tokens"]["reused"] == root["tokens"]
    assert [each["name"] for each in prefixes(turns)] == [root["name"]]
    turns.run("-s", SYSTEM + "Differently.", "What is first?", code=0)
    assert len(prefixes(turns)) == 2


def test_P1_tools_belong_to_the_root(turns: Turns, tiny: Any, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    turns = replace(turns, model=tiny("llama", template=WITH_TOOLS))
    turns.run("-s", SYSTEM, "--tools", tools, "One?", code=0)
    (root,) = prefixes(turns)
    data = turns.run("-s", SYSTEM, "--tools", tools, "Two?", code=0).data
    assert data["tokens"]["reused"] == root["tokens"] > len(SYSTEM) + len(json.dumps(TOOLS))
    assert turns.run("-s", SYSTEM, "Two?", code=0).data["tokens"]["reused"] < 32


def test_P1_a_short_root_is_no_prefix(turns: Turns) -> None:
    turns.run("-s", "Short.", "What is first?", code=0)
    assert prefixes(turns) == []


def test_P1_below_the_minimum_nothing_is_made(turns: Turns) -> None:
    turns = replace(turns, env={**ENV, "STRATA_AUTO_SESSIONS_MIN_TOKENS": "5000"})
    turns.run("-s", SYSTEM, "What is first?", code=0)
    assert prefixes(turns) == [] and not take_inventory(store_of(turns.strata.home)).segments


def test_P2_a_root_shorter_than_the_minimum_is_used_all_the_same(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "What is first?" * 20, code=0)
    (root,) = prefixes(turns)
    turns = replace(turns, env={**ENV, "STRATA_AUTO_SESSIONS_MIN_TOKENS": str(root["tokens"] + 100)})
    assert turns.run("-s", SYSTEM, "Short?", code=0).data["tokens"]["reused"] == root["tokens"]


def test_P2_the_state_of_the_first_may_go_and_the_root_stays(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "What is first?", code=0)
    (root,) = prefixes(turns)
    turns.strata("prune", "-y", "--keep", "0", code=0)
    assert turns.run("-s", SYSTEM, "Other?", code=0).data["tokens"]["reused"] == root["tokens"]


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_P3_a_prefix_by_hand_is_read_once_and_pinned(turns: Turns, tiny: Any, family: str) -> None:
    turns = replace(turns, model=tiny(family), env={**ENV, "STRATA_AUTO_SESSIONS_MIN_TOKENS": "5000"})
    made = turns.strata("prefix", "add", "agent", "-s", SYSTEM, "-m", turns.model, "--json", env=turns.env, code=0).data
    assert made["evaluated"] == made["tokens"] and made["bytes_written"] > 0
    (listed,) = prefixes(turns)
    assert listed["pinned"] and listed["tokens"] == made["tokens"]
    for start in (["-s", SYSTEM], ["--prefix", "agent"], ["--prefix", "agen"]):
        data = turns.run(*start, "What now?", code=0).data
        assert data["tokens"]["reused"] == made["tokens"] and data["restore"]["from"] == "disk"
    again = turns.strata("prefix", "add", "agent", "-s", SYSTEM, "-m", turns.model, env=turns.env, code=2)
    assert "already" in again.stderr
    longer = turns.strata(
        "prefix", "add", "longer", "-s", SYSTEM, "-m", turns.model, "--json", env=turns.env, code=0
    ).data
    assert longer["reused"] == longer["tokens"] and longer["evaluated"] == 0


def test_P3_messages_make_a_deeper_prefix_and_the_deepest_wins(turns: Turns, tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Here is a long document." * 3},
        {"role": "assistant", "content": "Read."},
    ]
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(messages))
    turns.strata("prefix", "add", "short", "-s", SYSTEM, "-m", turns.model, env=turns.env, code=0)
    deep = turns.strata(
        "prefix", "add", "deep", "--messages", path, "-m", turns.model, "--json", env=turns.env, code=0
    ).data
    assert 0 < deep["reused"] < deep["tokens"]
    first = turns.run("--prefix", "deep", "-C", "one", "What does it say?", code=0).data
    second = turns.run("--prefix", "deep", "And what not?", code=0).data
    assert first["tokens"]["reused"] == second["tokens"]["reused"] == deep["tokens"]
    assert [role for role, _ in said(turns.strata.home, "one")] == ["user", "assistant", "user", "assistant"]
    turn = turns.say("one", "More?")
    assert evaluated(turn) < 40
    turns.strata("run", "-m", turns.model, "--prefix", "deep", "-C", "one", "No", env=turns.env, code=2)
    turns.strata("run", "-m", turns.model, "--prefix", "none", "No", env=turns.env, code=10)


@pytest.mark.parametrize("family", ["llama", "lfm2", slow("gemma3"), slow("mamba")])
def test_P3_a_pin_in_the_loop(turns: Turns, tiny: Any, family: str) -> None:
    turns = replace(turns, model=tiny(family), env={**ENV, "STRATA_AUTO_SESSIONS_MIN_TOKENS": "5000"})
    _, pinned, began, turn = turns.loop(
        "Read this long document: " + "words " * 20, ["/pin"], ["/prefix", "pin-"], "What now?", start=["-s", SYSTEM]
    )
    assert began["prefix"] == pinned["prefix"] and pinned["prefix"].startswith("pin-")
    assert turn["tokens"]["reused"] == pinned["tokens"] and turn["conversation"].endswith("-2")
    later = turns.run("--prefix", pinned["prefix"], "And later?", code=0).data
    assert later["tokens"]["reused"] == pinned["tokens"] and later["conversation"].endswith("-3")
    (listed,) = prefixes(turns)
    assert listed["pinned"] and listed["tokens"] == pinned["tokens"]
    turns.strata("prune", "-y", "--keep", "0", "--max-size", "1B", code=3)
    assert turns.run("--prefix", "pin-", "At last?", code=0).data["tokens"]["reused"] == pinned["tokens"]


def test_P3_nothing_can_be_pinned_before_something_was_said(turns: Turns) -> None:
    result = turns.run("--repl", "jsonl", stdin='{"command": "/pin"}\n')
    assert result.lines[0]["error"]["code"] == "usage"
    lines = '{"command": "/prefix", "args": ["none"]}\n{"command": "/prefix"}\n'
    result = turns.run("--repl", "jsonl", stdin=lines)
    assert result.lines[0]["error"]["code"] == "not_found" and result.lines[1]["data"] == {"prefixes": []}


def test_P4_what_is_left_behind_is_parked(turns: Turns) -> None:
    turns.strata("prefix", "add", "agent", "-s", SYSTEM, "-m", turns.model, env=turns.env, code=0)
    first, _, second, back, again = turns.loop(
        "Tell one.",
        ["/prefix", "agent"],
        "Tell two.",
        ["/switch", "kept"],
        "And more?",
        start=["--prefix", "agent", "-C", "kept"],
    )
    assert first["conversation"] == "kept" and second["conversation"].startswith("auto-") and back["turns"] == 1
    assert again["tokens"]["reused"] >= held_after(first) - 1


def test_P5_a_use_is_noted_and_keeps_it(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "What is first?", code=0)
    (root,) = prefixes(turns)
    store = store_of(turns.strata.home)
    head = store.read_head(root["name"], "prefixes")
    old = "2020-01-01T00:00:00.000000Z"
    store.write_head(replace(head, updated=old, created=old), "prefixes")
    assert [i["name"] for i in turns.strata("prune", "-n", "--json", code=0).data["items"]] == [root["name"]]
    turns.run("-s", SYSTEM, "What is next?", code=0)
    assert turns.strata("prune", "-n", "--json", code=0).data["items"] == []
    assert prefixes(turns)[0]["updated"] > old


def test_showing_pinning_and_removing(turns: Turns) -> None:
    turns.strata("prefix", "add", "agent", "-s", SYSTEM, "-m", turns.model, env=turns.env, code=0)
    turns.strata("prefix", "add", "agent2", "-s", "Another one.", "-m", turns.model, env=turns.env, code=0)
    shown = turns.strata("prefix", "show", "agent", "--json", code=0).data
    assert shown["system"] == SYSTEM and shown["pinned"] and shown["segments"]
    turns.strata("prefix", "unpin", "agent2", code=0)
    assert not turns.strata("prefix", "show", "agent2", "--json").data["pinned"]
    turns.strata("prefix", "pin", "agent2", code=0)
    turns.strata("prefix", "pin", "agent2", "nobody", code=10)
    for names, code in ((["agen"], 10), (["agent", "nobody"], 10), (["../x"], 2)):
        turns.strata("prefix", "rm", "-y", *names, code=code)
    assert turns.strata("prefix", "rm", "agent", code=2).stderr.count("--yes") == 1
    before = disk_bytes(store_of(turns.strata.home))
    foreseen = turns.strata("prefix", "rm", "-n", "agent", "--json", code=0).data
    done = turns.strata("prefix", "rm", "-y", "agent", "--json", code=0).data
    assert done["items"] == foreseen["items"] and [i["what"] for i in done["items"]] == ["prefix"]
    store = store_of(turns.strata.home)
    assert before - disk_bytes(store) == done["bytes"] - (store.root / "lock").stat().st_size
    assert [each["name"] for each in prefixes(turns)] == ["agent2"]


def test_a_prefix_that_was_removed_takes_nothing_from_others(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "-C", "mine", "What is first?", code=0)
    (root,) = prefixes(turns)
    turns.strata("prefix", "rm", "-y", root["name"], code=0)
    turn = turns.say("mine", "More?")
    assert turn["restore"]["not_reused"] is None and turn["tokens"]["reused"] > root["tokens"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["prefix", "add", "x"], 2),
        (["prefix", "add", "x", "-s", "a", "--system-file", "b"], 2),
        (["prefix", "add", "../x", "-s", "a"], 2),
        (["prefix", "add", "x", "--system-file", "none"], 10),
        (["prefix", "show", "none"], 10),
        (["run", "--prefix", "x", "-c", "hi"], 2),
        (["run", "--prefix", "../x", "hi"], 2),
    ],
)
def test_wishes_that_cannot_be_met(turns: Turns, arguments: list[str], code: int) -> None:
    turns.strata(*arguments, code=code)
    assert not (turns.strata.home / "data" / "prefixes").exists()


def test_A13_media_are_refused_before_anything_is_read(turns: Turns, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]))
    for command in (["prefix", "add", "x", "--messages", path], ["run", "--messages", path]):
        result = turns.strata(*command, "-m", turns.model, env=turns.env, code=13)
        assert "images" in result.stderr
    assert not (turns.strata.home / "data").exists() or not store_of(turns.strata.home).names("prefixes")


def test_a_prefix_that_does_not_fit_the_context(turns: Turns) -> None:
    words = ["prefix", "add", "x", "-s", "long " * 200, "--ctx-size", "256", "-m", turns.model]
    assert "--ctx-size" in turns.strata(*words, env=turns.env, code=15).stderr
    assert prefixes(turns) == []


def test_A12_turned_off_nothing_is_kept_by_itself(turns: Turns) -> None:
    env = {**ENV, "STRATA_AUTO_SESSIONS_ENABLED": "false"}
    off = replace(turns, env=env)
    assert off.run("-s", SYSTEM, "Hello?", code=0).data["conversation"] is None
    assert off.run("-s", SYSTEM, "-C", "named", "Hello?", code=0).data["park"]["skipped"] == "disabled"
    seen = take_inventory(store_of(turns.strata.home))
    assert not seen.segments and not seen.prefixes and [record.name for record in seen.conversations] == ["named"]
    made = off.strata("prefix", "add", "agent", "-s", SYSTEM, "-m", off.model, "--json", env=env, code=0).data
    assert off.run("-s", SYSTEM, "Hello?", code=0).data["tokens"]["reused"] == made["tokens"]


def test_no_save_leaves_no_root_and_no_count(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "--no-save", "Hello?", code=0)
    assert not (turns.strata.home / "data").exists()


def test_B7_weak_matches_are_left_alone(turns: Turns) -> None:
    turns.run("-s", SYSTEM, "What is first?", code=0)
    (root,) = prefixes(turns)
    for key, value, reused in (
        ("N_MIN", root["tokens"] + 1, 0),
        ("N_MIN", root["tokens"], root["tokens"]),
        ("SIMILARITY", 0.99, 0),
        ("SIMILARITY", 0.2, root["tokens"]),
    ):
        off = replace(turns, env={**ENV, f"STRATA_STORE_{key}": str(value)})
        off.strata("prune", "-y", "--keep", "0", code=0)
        data = off.run("--plan", "-s", SYSTEM, "And next?", code=0).data
        assert data["tokens"]["reused"] == reused, (key, value)


def test_W7_five_conversations_share_their_opening(turns: Turns, tiny: Any) -> None:
    """A common prefix of 400 tokens and tails of 50, at 128 KiB a token: next to nothing besides the state."""
    turns = replace(turns, model=tiny("fat"), flags=("--greedy", "-n", "20", "--threads", "2"))
    system = "s" * 376
    tokens = []
    for n in range(5):
        data = turns.run("-s", system, f"question {n}", code=0).data
        tokens.append(held_after(data))
    (root,) = prefixes(turns)
    store = store_of(turns.strata.home)
    once = root["tokens"] + sum(each - root["tokens"] for each in tokens)
    assert 390 <= root["tokens"] <= 410 and all(40 <= each - root["tokens"] <= 60 for each in tokens)
    assert disk_bytes(store) <= 1.02 * once * 131072


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_P3_a_mark_on_a_message_ends_the_shared_part(turns: Turns, tiny: Any, tmp_path: Path, family: str) -> None:
    turns = replace(turns, model=tiny(family), env={**ENV, "STRATA_AUTO_SESSIONS_MIN_TOKENS": "5000"})
    path = tmp_path / "messages.json"

    def ask(question: str) -> dict[str, Any]:
        shared = {"role": "user", "content": "Here is a long document." * 3, "strata_prefix": True}
        told = {"role": "assistant", "content": "Read."}
        path.write_text(json.dumps([{"role": "system", "content": SYSTEM}, shared, told]))
        return turns.run("--messages", path, question, code=0).data

    first = ask("What does it say?")
    (listed,) = prefixes(turns)
    assert listed["name"].startswith("mark-") and not listed["pinned"] and listed["tokens"] > len(SYSTEM) + 70
    assert first["tokens"]["reused"] == ask("And what not?")["tokens"]["reused"] == listed["tokens"]
    assert len(prefixes(turns)) == 1
