"""`inspect NAME` and `--verify`: every byte is checked, findings say what they mean, nothing is changed.

Partial salvage: a bad segment costs reading from its start on, never what stands before it, never the text; a torn
line costs that line. Rows B11, B13; cases C16, C21, C36.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chats import SYSTEM, Talk, cold
from engine_tools import Engines
from faulty_files import ReadOnlyFiles, tree
from turns import Forked, Turns, fork_server, forked

from strata_cli.coverage import Turn, deepest, meaning_of
from strata_cli.engine import Engine
from strata_cli.errors import Bad
from strata_cli.head import SegmentRef
from strata_cli.verify import Verified, verify

TEXTS = [f"Question number {i}." for i in range(1, 10)]

__all__ = ["fork_server", "forked"]  # fixtures


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    found = Engines(tiny)
    yield found
    found.close()


@pytest.fixture
def engine(engines: Engines) -> Engine:
    return engines("llama", threads=1)


def nine_turns(engine: Engine, root: Path, name: str = "talk") -> None:
    with Talk(engine, root).open(name) as talk:
        talk.say_all(TEXTS, 4)


def check(engine: Engine, root: Path, only: tuple[str, str] | None = None) -> Verified:
    return verify(Talk(engine, root, files=ReadOnlyFiles()).store, only, lambda done, total: None)


def flip(path: Path, at: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def segments(root: Path, suffix: str = "seg") -> list[Path]:
    """In order of position."""
    return sorted((root / "segments").glob(f"*/*.{suffix}"), key=end_of)


def end_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


def test_a_sound_directory_verifies_and_stays_as_it_is(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    before = tree(tmp_path)
    told: list[tuple[int, int]] = []
    store = Talk(engine, tmp_path, files=ReadOnlyFiles()).store
    found = verify(store, None, lambda done, total: told.append((done, total)))
    assert found.bad == found.notes == ()
    files = [p for p in tmp_path.rglob("*") if p.suffix in (".seg", ".json", ".jsonl")]
    assert found.checked_files == len(files) == 12
    assert found.checked_bytes == sum(path.stat().st_size for path in files)
    assert told[-1] == (found.checked_bytes, found.checked_bytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert tree(tmp_path) == before


BAD_TURNS = {
    1: "all 9 turns will be read again",
    2: "turn 1 restores; 2 to 9 will be read again",
    8: "turns 1 to 7 restore; 8 and 9 will be read again",
    9: "turns 1 to 8 restore; 9 will be read again",
}


@pytest.mark.parametrize("bad_turn", BAD_TURNS)
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "missing"])
def test_B11_C21_one_bad_segment_costs_reading_from_its_start_on(
    engine: Engine, tmp_path: Path, bad_turn: int, how: str
) -> None:
    root = tmp_path / "s"
    nine_turns(engine, root)
    path = segments(root)[bad_turn]  # the first one is the system prompt's
    kept = end_of(segments(root)[bad_turn - 1])
    data = path.read_bytes()
    if how == "flipped":
        flip(path)
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2 if how == "cut" else 0])
    (found,) = check(engine, root).bad
    assert found.file == f"segments/{path.parent.name}/{path.name}"
    assert found.meaning == f"talk: {BAD_TURNS[bad_turn]}"
    right = cold(engine, root, tmp_path / "cold", "talk", "Go on.")
    with Talk(engine, root).open("talk") as talk:
        result = talk.say("Go on.")
    assert right.allows(engine, result.reply_tokens) and result.reused_tokens == kept
    assert result.not_reused is not None and result.not_reused.code == ("missing" if how == "missing" else "bad")
    # It was set aside when it was first needed, and what it held was read and written again.
    left = check(engine, root).bad
    assert len(left) == (how != "missing") and all("nothing needs it any more" in each.meaning for each in left)
    with Talk(engine, root).open("talk") as talk:
        assert talk.say("And on.").source == "disk" and not talk.warnings


def test_strict_refuses_what_is_bad(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    flip(segments(tmp_path)[5])
    with Talk(engine, tmp_path).open("talk") as talk, pytest.raises(Bad, match="digest"):
        talk.say("Go on.", strict=True)


def test_a_bad_segment_is_told(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    flip(segments(tmp_path)[5])
    with Talk(engine, tmp_path).open("talk") as talk:
        talk.say("Go on.")
    assert any("fail their digest" in warning for warning in talk.warnings)


@pytest.mark.parametrize("family", ["lfm2", "gemma3", "mamba"])
def test_a_bad_part_says_where_it_leads_back_to(engines: Engines, family: str, tmp_path: Path) -> None:
    engine = engines(family, threads=1)
    nine_turns(engine, tmp_path)
    flip(segments(tmp_path, "part")[-1])
    found = check(engine, tmp_path)
    assert len(found.bad) == 1 and "9 will be read again" in found.bad[0].meaning, found
    with Talk(engine, tmp_path).open("talk") as talk:
        result = talk.say("Go on.")
    assert result.reused_tokens > 100 and result.not_reused is not None and result.not_reused.code == "bad"


def test_C36_a_torn_line_costs_that_line(engine: Engine, tmp_path: Path) -> None:
    """Cut the text at every byte of its last 200; the turns before stay, and what is lost is told."""
    nine_turns(engine, tmp_path)
    path = tmp_path / "conversations" / "talk.jsonl"
    data = path.read_bytes()
    for size in range(len(data) - 200, len(data) - 1):
        path.write_bytes(data[:size])
        found = check(engine, tmp_path)
        assert found.bad and all(each.file == "conversations/talk.jsonl" for each in found.bad), size
        talk = Talk(engine, tmp_path).open("talk")
        assert talk.chat.opened is not None and len(talk.chat.opened.branch) >= 16, size
        assert any("talk: " in warning for warning in talk.warnings), size
        talk.close()
    path.write_bytes(data[: len(data) - 20])
    with Talk(engine, tmp_path).open("talk") as talk:
        talk.say("Go on.")
    text = path.read_bytes()
    assert text.startswith(data[: len(data) - 20]) and b"Go on." in text
    lost = [each for each in check(engine, tmp_path).bad if "line" in each.what]
    assert len(lost) == 1 and "torn" in lost[0].what


@pytest.mark.parametrize("damage", ["blanked", "wrong type", "not text"])
def test_C36_a_bad_line_in_the_middle_costs_that_line(engine: Engine, tmp_path: Path, damage: str) -> None:
    nine_turns(engine, tmp_path)
    path = tmp_path / "conversations" / "talk.jsonl"
    lines = path.read_bytes().split(b"\n")
    changed = {"blanked": b" " * len(lines[8]), "wrong type": b'{"v":1,"id":"nine"}', "not text": b"\xff\x00\xfe"}
    lines[8] = changed[damage]
    path.write_bytes(b"\n".join(lines))
    found = check(engine, tmp_path)
    assert [each.what.partition(":")[0] for each in found.bad] == ["line 9"]
    with Talk(engine, tmp_path).open("talk") as talk:
        assert talk.chat.opened is not None
        said = [str((line.message or {}).get("content")) for line in talk.chat.opened.branch]
        assert len(said) == 17 and TEXTS[0] in said and TEXTS[8] in said
        assert talk.say("Go on.").reply_tokens


def test_C36_a_lost_head_costs_no_text_and_no_state(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    path = tmp_path / "conversations" / "talk.json"
    path.unlink()
    found = check(engine, tmp_path)
    assert found.bad == () and "the text is there (9 turns)" in found.notes[0].meaning
    with Talk(engine, tmp_path).open("talk") as talk:
        result = talk.say("Go on.")
    assert result.source == "disk" and result.not_reused is None
    assert check(engine, tmp_path).notes == ()
    path.write_bytes(b"{}")
    found = check(engine, tmp_path)
    assert [each.file for each in found.bad] == ["conversations/talk.json"]
    with Talk(engine, tmp_path).open("talk") as talk:
        assert talk.say("Go on.").source == "disk" and "written anew" in talk.warnings[0]


def test_B13_a_file_that_cannot_be_read_now_is_kept(engine: Engine, tmp_path: Path) -> None:
    """Permission and I/O are no fault of the bytes; made as a folder in the file's place, which root cannot read."""
    nine_turns(engine, tmp_path)
    path = segments(tmp_path)[-1]
    aside = path.with_name("aside")
    path.rename(aside)
    path.mkdir()
    found = check(engine, tmp_path)
    assert found.bad == () and len(found.notes) == 1 and "8 restore" in found.notes[0].meaning
    with Talk(engine, tmp_path).open("talk") as talk:
        result = talk.say("Go on.")
    assert result.reply_tokens and result.not_reused is not None and result.not_reused.code in ("io", "missing")
    assert list((tmp_path / "quarantine").iterdir()) == []


