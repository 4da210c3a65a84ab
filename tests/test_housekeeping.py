"""What a session does beside its turns: budgets after a park, room on a full disk, counts (A9, B5, B6, B17, V1)."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from directories import add, dangling, disk_bytes, write_segments
from turns import SMALL, Turns, fork_server, forked, said, store_of  # noqa: F401

from strata_cli.config import load_config
from strata_cli.counters import Counts, _lock, add_counts, estimated_bytes, measured, read_counts
from strata_cli.errors import BelowFloor
from strata_cli.housekeeping import Housekeeper
from strata_cli.inventory import take_inventory
from strata_cli.output import Output
from strata_cli.store import Store


@pytest.fixture
def turns(forked: Any, tiny: Any) -> Turns:  # noqa: F811
    return Turns(forked, tiny("llama"), env=SMALL)


def limited(turns: Turns, **settings: object) -> Turns:
    return replace(turns, env={**SMALL, **{f"STRATA_{key.upper()}": str(value) for key, value in settings.items()}})


def with_state(store: Store) -> set[str]:
    return {name for name in store.names() if store.read_head(name).states}


def test_A9_after_a_park_the_newest_keep_their_state(turns: Turns) -> None:
    turns = limited(turns, auto_sessions_keep=2)
    store = store_of(turns.strata.home)
    turns.say("by-hand", "This one has a name.")
    names = [turns.run(f"Question number {n}", code=0).data["conversation"] for n in range(4)]
    assert with_state(store) == {"by-hand", *names[2:]}
    assert all(said(turns.strata.home, name) for name in names) and not dangling(store)
    # The oldest is continued: it has two turns now, and those with one go before it.
    turns.say(names[0], "And then?")
    assert with_state(store) == {"by-hand", names[0], names[3]}
    turns.run("Yet another", code=0)
    assert names[0] in with_state(store) and len(with_state(store)) == 3


def test_A9_the_one_just_written_is_never_chosen(turns: Turns) -> None:
    turns = limited(turns, auto_sessions_keep=0, store_max_size="1B")
    name = turns.run("What?", code=0).data["conversation"]
    assert with_state(store_of(turns.strata.home)) == {name}


def test_A9_a_busy_directory_is_pruned_the_next_time(turns: Turns) -> None:
    turns = limited(turns, auto_sessions_keep=1)
    store = store_of(turns.strata.home)
    turns.run("One?", code=0)
    with store.shared():
        turns.run("Two?", code=0)
        assert len(with_state(store)) == 2
    last = turns.run("Three?", code=0).data["conversation"]
    assert with_state(store) == {last}


def test_B6_the_budget_holds_within_one_conversation(turns: Turns) -> None:
    store = store_of(turns.strata.home)
    first = turns.run("One? " * 20, code=0).data
    size = take_inventory(store).total_bytes
    turns = limited(turns, store_max_size=f"{2 * size}B")
    names = [first["conversation"]]
    for n in range(5):
        names.append(turns.run(f"Number {n}? " * 18, code=0).data["conversation"])
        assert take_inventory(store).total_bytes <= 3 * size
    assert names[-1] in with_state(store) and names[0] not in with_state(store)


def test_C46_a_conversation_larger_than_the_budget_is_written_once(turns: Turns) -> None:
    turns = limited(turns, store_max_size="20kB")
    first, second = turns.run("One? " * 20, "-C", "auto-0123456789abcdef", code=0), None
    assert "over" in " ".join(first.envelope["warnings"])
    store = store_of(turns.strata.home)
    before = {path: path.stat().st_mtime_ns for path in (store.root / "segments").rglob("*.seg")}
    second = turns.run("-C", "auto-0123456789abcdef", "Two?", code=0)
    after = {path: path.stat().st_mtime_ns for path in (store.root / "segments").rglob("*.seg")}
    assert before.items() <= after.items() and second.data["tokens"]["reused"] > 100
    turns.strata("prune", "-y", "--json", env=turns.env, code=3)
    assert with_state(store) == {"auto-0123456789abcdef"}


def test_B5_the_oldest_makes_room_in_the_order_of_A9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path)
    for n, turn_count in enumerate([2, 1, 2, 1]):
        add(store, f"auto-{n:016x}", days=10 - n, turns=turn_count, payload_bytes=20_000)
    add(store, "notes", days=99, payload_bytes=20_000)
    add(store, "root-1", kind="prefixes", days=99, payload_bytes=20_000)
    config = load_config({"STRATA_HOME": str(tmp_path), "STRATA_STORE_MIN_FREE_DISK_MIB": "1"})
    capacity = disk_bytes(store) + (1 << 20)
    monkeypatch.setattr(type(store), "free_bytes", lambda _: capacity - disk_bytes(store))
    monkeypatch.setattr(type(store.directory), "free_bytes", lambda _: capacity - disk_bytes(store))
    keeper, chat = (
        Housekeeper(store, config, Output("run")),
        SimpleNamespace(name=f"auto-{0:016x}", keeper=SimpleNamespace()),
    )
    keeper.attach(chat)
    assert chat.keeper.make_room(10_000) and with_state(store) == {"notes", *(f"auto-{n:016x}" for n in (0, 2, 3))}
    assert chat.keeper.make_room(60_000) and with_state(store) == {"notes", *(f"auto-{n:016x}" for n in (0, 2))}
    assert chat.keeper.make_room(100_000) and with_state(store) == {"notes", f"auto-{0:016x}"}
    # What is left has a name, is in use, or belongs to others.
    assert not chat.keeper.make_room(200_000) and with_state(store) == {"notes", f"auto-{0:016x}"}
    assert store.names("prefixes") == ["root-1"]
    with pytest.raises(BelowFloor) as raised:
        write_segments(store, [1] * 20, [20], payload_bytes=200_000)
    assert raised.value.needed_bytes > 200_000


def test_B5_without_room_the_state_is_skipped_and_said(turns: Turns) -> None:
    turns = limited(turns, store_min_free_disk_mib=2**31 - 1)
    result = turns.run("-C", "x", "What?", code=0)
    assert result.data["park"]["skipped"] == "no_room" and result.data["reply_tokens"]
    assert "not saved" in result.envelope["warnings"][0]
    store = store_of(turns.strata.home)
    assert not with_state(store) and len(said(turns.strata.home, "x")) == 2


def test_B17_state_lies_on_another_disk_and_its_absence_costs_reading(turns: Turns, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    turns = limited(turns, store_state_dir=place)
    first = turns.say("x", "What is it?")
    data = turns.strata.home / "data"
    assert list((place / "segments").rglob("*.seg")) and not (data / "segments").exists()
    assert {path.name for path in place.iterdir()} >= {"segments", "tmp", "quarantine"}
    assert turns.say("x", "And?")["tokens"]["reused"] >= first["tokens"]["prompt"]
    gone = tmp_path / "elsewhere"
    place.rename(gone)
    result = turns.run("-C", "x", "Still there?", code=0)
    assert result.data["tokens"]["reused"] == 0 and len(said(turns.strata.home, "x")) == 6
    assert len(result.envelope["warnings"]) <= 2 and not place.exists()
    seen = turns.strata("inspect", "--json", env=turns.env, code=0).data
    assert seen["conversations"][0]["why"] == "some of its files are missing"
    gone.rename(place)
    assert turns.say("x", "Back?")["tokens"]["reused"] > 0


def test_V1_counts_of_turns_prefixes_and_refusals(turns: Turns) -> None:
    first = turns.say("x", "What is it?")
    second = turns.say("x", "And?")
    counted = turns.strata("inspect", "--json", code=0).data["counters"]
    assert counted["parked"] == 2 and counted["restored"] == 1 and counted["refusals"] == 0
    assert counted["tokens_reused"] == second["tokens"]["reused"]
    assert counted["tokens_read"] == first["tokens"]["evaluated"] + second["tokens"]["evaluated"]
    written = first["park"]["bytes_written"] + second["park"]["bytes_written"]
    assert counted["bytes_written"] == counted["bytes_written_today"] == written > 0
    store = store_of(turns.strata.home)
    segment = max((store.root / "segments").rglob("*.seg"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    turns.say("x", "Still?")
    counted = turns.strata("inspect", "--json", code=0).data["counters"]
    assert (counted["refusals"], counted["bad_files"]) == (1, 1)
    assert counted["last_refusal"]["code"] == "bad" and "digest" in counted["last_refusal"]["message"]
    shown = turns.strata("inspect", code=0).stdout
    assert "parks 3" in shown and "written today" in shown and "refusals 1" in shown


def test_V1_a_loop_counts_each_turn_and_prefixes(turns: Turns) -> None:
    turns = limited(turns, auto_sessions_root_min_tokens=8)
    turns.loop("One?", "Two?", start=["-s", "You answer in few words."])
    counted = turns.strata("inspect", "--json", code=0).data["counters"]
    assert counted["parked"] == 2 and counted["prefixes"] == 1


def test_V1_a_turn_counts_though_the_chat_went_on(turns: Turns) -> None:
    turns.loop("One?", ["/new"], "Two?", ["/new"])
    counted = turns.strata("inspect", "--json", code=0).data["counters"]
    assert counted["parked"] == 2


def test_V1_why_the_directory_cannot_be_opened(turns: Turns) -> None:
    turns.strata.home.mkdir()
    (turns.strata.home / "data").write_text("no folder")
    result = turns.strata("inspect", "--json", code=1)
    assert "is not a folder" in result.envelope["error"]["message"]


def test_counts_that_are_lost_or_broken_begin_anew(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert read_counts(store) == Counts() and not tmp_path.joinpath("data").exists()
    assert add_counts(store, Counts(parked=1, bytes_written=10))
    assert read_counts(store).parked == 1
    path = tmp_path / "data" / "counters" / "totals"
    for data in (b"", b"{", b"[]", b'{"parked": -1}', b'{"parked": "x", "last_refusal": 5}', b"[" * 9000, b"x" * 99999):
        path.write_bytes(data)
        assert read_counts(store) == Counts()
        assert add_counts(store, Counts(parked=2)) and read_counts(store).parked == 2


def test_counts_of_two_days(tmp_path: Path) -> None:
    counts = Counts()
    counts.add(Counts(bytes_written=5, day="2026-01-01"))
    counts.add(Counts(bytes_written=6, day="2026-01-01"))
    assert counts.today("2026-01-01") == 11 and counts.today("2026-01-02") == 0
    counts.add(Counts(bytes_written=7, day="2026-01-02"))
    assert (counts.today("2026-01-02"), counts.bytes_written) == (7, 18)


def test_counts_that_cannot_be_added_now_are_not_lost(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.prepare()
    with _lock(store):
        assert not add_counts(store, Counts(parked=1))
    assert add_counts(store, Counts(parked=1)) and read_counts(store).parked == 1


def test_the_size_is_known_without_looking(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert estimated_bytes(store) is None
    measured(store, 1000)
    add_counts(store, Counts(bytes_written=50))
    assert estimated_bytes(store) == 1050
    path = tmp_path / "data" / "counters" / "totals"
    path.write_text(json.dumps({"measured": {"total_bytes": "x"}}))
    assert estimated_bytes(store) is None


def test_totals_are_what_the_disk_has(turns: Turns) -> None:
    turns.say("x", "What?")
    store = store_of(turns.strata.home)
    data = turns.strata("inspect", "--json", code=0).data
    assert sum(data["by_kind"].values()) == data["total_bytes"] == disk_bytes(store)
