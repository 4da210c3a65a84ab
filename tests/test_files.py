"""The seam to the disk: written whole or not at all, private from creation, never through a link."""

import errno
import os
import resource
import shutil
import stat
from pathlib import Path

import pytest
from faulty_files import CountingFiles, FailingFiles, tree

from strata_cli.errors import Bad, DiskFull, NotFound, StorageFailed
from strata_cli.files import Entry, Files, ensure_folder, read_bytes, storage_errors, write_new


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_modes_are_private_from_creation(tmp_path: Path, umask: None) -> None:
    files = Files()
    assert files.make_folder(tmp_path / "folder")
    os.close(files.create(tmp_path / "new"))
    os.close(files.open(tmp_path / "log", append=True))
    assert (mode(tmp_path / "folder"), mode(tmp_path / "new"), mode(tmp_path / "log")) == (
        0o700,
        0o600,
        0o600,
    )


def test_looser_folders_and_logs_are_tightened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o755)
    (tmp_path / "log").touch()
    (tmp_path / "log").chmod(0o644)
    assert not Files().make_folder(tmp_path / "folder")
    os.close(Files().open(tmp_path / "log", append=True))
    assert (mode(tmp_path / "folder"), mode(tmp_path / "log")) == (0o700, 0o600)


@pytest.mark.parametrize("append", [False, True])
def test_a_symlink_is_never_followed(tmp_path: Path, append: bool) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("outside")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("link", "dangling", "loop"):
        with pytest.raises(StorageFailed, match="symbolic link"), storage_errors(tmp_path / name, "open"):
            Files().open(tmp_path / name, append=append)
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_linked_folder_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for call in (Files().make_folder, Files().list):
        with pytest.raises(OSError):
            call(tmp_path / "link")


def test_rename_replaces_a_link_and_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "target").symlink_to("outside")
    write_new(Files(), tmp_path, tmp_path / "target", [b"new"], 3)
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert not (tmp_path / "target").is_symlink() and (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("append", [False, True])
def test_a_fifo_and_a_device_do_not_hang(tmp_path: Path, append: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            Files().open(path, append=append)
    with pytest.raises(StorageFailed, match="not a regular file"):
        read_bytes(Files(), tmp_path / "fifo", 10)


def test_list_sees_links_as_neither_file_nor_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    found = {entry.name: entry for entry in Files().list(tmp_path)}
    assert (found["file"].is_file, found["file"].size, found["folder"].is_folder) == (True, 3, True)
    assert not found["link"].is_file and not found["link"].is_folder
    assert Entry("file", True, False, 0, 0) in Files().list(tmp_path, sizes=False)
    assert Files().list(tmp_path / "missing") == []


def test_list_asks_for_the_sizes_that_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"123")
    (tmp_path / "a.jsonl").write_bytes(b"12345")
    found = {entry.name: entry.size for entry in Files().list(tmp_path, sizes=lambda name: name.endswith("l"))}
    assert found == {"a.json": 0, "a.jsonl": 5}


def test_sizes_below_follow_no_link_and_leave_out_what_is_no_file(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    for folder in (top / "a", top / "empty", top / "b" / "deep", outside):
        folder.mkdir(parents=True)
    for path in (top / "a" / "x", top / "a" / "y", top / "b" / "deep" / "far", top / "stray", outside / "z"):
        path.write_bytes(b"123")
    (top / "linked").symlink_to(outside)
    (top / "loop").symlink_to("loop")
    (top / "a" / "link").symlink_to(outside / "z")
    os.mkfifo(top / "fifo")
    assert Files().sizes_below(top) == {"stray": 3, "a/x": 3, "a/y": 3}
    assert Files().sizes_below(tmp_path / "missing") == {}
    with pytest.raises(OSError):
        Files().sizes_below(top / "linked")


def test_sizes_below_leave_out_what_goes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"1")
        (tmp_path / name / "y").write_bytes(b"1")
    listed, listdir = [], os.listdir

    def racing(folder: str) -> list[str]:
        if listed:
            shutil.rmtree(folder)
        listed.append(folder)
        names = listdir(folder)
        (Path(folder) / "y").unlink()
        return names

    monkeypatch.setattr(os, "listdir", racing)
    assert list(Files().sizes_below(tmp_path)) == [f"{Path(listed[0]).name}/x"]


def test_write_new_is_reserved_flushed_and_renamed_in_this_order(tmp_path: Path) -> None:
    files = CountingFiles()
    assert write_new(files, tmp_path, tmp_path / "a", [b"ab", memoryview(b"cd"), bytearray(2)], 6) == 6
    assert files.calls == ["create", "write", "write", "write", "flush", "rename", "flush folder"]
    assert (tmp_path / "a").read_bytes() == b"abcd\0\0"
    assert mode(tmp_path / "a") == 0o600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("at", range(7))
def test_a_write_that_fails_anywhere_leaves_the_old_file_and_no_temporary(tmp_path: Path, code: int, at: int) -> None:
    target = tmp_path / "target"
    write_new(Files(), tmp_path, target, [b"old"], 3)
    (tmp_path / "1234-other.tmp").write_bytes(b"another writer's")
    files = FailingFiles(code, at)
    with pytest.raises(StorageFailed) as caught:
        write_new(files, tmp_path, target, [b"new", b"er", b"!"], 6)
    renamed = "rename" in files.calls
    assert target.read_bytes() == (b"newer!" if renamed else b"old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1234-other.tmp", "target"]
    expected = {errno.EIO: "io", errno.EACCES: "permission"}.get(code, "no_room")
    assert caught.value.reason == expected
    assert (caught.value.exit_code == 15) == (expected == "no_room")


def test_a_size_limit_is_an_error_before_a_byte_is_written(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    files = CountingFiles()
    try:
        with pytest.raises(DiskFull, match=r"needed 8192 bytes, had [0-9]+$"):
            write_new(files, tmp_path, tmp_path / "a", [bytes(8192)], 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert files.calls == ["create", "unlink"]


def test_fewer_bytes_than_promised_never_get_the_final_name(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="not all bytes"):
        write_new(Files(), tmp_path, tmp_path / "a", [b"ab"], 3)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_removes_the_temporary_too(tmp_path: Path) -> None:
    class Interrupted(Files):
        def write(self, fd: int, data: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_new(Interrupted(), tmp_path, tmp_path / "a", [b"ab"], 2)
    assert list(tmp_path.iterdir()) == []


def test_read_bytes_checks_the_size_first(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(Bad, match="1099511627776 bytes"):
        read_bytes(Files(), tmp_path / "huge", 1000)
    with pytest.raises(NotFound):
        read_bytes(Files(), tmp_path / "missing", 1000)
    (tmp_path / "empty").touch()
    assert read_bytes(Files(), tmp_path / "empty", 0) == b""


def test_ensure_folder_makes_each_durable(tmp_path: Path) -> None:
    files = CountingFiles()
    ensure_folder(files, tmp_path / "a" / "b")
    assert files.calls == ["make_folder", "flush folder"] * 2
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "file").touch()
    before = tree(tmp_path)
    with pytest.raises(StorageFailed):
        ensure_folder(files, tmp_path / "file" / "c")
    assert tree(tmp_path) == before
