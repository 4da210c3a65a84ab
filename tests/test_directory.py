"""The session directory: private, made at the first write, one key, a clock that never goes back."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from faulty_files import ReadOnlyFiles, tree

from strata_cli.directory import Directory, iso_time
from strata_cli.errors import StorageFailed
from strata_cli.files import Files

START = datetime(2026, 1, 1, tzinfo=UTC)


def directory(
    root: Path, files: Files | None = None, now: datetime = START, state_dir: Path | None = None
) -> Directory:
    return Directory(root, files or Files(), lambda: now, state_dir=state_dir, pid=1, command="test")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    found = directory(tmp_path / "a" / "s", ReadOnlyFiles())
    assert len(found.key) == 32 and found.key == found.key
    assert found.writable and found.free_bytes() > 0
    assert list(tmp_path.iterdir()) == []


def test_everything_is_private_from_creation(tmp_path: Path, open_umask: None) -> None:
    root = tmp_path / "a" / "s"
    found = directory(root)
    found.prepare_state()
    found.next_time()
    names = {path.name for path in root.iterdir()}
    assert names == {"conversations", "prefixes", "segments", "quarantine", "tmp", "counters", "key"}
    for path in [root.parent, root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_looser_folders_are_tightened_by_the_next_write(tmp_path: Path) -> None:
    (tmp_path / "conversations").mkdir()
    for folder in (tmp_path, tmp_path / "conversations"):
        folder.chmod(0o755)
    directory(tmp_path).prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == stat.S_IMODE((tmp_path / "conversations").stat().st_mode) == 0o700


def test_the_key_is_made_once(tmp_path: Path) -> None:
    first = directory(tmp_path)
    before = first.key
    first.prepare_state()
    assert (tmp_path / "key").read_bytes() == first.key != before
    second = directory(tmp_path)
    second.prepare_state()
    assert second.key == first.key


def test_many_that_begin_at_once_agree_on_one_key(tmp_path: Path) -> None:
    found = [directory(tmp_path / "s") for _ in range(8)]
    threads = [threading.Thread(target=each.prepare_state) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.key for each in found}) == 1


@pytest.mark.parametrize("text", [b"", b"short", b"x" * 33])
def test_a_malformed_key_is_a_storage_failure_and_is_kept(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(StorageFailed, match="not a key"):
        _ = directory(tmp_path).key
    with pytest.raises(StorageFailed, match="not a key"):
        directory(tmp_path).prepare_state()
    assert (tmp_path / "key").read_bytes() == text


def test_a_key_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"x" * 32)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "key").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageFailed, match="symbolic link"):
        _ = directory(tmp_path / "s").key


def test_times_are_strictly_later_whatever_the_clock_does(tmp_path: Path) -> None:
    clocks = [START, START, START - timedelta(days=400), START + timedelta(seconds=1), START]
    times = [directory(tmp_path, now=now).next_time() for now in clocks]
    assert times == sorted(set(times))
    assert times[0] == iso_time(START) == "2026-01-01T00:00:00.000000Z"
    assert times[1] == "2026-01-01T00:00:00.000001Z" and times[3] == "2026-01-01T00:00:01.000000Z"


def test_times_of_two_processes_differ(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from datetime import datetime, UTC\n"
        "from strata_cli.directory import Directory; from strata_cli.files import Files\n"
        "d = Directory(Path(sys.argv[1]), Files(), lambda: datetime(2026, 1, 1, tzinfo=UTC),"
        " state_dir=None, pid=1, command='x')\n"
        "print('\\n'.join(d.next_time() for _ in range(20)))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    times = [line for each in both for line in each.communicate()[0].split()]
    assert len(times) == len(set(times)) == 40


@pytest.mark.parametrize(
    "text", [b"", b"x", b"9999-12-31T23:59:59.999999Z", b"2026-01-01T00:00:00", b"\xff", b"x" * 99]
)
def test_a_broken_clock_file_is_replaced(tmp_path: Path, text: bytes) -> None:
    found = directory(tmp_path)
    found.prepare()
    (tmp_path / "counters" / "clock").write_bytes(text)
    assert found.next_time() == iso_time(START)


def test_another_users_directory_is_read_only_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory(tmp_path).prepare_state()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    before = tree(tmp_path)
    found = directory(tmp_path, ReadOnlyFiles())
    assert not found.writable and not found.state_writable
    for write in (found.prepare, found.prepare_state, found.next_time):
        with pytest.raises(StorageFailed, match="cannot be written by this user") as caught:
            write()
        assert (caught.value.reason, caught.value.exit_code) == ("permission", 1)
        assert "owner" in caught.value.hint
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["conversations", "prefixes", "segments", "quarantine", "tmp", "counters"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(StorageFailed, match="symbolic link"):
        directory(tmp_path / "s")
    (tmp_path / "s" / name).unlink()
    (tmp_path / "s" / name).symlink_to(name)
    with pytest.raises(StorageFailed, match="symbolic link"):
        directory(tmp_path / "s")


def test_the_root_may_be_reached_by_a_link_and_locks_belong_to_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert directory(tmp_path / "link").root == directory(tmp_path / "real").root
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="not a folder"):
        directory(tmp_path / "file")


def test_state_may_lie_elsewhere_and_its_disk_may_be_missing(tmp_path: Path) -> None:
    root, disk = tmp_path / "s", tmp_path / "disk"
    found = directory(root, state_dir=disk)
    found.prepare()
    assert not found.state_writable and found.writable
    with pytest.raises(StorageFailed, match="missing") as caught:
        found.prepare_state()
    assert "state_dir" in caught.value.hint and not disk.exists()
    disk.mkdir()
    again = directory(root, state_dir=disk)
    again.prepare_state()
    assert {path.name for path in disk.iterdir()} == {"segments", "quarantine", "tmp"}
    assert {path.name for path in root.iterdir()} == {"conversations", "prefixes", "counters", "tmp", "key"}
