"""The store: text and heads that survive, names that stay inside, locks between processes."""

import errno
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from faulty_files import CountingFiles, FailingFiles, ReadOnlyFiles, tree

from strata_cli.errors import Bad, Locked, NotFound, Refused, StorageFailed, UsageProblem
from strata_cli.files import Files
from strata_cli.head import Head, SegmentRef, StateRef, encode_head
from strata_cli.log import Line, append_bytes
from strata_cli.segment import Draft, Kind
from strata_cli.store import BadEntry, Store

NOW = "2026-01-01T00:00:00.000000Z"
HEAD = Head("notes", "named", title="hi", created=NOW, updated=NOW)
LINES = [
    Line(1, None, "message", NOW, {"role": "user", "content": "hi"}, (1, 2), 0, "t"),
    Line(2, 1, "message", NOW, {"role": "assistant", "content": "ho"}, (3,), 2, "t"),
]


def open_store(root: Path, files: Files | None = None, state_dir: Path | None = None) -> Store:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Store.open(root, files or Files(), lambda: now, state_dir=state_dir, pid=77, command="test")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "s")


def test_a_missing_directory_is_an_empty_one_and_stays_missing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s", ReadOnlyFiles())
    assert store.names() == [] and list(store.heads()) == [] and store.newest() is None
    assert store.read_log("notes").lines == () and store.holder("notes") is None
    assert store.children("0" * 32) == []
    with pytest.raises(NotFound, match="'notes'"):
        store.read_head("notes")
    with store.shared():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["conversations", "prefixes"])
def test_heads_and_logs_round_trip(store: Store, kind: str) -> None:
    assert store.write_head(HEAD, kind) == len(encode_head(HEAD))
    assert store.append_log("notes", LINES[:1], kind) + store.append_log("notes", LINES[1:], kind) == len(
        append_bytes(LINES)
    )
    assert store.read_head("notes", kind) == HEAD and store.names(kind) == ["notes"]
    assert store.read_log("notes", kind).lines == tuple(LINES)
    assert list(store.heads(kind)) == [HEAD]
    for path in (store.root / kind).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "-rf", "a\nb", "x" * 300, "a\0"], ids=ascii)
def test_what_is_no_name_touches_nothing(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / "s", ReadOnlyFiles())
    for call in (
        lambda: store.read_head(name),
        lambda: store.read_log(name),
        lambda: store.append_log(name, LINES),
        lambda: store.write_head(replace(HEAD, name=name)),
        lambda: store.hold(name),
        lambda: store.holder(name),
    ):
        with pytest.raises(UsageProblem):
            call()
    with pytest.raises(UsageProblem):
        store.names("segments")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_head_is_listed_and_told(store: Store) -> None:
    for name in ("good", "torn", "newer", "textonly", "linked", "folder"):
        store.write_head(replace(HEAD, name=name))
        store.append_log(name, LINES)
    folder = store.root / "conversations"
    (folder / "torn.json").write_bytes(b'{"version":1')
    (folder / "newer.json").write_bytes(b'{"version":2}')
    (folder / "textonly.json").unlink()
    (folder / "linked.json").unlink()
    (folder / "linked.json").symlink_to(store.root / "key")
    (folder / "folder.json").unlink()
    (folder / "folder.json").mkdir()
    (folder / "no name.json").touch()
    (folder / ".json").touch()
    os.mkfifo(folder / "fifo.json")
    found = {each.name: each for each in store.heads()}
    assert isinstance(found.pop("good"), Head)
    codes = {name: each.code for name, each in found.items() if isinstance(each, BadEntry)}
    assert codes == {
        "torn": "bad",
        "newer": "refused",
        "textonly": "not_found",
        "linked": "io",
        "folder": "not_found",
        "fifo": "io",
    }
    assert store.names() == sorted([*codes, "good"])
    for name, error in (("torn", Bad), ("newer", Refused), ("textonly", NotFound), ("linked", StorageFailed)):
        with pytest.raises(error):
            store.read_head(name)
        assert store.read_log(name).lines == tuple(LINES)


