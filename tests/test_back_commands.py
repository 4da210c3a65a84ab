"""Going back and a full context through the command line: /retry /undo /edit /fork /set ctx-size, --fork, --on-full,
and `inspect NAME --why`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from turns import Forked, Turns, fork_server, forked, said, store_of  # noqa: F401

LONG = "Tell me of the sea. " * 12


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:  # noqa: F811
    return Turns(forked, tiny("lfm2"))


def user_lines(home: Path, name: str) -> list[str]:
    """What the user said on the branch in force."""
    return [text for role, text in said(home, name) if role == "user"]


def lines_of(turns: Turns, *items: str | list[str], start: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    sent = [
        json.dumps({"prompt": item} if isinstance(item, str) else {"command": item[0], "args": item[1:]})
        for item in items
    ]
    result = turns.run("--repl", "jsonl", *start, stdin="\n".join(sent) + "\n", code=0)
    return [line for line in result.lines if "event" not in line]


def test_retry_undo_edit_and_fork_in_the_loop(turns: Turns) -> None:
    one, again, undone, edited, forked_here, after = lines_of(
        turns, "One.", ["/retry"], ["/undo"], ["/edit", "x"], ["/fork", "copy"], "Three.", start=("-C", "talk")
    )
    assert again["command"] == "/retry" and again["data"]["tokens"]["evaluated"] <= 30
    assert undone["data"] == {"conversation": "talk", "turns": 0, "undone": 1}
    assert edited["exit_code"] == 2 and "undo" in edited["error"]["message"]
    assert forked_here["exit_code"] == 2
    assert after["data"]["conversation"] == "talk" and user_lines(turns.strata.home, "talk") == ["Three."]
    assert len(store_of(turns.strata.home).read_log("talk").alternatives()) == 2
    assert one["ok"]


def test_edit_says_the_last_line_differently(turns: Turns) -> None:
    _, second, edited = lines_of(turns, "One.", "Two.", ["/edit", "Two,", "but", "otherwise."], start=("-C", "talk"))
    assert user_lines(turns.strata.home, "talk") == ["One.", "Two, but otherwise."]
    assert edited["data"]["tokens"]["reused"] > second["data"]["tokens"]["reused"] - 40


def test_fork_at_a_turn_on_the_command_line(turns: Turns) -> None:
    lines_of(turns, "One.", "Two.", "Three.", start=("-C", "talk"))
    done = turns.run("--fork", "talk@2", "-C", "other", "Else.", code=0).data
    assert done["conversation"] == "other" and done["restore"]["not_reused"] is None
    assert user_lines(turns.strata.home, "other") == ["One.", "Two.", "Else."]
    assert user_lines(turns.strata.home, "talk") == ["One.", "Two.", "Three."]
    assert turns.run("--fork", "talk", "-C", "other", "x").exit_code == 2
    assert turns.run("--fork", "talk@9", "-C", "more", "x").exit_code == 2
    assert turns.run("--fork", "talk@x", "-C", "more", "x").exit_code == 2
    assert turns.run("--fork", "nobody", "x").exit_code == 10
    automatic = turns.run("--fork", "talk", "x", code=0).data
    assert automatic["conversation"].startswith("auto-")


def test_on_full_on_the_command_line(turns: Turns) -> None:
    small = ("-C", "talk", "--ctx-size", "512")
    turns.run(*small, LONG, code=0)
    stopped = turns.run(*small, LONG)
    assert stopped.exit_code == 15 and "--on-full" in stopped.envelope["error"]["hint"]
    assert user_lines(turns.strata.home, "talk") == [LONG]
    grown = turns.run(*small, "--on-full", "grow", LONG, code=0).data
    assert grown["restore"]["not_reused"] is None and grown["tokens"]["reused"] > 200
    assert store_of(turns.strata.home).read_head("talk").engine["ctx_size"] >= 1024
    dropped = turns.run("-C", "talk", "--ctx-size", "512", "--on-full", "drop-oldest", LONG, code=0)
    assert dropped.data["tokens"]["prompt"] < 512 and any("left out" in each for each in dropped.envelope["warnings"])
    assert len(user_lines(turns.strata.home, "talk")) == 3
    assert turns.run("--on-full", "pray", "x").exit_code == 2


def test_a_message_that_fits_nothing_is_refused_before_it_is_tokenised(turns: Turns) -> None:
    """Tokenising takes minutes of a megabyte and cannot be broken off."""
    huge = "a" * 3_000_000
    for on_full in ("stop", "drop-oldest"):
        refused = turns.run("-C", "huge", "--ctx-size", "512", "--on-full", on_full, "-", stdin=huge)
        assert refused.exit_code == 15 and "3,000,000 bytes" in refused.envelope["error"]["message"]
    assert user_lines(turns.strata.home, "huge") == []
    messages = json.dumps([{"role": "user", "content": "b" * 3_000_000}, {"role": "assistant", "content": "x"}])
    refused = turns.run("--ctx-size", "512", "--messages", "-", "And?", stdin=messages)
    assert refused.exit_code == 15 and "bytes" in refused.envelope["error"]["message"]


def test_a_message_that_is_too_long_alone_is_told_so(turns: Turns) -> None:
    """Dropping what is older cannot help."""
    refused = turns.run("-C", "long", "--ctx-size", "512", "--on-full", "drop-oldest", "word " * 1000)
    assert refused.exit_code == 15 and "this message alone" in refused.envelope["error"]["message"]
    assert "--ctx-size" in refused.envelope["error"]["hint"]


def test_after_undo_the_length_is_what_stands(turns: Turns) -> None:
    """The engine still holds what was undone, and the line at the bottom tells of the conversation."""
    first, said_one, _, after, _, none = lines_of(
        turns, "One.", ["/tokens"], ["/undo"], ["/tokens"], "Two.", ["/tokens"], start=("-C", "talk")
    )
    assert first["ok"] and said_one["data"]["last"]["prompt"] == first["data"]["tokens"]["prompt"]
    assert after["data"]["held"] == 0 and not after["data"]["last"]
    assert none["data"]["held"] > 0 and none["data"]["last"]


def test_a_byte_order_mark_is_no_part_of_the_prompt(turns: Turns) -> None:
    turns.run("-C", "marked", "-", stdin="\ufeffHello.", code=0)
    assert user_lines(turns.strata.home, "marked") == ["Hello."]


def test_since_never_costs_the_base_and_needs_a_whole_one(turns: Turns, tmp_path: Path) -> None:
    turns.say("talk", "One.")
    base, cut = tmp_path / "base.strata", tmp_path / "cut.strata"
    turns.strata("save", "talk", "-o", base, code=0)
    turns.say("talk", "Two.")
    before = base.read_bytes()
    same = turns.strata("save", "talk", "--since", base, "-o", base)
    assert same.exit_code == 2 and "BASE itself" in same.stderr and base.read_bytes() == before
    cut.write_bytes(before[:-2000])
    short = turns.strata("save", "talk", "--since", cut, "-o", tmp_path / "new.strata")
    assert short.exit_code == 12 and "cut off" in short.stderr and not (tmp_path / "new.strata").exists()
    turns.strata("save", "talk", "--since", base, "-o", tmp_path / "new.strata", code=0)


def test_set_ctx_size_keeps_what_was_read(turns: Turns) -> None:
    first, grown, second, refused = lines_of(
        turns, LONG, ["/set", "ctx-size", "2048"], "And?", ["/set", "ctx-size", "16"], start=("--ctx-size", "512")
    )
    assert grown["data"] == {"ctx-size": 2048}
    assert second["data"]["tokens"]["reused"] >= first["data"]["tokens"]["prompt"]
    assert second["data"]["restore"]["from"] in ("live", "memory") and refused["exit_code"] == 2


def test_V2_why_names_the_first_token_that_differs(turns: Turns, tmp_path: Path) -> None:
    lines_of(turns, "The sea is blue.", "And the sky?", start=("-C", "talk"))
    log = store_of(turns.strata.home).read_log("talk")
    messages = [dict(line.message or {}) for line in log.branch()]

    def why(value: object) -> dict[str, Any]:
        path = tmp_path / "prompt.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return turns.strata("inspect", "talk", "--why", path, "--json", code=0).data

    same = why([*messages, {"role": "user", "content": "More?"}])
    assert same["leaves"] is False and same["at_token"] == same["stored_tokens"]
    changed = why([{"role": "user", "content": "The sea is green."}, *messages[1:]])
    assert changed["leaves"] and changed["stored"].startswith("blue") and changed["prompt"].startswith("green")
    assert changed["before"].endswith("sea is ") and changed["cause"] == "other text"
    other = why([{"role": "system", "content": "Be brief."}, *messages])
    assert other["at_token"] < changed["at_token"]
    assert turns.strata("inspect", "talk", "--why", tmp_path / "none.json").exit_code == 10