def test_a_newer_format_is_a_note(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    path = segments(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\x02\0\0\0" + data[12:])
    found = check(engine, tmp_path)
    assert found.bad == () and "format 2" in found.notes[0].what
    with Talk(engine, tmp_path).open("talk") as talk:
        talk.say("Go on.")
    assert path.read_bytes()[:12] == data[:8] + b"\x02\0\0\0"


def test_segments_that_do_not_belong_to_their_head_are_bad(engine: Engine, tmp_path: Path) -> None:
    """Two sound files swapped: each byte is right, and in the wrong place."""
    nine_turns(engine, tmp_path)
    one, two = segments(tmp_path)[3:5]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    found = check(engine, tmp_path)
    assert len(found.bad) == 2 and all("turns 1 to 2 restore" in each.meaning for each in found.bad)


def test_C16_another_key_makes_state_foreign_and_nothing_bad(engine: Engine, tmp_path: Path) -> None:
    nine_turns(engine, tmp_path)
    (tmp_path / "key").write_bytes(os.urandom(32))
    found = check(engine, tmp_path)
    assert found.bad == () and "seal of another directory" in found.notes[0].what
    (tmp_path / "key").write_bytes(b"short")
    assert [each.file for each in check(engine, tmp_path).bad] == ["key"]


# Meaning, as a pure function


def test_meanings() -> None:
    turns = [Turn(i, 100 * i) for i in range(1, 10)]
    assert meaning_of(turns, 700) == "turns 1 to 7 restore; 8 and 9 will be read again"
    assert meaning_of(turns, 699) == "turns 1 to 7 restore; 8 and 9 will be read again"
    assert meaning_of(turns, 698) == "turns 1 to 6 restore; 7 to 9 will be read again"
    assert meaning_of(turns, 100) == "turn 1 restores; 2 to 9 will be read again"
    assert meaning_of(turns, 0) == "all 9 turns will be read again"
    assert meaning_of(turns, 900) == "every turn restores all the same"
    assert meaning_of(turns[:1], 0) == "turn 1 will be read again"


def test_the_deepest_boundary() -> None:
    def refs(kind: str, *ends: int) -> list[SegmentRef]:
        return [SegmentRef(kind, start, end, "", 0) for start, end in zip((0, *ends), ends, strict=False)]

    rows = refs("seg", 10, 20, 30)
    assert deepest(rows, [], True, False, 0) == 30
    assert deepest([rows[0], rows[2]], [], True, False, 0) == 10
    parts = refs("part", 10, 20, 30)
    assert deepest(rows, parts, True, True, 0) == 30
    assert deepest(rows, parts[:2], True, True, 0) == 20
    assert deepest(rows[:1], parts, True, True, 0) == 10
    assert deepest([], parts[1:], False, True, 0) == 30
    assert deepest(rows, [parts[0], parts[2]], True, True, 15) == 10
    assert deepest(rows, [parts[0], parts[2]], True, True, 10) == 30
    assert deepest(rows, [], True, True, 0) == 0


# The command


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:
    return Turns(forked, tiny("llama"))


def inspected(forked: Forked, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = forked("inspect", *arguments, "--json", code=code)
    assert result.stderr == ""
    return result.envelope


def test_inspect_name_shows_segments_boundaries_identity_and_messages(turns: Turns, forked: Forked) -> None:
    turns.loop("First.", "Second.", start=("-C", "notes", "-s", SYSTEM))
    data = inspected(forked, "notes")["data"]
    assert [row["name"] for row in data["conversations"]] == ["notes"] and data["prefixes"] == []
    assert data["segments"][0]["start"] == 0 and data["segments"][-1]["end"] <= data["conversations"][0]["tokens"]
    assert all({"start", "end", "bytes", "part_bytes", "file"} <= row.keys() for row in data["segments"])
    assert sum(row["bytes"] for row in data["segments"]) == data["by_kind"]["rows"]
    (identity,) = data["identities"].values()
    assert identity["weights"].startswith("b3:") and identity["cache_type_k"] == "f16" and "rope.freq_base" in identity
    assert [row["reason"] for row in data["boundaries"]][-1] == "reply" and data["messages"] is None
    said = inspected(forked, "note", "--transcript")["data"]["messages"]
    assert [each["role"] for each in said] == ["user", "assistant"] * 2 and said[0]["content"] == "First."
    shown = forked("inspect", "notes", "--transcript", code=0).stdout
    assert "First." in shown and "reply" in shown and "state: usable" in shown
    assert "weights" not in shown and "weights" in forked("inspect", "notes", "-v", code=0).stdout
    assert inspected(forked, "nobody", code=10)["error"]["code"] == "not_found"


def test_inspect_says_that_a_conversation_is_too_short_for_state(turns: Turns, forked: Forked) -> None:
    """A newcomer's first turn keeps text alone (A4): the reason is told where they look."""
    replace(turns, env={**turns.env, "STRATA_AUTO_SESSIONS_MIN_TOKENS": "300"}).say("notes", "First.")
    shown = forked("inspect", "notes", code=0, env={"STRATA_AUTO_SESSIONS_MIN_TOKENS": "300"}).stdout
    assert "no state is stored (it is kept from 300 tokens on: auto_sessions.min_tokens)" in shown
    shown = forked("inspect", "notes", code=0, env={"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}).stdout
    assert "no state is stored," in shown


def test_verify_exits_12_says_what_it_means_and_repairs_nothing(turns: Turns, forked: Forked) -> None:
    turns.loop("First.", "Second.", start=("-C", "notes"))
    turns.loop("Other.", start=("-C", "other"))
    data = inspected(forked, "--verify")["data"]
    assert data["bad"] == [] and data["checked_files"] == 7 and data["checked_bytes"] > 100_000
    root = forked.home / "data"
    path = segments(root)[-1]
    flip(path)
    before = tree(root)
    failed = inspected(forked, "--verify", code=12)
    (bad,) = failed["data"]["bad"]
    assert bad["file"] == f"segments/{path.parent.name}/{path.name}" and "fail their digest" in bad["what"]
    assert bad["meaning"] == "notes: turn 1 restores; 2 will be read again"
    assert failed["error"]["code"] == "bad" and not failed["ok"]
    assert inspected(forked, "notes", "--verify", code=12)["data"]["bad"] == [bad]
    assert inspected(forked, "other", "--verify")["data"]["bad"] == []
    shown = forked("inspect", "--verify", code=12)
    assert "turn 1 restores; 2 will be read again" in shown.stdout and "1 bad" in shown.stdout
    assert tree(root) == before
    turns.say("notes", "Third.")
    (bad,) = inspected(forked, "--verify", code=12)["data"]["bad"]
    assert bad["file"].startswith("quarantine/") and "nothing needs it" in bad["meaning"]


def test_verify_of_nothing_is_fine_and_makes_nothing(forked: Forked) -> None:
    assert inspected(forked, "--verify")["data"]["checked_files"] == 0
    assert not forked.home.exists()