def test_newest_is_by_completed_turn(store: Store) -> None:
    for name in ("b", "a", "c"):
        store.write_head(replace(HEAD, name=name, last_turn=store.next_time()))
    store.write_head(replace(HEAD, name="z"))
    newest = store.newest()
    assert newest and newest.name == "c"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_head_that_cannot_be_written_leaves_the_old_one(store: Store, code: int) -> None:
    store.write_head(HEAD)
    for at in range(5):
        failing = open_store(store.root, FailingFiles(code))
        failing.prepare()
        files = failing.directory.files
        assert isinstance(files, FailingFiles)
        files.calls.clear()
        files.at = at
        with pytest.raises(StorageFailed):
            failing.write_head(replace(HEAD, turns=9))
        renamed = "rename" in files.calls
        assert store.read_head("notes").turns == (9 if renamed else 0)
        assert list((store.root / "tmp").iterdir()) == []
        store.write_head(HEAD)


def test_a_log_is_durable_when_the_append_returns(store: Store) -> None:
    store.prepare()
    files = CountingFiles()
    counting = open_store(store.root, files)
    counting.prepare()
    files.calls.clear()
    counting.append_log("notes", LINES[:1])
    counting.append_log("notes", LINES[1:])
    assert files.calls == ["open", "write", "flush", "flush folder", "open", "write", "flush"]


def test_a_first_line_that_cannot_be_written_leaves_no_name(store: Store) -> None:
    """A full disk: an empty file would be shown as a conversation that nobody had."""
    failing = open_store(store.root, FailingFiles(errno.ENOSPC))
    failing.prepare()
    files = failing.directory.files
    assert isinstance(files, FailingFiles)
    files.calls.clear()
    files.at = 1
    with pytest.raises(StorageFailed):
        failing.append_log("fresh", LINES[:1])
    assert "fresh" not in store.names()
    assert list((store.root / "conversations").glob("fresh*")) == []


@pytest.mark.parametrize("at", [1, 2])
def test_an_append_that_fails_adds_nothing(store: Store, at: int) -> None:
    store.append_log("notes", LINES[:1])
    failing = open_store(store.root, FailingFiles(errno.ENOSPC))
    failing.prepare()
    files = failing.directory.files
    assert isinstance(files, FailingFiles)
    files.calls.clear()
    files.at = at
    with pytest.raises(StorageFailed):
        failing.append_log("notes", LINES[1:])
    assert (store.read_log("notes").lines, store.read_log("notes").bad) == (tuple(LINES[:1]), ())
    files.at = None
    failing.append_log("notes", LINES[1:])
    assert store.read_log("notes").lines == tuple(LINES)


def test_a_torn_log_grows_on_a_line_of_its_own(store: Store) -> None:
    store.append_log("notes", LINES)
    path = store.root / "conversations" / "notes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    third = replace(LINES[1], id=3)
    store.append_log("notes", [third])
    log = store.read_log("notes")
    assert log.lines == (LINES[0], third) and len(log.bad) == 1


def test_links_take_no_text_out_of_the_directory(store: Store, tmp_path: Path) -> None:
    store.append_log("notes", LINES[:1])
    outside = tmp_path / "outside"
    path = store.root / "conversations" / "notes.jsonl"
    os.link(path, outside)
    before = outside.read_bytes()
    store.append_log("notes", LINES[1:])
    assert outside.read_bytes() == before and store.read_log("notes").lines == tuple(LINES)
    path.unlink()
    path.symlink_to(outside)
    for attempt in (lambda: store.append_log("notes", LINES), lambda: store.read_log("notes")):
        with pytest.raises(StorageFailed, match="symbolic link"):
            attempt()
    (store.root / "conversations" / "notes.json").symlink_to(outside)
    store.write_head(HEAD)
    assert outside.read_bytes() == before and store.read_head("notes") == HEAD


