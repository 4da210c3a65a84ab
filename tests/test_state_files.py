"""Segments in a directory: written once, found by their names, verified once, never lost to a failure."""

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from blake3 import blake3
from faulty_files import CountingFiles, FailingFiles, ReadOnlyFiles, tree

from strata_cli import segment as segment_module
from strata_cli.directory import Directory
from strata_cli.errors import Bad, NotFound, Refused, StorageFailed, UsageProblem
from strata_cli.files import Files
from strata_cli.head import SegmentRef
from strata_cli.identity import prefix_hashes
from strata_cli.segment import Draft, Kind
from strata_cli.state_files import StateFiles

TOKENS = list(range(100))
HASHES = prefix_hashes(b"identity", TOKENS, [0, 40, 100])
DRAFT = Draft(Kind.ROWS, 0, 40, HASHES[0], HASHES[40], TOKENS[:40], {"why": "turn"})
PAYLOAD = [b"rows" * 3000, b"part" * 10]


def state(root: Path, files: Files | None = None) -> StateFiles:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return StateFiles(Directory(root, files or Files(), lambda: now, state_dir=None, pid=1, command="test"))


def test_a_segment_is_written_once(tmp_path: Path) -> None:
    files = CountingFiles()
    found = state(tmp_path, files)
    ref, written = found.write(DRAFT, PAYLOAD)
    assert ref == SegmentRef("seg", 0, 40, DRAFT.relative_path, written)
    assert found.path(ref.file).stat().st_size == written
    before = tree(tmp_path)
    files.calls.clear()
    assert found.write(replace(DRAFT, metadata={"why": "another"}), PAYLOAD) == (ref, 0)
    assert files.calls == ["open"] and tree(tmp_path) == before
    with found.verified(found.path(ref.file)) as segment:
        assert segment.own and segment.payload == b"".join(PAYLOAD)


def test_children_are_the_names_in_a_folder(tmp_path: Path) -> None:
    found = state(tmp_path)
    found.write(DRAFT, PAYLOAD)
    found.write(replace(DRAFT, end=100, end_hash=HASHES[100], tokens=TOKENS), PAYLOAD)
    found.write(replace(DRAFT, kind=Kind.PART), [b"p"])
    folder = tmp_path / "segments" / HASHES[0]
    for stranger in (
        "x.seg",
        "1-x.seg",
        f"40-{HASHES[40]}.seg.tmp",
        f"-1-{HASHES[40]}.seg",
        ".hidden",
        f"\u0663-{HASHES[40]}.seg",
    ):
        (folder / stranger).touch()
    (folder / f"50-{HASHES[40]}.seg").symlink_to(folder / "x.seg")
    (folder / f"51-{HASHES[40]}.seg").mkdir()
    children = {(child.kind, child.end, child.end_hash) for child in found.children(HASHES[0])}
    rows, part = Kind.ROWS, Kind.PART
    assert children == {(rows, 40, HASHES[40]), (rows, 100, HASHES[100]), (part, 40, HASHES[40])}
    assert all(child.bytes == child.path.stat().st_size for child in found.children(HASHES[0]))
    for nothing in ("0" * 32, "..", "", "../conversations"):
        assert found.children(nothing) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path, code: int) -> None:
    state(tmp_path).write(replace(DRAFT, kind=Kind.PART), [b"p"])
    before = tree(tmp_path)
    path = tmp_path / "segments" / DRAFT.relative_path
    failed_at = []
    for at in range(30):
        files = FailingFiles(code, at)
        try:
            state(tmp_path, files).write(DRAFT, PAYLOAD)
        except StorageFailed:
            failed_at.append(at)
            # Only the flush of the folder fails once the file has its name, and by then it is whole.
            assert not path.exists() or files.calls[-2:] == ["rename", "failed"]
        if path.exists():
            with state(tmp_path).verified(path) as segment:
                assert segment.own
            path.unlink()
        assert tree(tmp_path) == before
    # Creating, five blocks, flush, rename, flush of the folder.
    assert len(failed_at) == 9


