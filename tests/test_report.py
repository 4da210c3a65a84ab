"""`strata inspect` as the monitor: whose bytes are whose, what can be used here, and the table for people (V1, C70)."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Result, Strata
from directories import IDENTITY, NOW, add, disk_bytes, store_in, write_segments
from faulty_files import ReadOnlyFiles, tree

from strata_cli.cli import status
from strata_cli.counters import Counts, add_counts
from strata_cli.directory import iso_time
from strata_cli.files import Files
from strata_cli.head import SegmentRef
from strata_cli.installed import installed_state_format
from strata_cli.report import ConversationFacts, DirectoryFacts, scan
from strata_cli.store import Store

Here = Callable[..., Result]


@pytest.fixture
def here(strata: Strata, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """The command line in this process."""
    monkeypatch.setenv("STRATA_HOME", str(strata.home))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: str, code: int | None = None) -> Result:
        capfd.readouterr()
        result = Result(status(list(arguments)), *capfd.readouterr())
        assert code is None or result.exit_code == code, result
        return result

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)


def look(store: Store, state_format: int | None = 3) -> DirectoryFacts:
    return scan(store, now_iso=iso_time(NOW), state_format=state_format)


def facts(store: Store, name: str, **options: int) -> ConversationFacts:
    seen = look(store, **options)
    return next(each for each in (*seen.conversations, *seen.prefixes) if each.name == name)


def test_own_and_shared_bytes(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    root = [5] * 30
    for name in ("a", "b"):
        add(store, name, tokens=root + [ord(name)] * 30, ends=(30, 60), payload_bytes=2000)
    add(store, "root-1", kind="prefixes", tokens=root, ends=(30,), payload_bytes=2000)
    add(store, "text", ends=())
    one = next(iter(store.read_head("a").states.values())).segments
    assert (facts(store, "a").own_bytes, facts(store, "a").shared_bytes) == (one[1].bytes, one[0].bytes)
    assert (facts(store, "root-1").own_bytes, facts(store, "root-1").shared_bytes) == (0, one[0].bytes)
    assert facts(store, "text").own_bytes == facts(store, "text").shared_bytes == 0
    seen = look(store)
    assert seen.by_kind["rows"] == one[0].bytes + 2 * one[1].bytes
    assert seen.total_bytes == disk_bytes(store)


def test_a_file_named_twice_by_one_conversation_is_its_own(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    head = add(store, "a", ends=(10,))
    other = replace(IDENTITY, state_format=4)
    states = {**head.states, other.digest.hex(): next(iter(head.states.values()))}
    store.write_head(replace(head, states=states))
    found = facts(store, "a")
    assert found.own_bytes > 0 and found.shared_bytes == 0


def test_usable_or_why_not(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    model = tmp_path / "model.gguf"
    model.touch()
    add(store, "good", model={"path": str(model)})
    add(store, "gone", model={"path": "/nowhere/m.gguf"})
    add(store, "old", identity=replace(IDENTITY, state_format=2))
    add(store, "text", ends=())
    head = add(store, "torn")
    store.segment_path(next(iter(head.states.values())).segments[0].file).unlink()
    (tmp_path / "conversations" / "bad.json").write_text("{}")
    (tmp_path / "conversations" / "lost.jsonl").write_text("")
    found = {each.name: (each.usable, each.why) for each in look(store).conversations}
    assert found == {
        "good": (True, None),
        "gone": (False, "its model /nowhere/m.gguf is gone"),
        "old": (False, "stored in state format 2; the installed engine has 3"),
        "text": (False, "no state is stored"),
        "torn": (False, "some of its files are missing"),
        "bad": (False, "head of 'bad': it has no version"),
        "lost": (False, "its head is missing, its text is there"),
    }
    assert facts(store, "old", state_format=2).usable and facts(store, "good").model == "model.gguf"
    assert all(each.usable for each in look(store, state_format=None).conversations if each.name in ("good", "old"))


def test_of_parts_the_last_one_counts(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    head = add(store, "a")
    state = next(iter(head.states.values()))
    thinned = SegmentRef("part", 0, 10, f"{'0' * 32}/10-{'0' * 32}.part", 5)
    store.write_head(replace(head, states={digest: replace(state, parts=(thinned,)) for digest in head.states}))
    assert facts(store, "a").why == "some of its files are missing"


def test_C70_by_kind_adds_up_with_everything_broken(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    head = add(store, "a")
    write_segments(store, [7] * 40, [40])
    store.quarantine(store.segment_path(next(iter(head.states.values())).segments[0].file), "bad")
    for place in ("segments/x", "segments/" + "0" * 32 + "-x", "conversations/y.txt", "prefixes/z", "tmp/1-a.tmp"):
        (tmp_path / place).write_bytes(b"s" * 50)
    (tmp_path / "conversations" / "bad.json").write_bytes(b"\xff" * 77)
    seen = look(store)
    assert seen.total_bytes == disk_bytes(store) and all(seen.by_kind.values()) | (seen.by_kind["parts"] == 0)
    assert seen.by_kind["temporary"] == 50 and seen.by_kind["quarantine"] > 1000


def test_with_state_on_another_disk_it_adds_up_too(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    store = store_in(tmp_path / "data", state_dir=place)
    add(store, "a")
    assert look(store).total_bytes == disk_bytes(store) > look(store).by_kind["rows"] > 0


def test_looking_writes_nothing(tmp_path: Path) -> None:
    add(store_in(tmp_path), "a")
    before = tree(tmp_path)
    assert look(store_in(tmp_path, ReadOnlyFiles())).conversations and tree(tmp_path) == before
    empty = store_in(tmp_path / "none", ReadOnlyFiles())
    assert look(empty).total_bytes == 0 and not (tmp_path / "none").exists()


def test_the_installed_format_is_read_as_text_and_remembered(tmp_path: Path) -> None:
    assert installed_state_format(tmp_path) == 3
    cache = tmp_path / "engine.json"
    assert '"state_format": 3' in cache.read_text()
    cache.write_text(cache.read_text().replace("3}", "7}"))
    assert installed_state_format(tmp_path) == 7
    for broken in ("", "[]", "{}", '{"read_from": [], "state_format": 9}'):
        cache.write_text(broken)
        assert installed_state_format(tmp_path) == 3
    assert installed_state_format(tmp_path / "none") == 3 and not (tmp_path / "none").exists()


def test_V1_the_page_for_people(here: Here, strata: Strata) -> None:
    store = Store.open(strata.home / "data", Files(), lambda: datetime.now(UTC))
    now = datetime.now(UTC)
    for n in range(25):
        add(store, f"auto-{n:016x}", days=n, now=now, text="a \x1b[31mred\x1b[0m title")
    add(store, "root-1", kind="prefixes", now=now)
    told = {"code": "bad", "message": "its bytes fail their digest", "time": ""}
    add_counts(store, Counts(parked=3, bytes_written=2_000_000, refusals=1, bad_files=1, last_refusal=told))
    page = here("inspect", code=0).stdout
    assert page.startswith("[---") and "of 100 GB" in page and "\x1b" not in page
    assert page.count("auto-") == 25 and "root-1" in page
    assert "parks 3" in page and "2 MB written today, 2 MB in all" in page
    assert "refusals 1, bad files 1; the last: its bytes fail their digest" in page
    assert here("inspect", "-q", code=0).stdout.count("\n") == 25
    data = here("inspect", "--json", code=0).data
    assert data["counters"]["last_refusal"] == told and data["prefixes"][0]["pinned"] is False
    assert "pinned" not in data["conversations"][0]
    assert [each["name"] for each in data["conversations"]][:2] == [f"auto-{0:016x}", f"auto-{1:016x}"]