CHILD = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from strata_cli.files import Files
from strata_cli.store import Store
store = Store.open(Path(sys.argv[1]), Files(), lambda: datetime(2026, 1, 1, tzinfo=UTC), command="strata run")
lock = store.hold("notes")
shared = store.shared()
print("held", flush=True)
time.sleep(60)
"""


def test_a_conversation_is_held_by_one_process_and_readable_by_all(store: Store, tmp_path: Path) -> None:
    store.write_head(HEAD)
    (tmp_path / "link").symlink_to(store.root)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "held\n"
    for other in (store, open_store(tmp_path / "link")):
        with pytest.raises(Locked, match=f"process {child.pid} .strata run. since 2026-01-01") as caught:
            other.hold("notes")
        assert caught.value.exit_code == 11
        holder = other.holder("notes")
        assert holder and holder.pid == child.pid
        assert other.read_head("notes") == HEAD
        with other.hold("another"), other.shared():
            pass
        with pytest.raises(Locked, match="the session directory is in use"):
            other.exclusive()
    child.kill()
    child.communicate()
    assert store.holder("notes") is None
    with store.hold("notes"), store.exclusive():
        holder = store.holder("notes")
        assert holder and holder.pid == 77
    assert not (store.root / "conversations" / "notes.lock").exists()


def test_a_sweep_keeps_out_who_wants_to_look_segments_up(store: Store) -> None:
    code = (
        "import sys; from datetime import UTC, datetime; from pathlib import Path\n"
        "from strata_cli.files import Files; from strata_cli.store import Store; import strata_cli.store as s\n"
        "s._SHARE_WAIT_S = 0.1\n"
        "Store.open(Path(sys.argv[1]), Files(), lambda: datetime.now(UTC)).shared()"
    )
    with store.exclusive():
        done = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True)
    assert "Locked: the session directory is held by process 77" in done.stderr


def test_another_users_directory_can_be_read_and_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_head(HEAD)
    store.append_log("notes", LINES)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    before = tree(store.root)
    other = open_store(store.root, ReadOnlyFiles())
    assert not other.writable
    with other.shared():
        assert other.read_head("notes") == HEAD and other.read_log("notes").lines == tuple(LINES)
    assert other.holder("notes") is None and other.names() == ["notes"]
    draft = Draft(Kind.ROWS, 0, 1, "0" * 32, "1" * 32, [1], {})
    for attempt in (
        lambda: other.write_head(HEAD),
        lambda: other.append_log("notes", LINES),
        lambda: other.hold("notes"),
        lambda: other.exclusive(),
        lambda: other.write_segment(draft, [b"x"]),
        lambda: other.next_time(),
    ):
        with pytest.raises(StorageFailed) as caught:
            attempt()
        assert caught.value.exit_code == 1 and "owner" in caught.value.hint
    assert tree(store.root) == before


def test_segments_go_to_the_state_directory_and_text_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    store = open_store(tmp_path / "s", state_dir=disk)
    ref, written = store.write_segment(Draft(Kind.ROWS, 0, 1, "0" * 32, "1" * 32, [1], {}), [b"x"])
    assert written and store.segment_path(ref.file).is_relative_to(disk)
    store.append_log("notes", LINES)
    disk.rename(tmp_path / "gone")
    again = open_store(tmp_path / "s", state_dir=disk)
    assert again.children("0" * 32) == [] and again.read_log("notes").lines == tuple(LINES)
    again.append_log("notes", [replace(LINES[0], id=3)])
    with pytest.raises(StorageFailed, match="state"):
        again.write_segment(Draft(Kind.ROWS, 0, 1, "0" * 32, "1" * 32, [1], {}), [b"x"])


def test_thousands_of_heads_are_read_quickly(store: Store) -> None:
    store.prepare()
    refs = tuple(SegmentRef("seg", i, i + 1, f"{'0' * 32}/{i + 1}-{'1' * 32}.seg", 9) for i in range(10))
    data = encode_head(replace(HEAD, states={"0" * 64: StateRef({"weights": "b3:"}, refs, (), 10)}))
    for i in range(2000):
        (store.root / "conversations" / f"c{i}.json").write_bytes(data)
    begun = time.process_time()
    assert sum(isinstance(head, Head) for head in store.heads()) == 2000
    assert time.process_time() - begun < 2
