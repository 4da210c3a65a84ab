"""Fingerprints: equal to the content's blake3, hashed once, and never remembered wrongly."""

import os
import time
from pathlib import Path

import pytest
from blake3 import blake3
from faulty_files import CountingFiles, FailingFiles, ReadOnlyFiles

from strata_cli.errors import NotFound, StorageFailed
from strata_cli.files import BLOCK_BYTES, Files
from strata_cli.fingerprint import file_digest

LATER_NS = 10_000_000_000


def later() -> int:
    return time.time_ns() + LATER_NS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    return path


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_it_is_the_blake3_of_the_content(tmp_path: Path, size: int) -> None:
    data = os.urandom(1000) * (size // 1000 + 1)
    (tmp_path / "m").write_bytes(data[:size])
    steps: list[tuple[int, int]] = []
    found = file_digest(tmp_path / "m", tmp_path / "c", Files(), progress=lambda *at: steps.append(at), now_ns=later())
    assert found == "b3:" + blake3(data[:size]).hexdigest()
    assert steps == [(done, size) for done in range(BLOCK_BYTES, size, BLOCK_BYTES)] + [(size, size)] * (size > 0)


def test_it_is_hashed_once(model: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    def digest() -> str:
        return file_digest(
            model, tmp_path / "cache", Files(), progress=lambda done, _: steps.append(done), now_ns=later()
        )

    first = digest()
    assert digest() == first and len(steps) == 1
    os.link(model, tmp_path / "same.gguf")
    model.write_bytes(b"other.." * 1000)
    assert digest() != first and len(steps) == 2


def test_a_cached_answer_needs_no_write(model: Path, tmp_path: Path) -> None:
    first = file_digest(model, tmp_path / "cache", Files(), now_ns=later())
    assert file_digest(model, tmp_path / "cache", ReadOnlyFiles(), now_ns=later()) == first


def test_the_same_size_and_mtime_with_other_bytes_is_seen(model: Path, tmp_path: Path) -> None:
    facts = model.stat()
    first = file_digest(model, tmp_path / "cache", Files(), now_ns=later())
    model.write_bytes(b"Weights" * 1000)
    os.utime(model, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert file_digest(model, tmp_path / "cache", Files(), now_ns=later()) != first


def test_a_file_written_a_moment_ago_is_not_remembered(model: Path, tmp_path: Path) -> None:
    file_digest(model, tmp_path / "cache", Files(), now_ns=model.stat().st_ctime_ns + 1_000_000_000)
    assert not (tmp_path / "cache").exists()


def test_a_file_that_changes_meanwhile_is_refused(model: Path, tmp_path: Path) -> None:
    def append(done: int, size: int) -> None:
        if done == size:
            with model.open("ab") as file:
                file.write(b"x")

    with pytest.raises(StorageFailed, match="changed while"):
        file_digest(model, tmp_path / "cache", Files(), progress=append, now_ns=later())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"stamp":1}', b"\xff", b"x" * 5000])
def test_a_broken_cache_is_ignored_and_replaced(model: Path, tmp_path: Path, text: bytes) -> None:
    first = file_digest(model, tmp_path / "cache", Files(), now_ns=later())
    (entry,) = (tmp_path / "cache").iterdir()
    good = entry.read_bytes()
    for broken in (text, good.replace(first.encode(), b"b3:" + b"z" * 64), good.replace(b"b3:", b"b4:")):
        entry.write_bytes(broken)
        assert file_digest(model, tmp_path / "cache", Files(), now_ns=later()) == first
        assert entry.read_bytes() == good


@pytest.mark.parametrize("at", range(2, 8))
def test_a_cache_that_cannot_be_written_costs_nothing(model: Path, tmp_path: Path, at: int) -> None:
    files = FailingFiles(at=at)
    assert file_digest(model, tmp_path / "cache", files, now_ns=later()).startswith("b3:")


def test_links_to_models_are_followed_and_strangers_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert file_digest(tmp_path / "link", tmp_path / "c", CountingFiles(), now_ns=later()).startswith("b3:")
    os.mkfifo(tmp_path / "fifo")
    for name, error in (("fifo", StorageFailed), ("missing", NotFound), (".", StorageFailed)):
        with pytest.raises(error):
            file_digest(tmp_path / name, tmp_path / "c", Files(), now_ns=later())