@pytest.mark.parametrize("damage", ["empty", "cut", "foreign", "other payload"])
def test_what_is_there_but_of_no_use_is_replaced(tmp_path: Path, damage: str) -> None:
    found = state(tmp_path)
    ref, written = found.write(DRAFT, PAYLOAD)
    path = found.path(ref.file)
    data = path.read_bytes()
    if damage == "foreign":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "other payload":
        path.unlink()
        found.write(DRAFT, [b"less"])
    else:
        path.write_bytes(b"" if damage == "empty" else data[:5000])
    assert found.write(DRAFT, PAYLOAD) == (ref, written)
    with found.verified(path) as segment:
        assert segment.own


def test_a_newer_format_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    found = state(tmp_path)
    path = found.path(found.write(DRAFT, PAYLOAD)[0].file)
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\x02\0\0\0" + data[12:])
    before = tree(tmp_path)
    for attempt in (lambda: found.write(DRAFT, PAYLOAD), lambda: found.verified(path)):
        with pytest.raises(Refused, match="format 2"):
            attempt()
    assert tree(tmp_path) == before


def test_verifying_hashes_once_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    real = segment_module._digest
    found = state(tmp_path)
    path = found.path(found.write(DRAFT, PAYLOAD)[0].file)
    monkeypatch.setattr(segment_module, "_digest", lambda *blocks: hashed.append(1) or real(*blocks))
    for _ in range(3):
        with found.verified(path) as segment:
            assert segment.own
    assert len(hashed) == 1
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(Bad, match="digest"):
            found.verified(path)
    assert path.exists()


def test_reading_needs_no_write(tmp_path: Path) -> None:
    path = tmp_path / "segments" / state(tmp_path).write(DRAFT, PAYLOAD)[0].file
    found = state(tmp_path, ReadOnlyFiles())
    assert [child.path for child in found.children(HASHES[0])] == [path]
    with found.verified(path) as segment:
        assert segment.own
    (tmp_path / "key").unlink()
    with state(tmp_path, ReadOnlyFiles()).verified(path) as segment:
        assert segment.own is False


def test_links_are_not_followed(tmp_path: Path) -> None:
    found = state(tmp_path / "s")
    path = found.path(found.write(DRAFT, PAYLOAD)[0].file)
    outside = tmp_path / HASHES[0]
    path.parent.rename(outside)
    path.parent.symlink_to(outside)
    before = tree(outside)
    for attempt in (
        lambda: found.open(path),
        lambda: found.children(HASHES[0]),
        lambda: found.write(replace(DRAFT, kind=Kind.PART), [b"p"]),
        lambda: found.quarantine(path, "bad"),
    ):
        with pytest.raises(StorageFailed):
            attempt()
    path.parent.unlink()
    path.parent.mkdir()
    path.symlink_to(outside / path.name)
    with pytest.raises(StorageFailed, match="symbolic link"):
        found.open(path)
    assert tree(outside) == before


def test_quarantine_moves_and_notes(tmp_path: Path) -> None:
    found = state(tmp_path)
    path = found.path(found.write(DRAFT, PAYLOAD)[0].file)
    data = path.read_bytes()
    place = found.quarantine(path, "its bytes fail their digest")
    assert place.read_bytes() == data and place.parent == tmp_path / "quarantine" and not path.exists()
    note = place.with_name(place.name + ".why").read_text()
    assert "fail their digest" in note and DRAFT.relative_path in note and "2026-01-01" in note
    with pytest.raises(NotFound):
        found.quarantine(path, "again")
    for stranger in (tmp_path / "key", tmp_path / "segments" / ".." / "key", Path("/etc/passwd")):
        with pytest.raises(UsageProblem):
            found.quarantine(stranger, "no segment")
    assert (tmp_path / "key").exists()


@pytest.mark.parametrize(
    "name", ["", "..", "../key", "a/b", f"{HASHES[0]}/../../key", f"{HASHES[0]}/1-{HASHES[0]}.seg/x"]
)
def test_only_segment_names_have_a_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageProblem):
        state(tmp_path).path(name)


def test_the_format_of_version_1_stays_as_it_is(tmp_path: Path) -> None:
    """A sealed file of version 1, by its digest: a change here makes stored state unreadable."""
    blocks, total_bytes = segment_module.encode(DRAFT, PAYLOAD, b"k" * 32)
    data = b"".join(map(bytes, blocks))
    assert len(data) == total_bytes
    assert blake3(data).hexdigest()[:16] == "a5b6abc15a1767ff"
