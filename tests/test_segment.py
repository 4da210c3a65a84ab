"""Segment files: what is written is read, and every damage is an error with a name, never a crash."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata_cli.errors import Bad, Refused, StorageFailed, StrataError
from strata_cli.files import Files, write_new
from strata_cli.identity import prefix_hashes
from strata_cli.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    PAYLOAD_OFFSET,
    Draft,
    Header,
    Kind,
    SegmentFile,
    UnknownVersion,
    encode,
    seal_of,
)

KEY = b"k" * 32
TOKENS = list(range(1000, 1100))
HASHES = prefix_hashes(b"identity", TOKENS, [0, 40, 100])
DRAFT = Draft(Kind.ROWS, 40, 100, HASHES[40], HASHES[100], TOKENS[40:], {"why": "turn", "identity": {"a": 1}})
PAYLOAD = bytes(range(256)) * 40


def place(folder: Path, draft: Draft = DRAFT, payload: bytes = PAYLOAD, key: bytes = KEY) -> Path:
    path = folder / draft.relative_path
    path.parent.mkdir(exist_ok=True)
    blocks, total_bytes = encode(draft, [payload[:7], payload[7:]], key)
    write_new(Files(), folder, path, blocks, total_bytes)
    return path


def check(path: Path) -> bool:
    """Open, look at and verify everything."""
    with SegmentFile(Files().open(path), path) as segment:
        segment.tokens()
        _ = segment.metadata
        return segment.verify(KEY)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD])
def test_round_trip(tmp_path: Path, kind: Kind, payload: bytes) -> None:
    path = place(tmp_path, replace(DRAFT, kind=kind), payload)
    assert path.name == f"100-{HASHES[100]}.{kind.value}" and path.parent.name == HASHES[40]
    with SegmentFile(Files().open(path), path) as segment:
        assert segment.own is None
        assert segment.header == Header(1, kind, 40, 100, len(payload), 240, segment.header.metadata_bytes)
        assert segment.header.file_bytes == segment.file_bytes == path.stat().st_size
        assert list(segment.tokens()) == TOKENS[40:]
        assert segment.metadata == {**DRAFT.metadata, "start_hash": HASHES[40], "end_hash": HASHES[100]}
        assert segment.payload == payload and segment.payload.readonly
        assert segment.verify(KEY) is segment.own is True
        assert segment.sealed_by(KEY) and not segment.sealed_by(b"j" * 32)


def test_a_foreign_seal_is_intact_but_not_own(tmp_path: Path) -> None:
    path = place(tmp_path, key=b"j" * 32)
    assert check(path) is False


def test_the_payload_is_not_copied() -> None:
    arena = bytearray(PAYLOAD)
    blocks, _ = encode(DRAFT, [memoryview(arena)[100:200], b""], KEY)
    arena[100] ^= 1
    assert memoryview(blocks[1]) == memoryview(arena)[100:200]


@pytest.mark.parametrize(
    "draft",
    [replace(DRAFT, start=100), replace(DRAFT, start=-1), replace(DRAFT, end=101), replace(DRAFT, tokens=[-1] * 60)],
)
def test_a_draft_that_contradicts_itself_is_not_written(draft: Draft) -> None:
    with pytest.raises(Bad):
        encode(draft, [], KEY)


def cuts() -> list[int]:
    total = PAYLOAD_OFFSET + len(PAYLOAD) + 240 + 150 + FOOTER_BYTES
    tail = range(PAYLOAD_OFFSET + len(PAYLOAD) - 1, total, 13)
    steps = range(PAYLOAD_OFFSET, PAYLOAD_OFFSET + len(PAYLOAD), len(PAYLOAD) // 16)
    return [*range(HEADER_BYTES + 1), PAYLOAD_OFFSET - 1, *steps, *tail]


def test_a_cut_anywhere_is_bad(tmp_path: Path) -> None:
    path = place(tmp_path)
    data = path.read_bytes()
    for size in [size for size in cuts() if size < len(data)] + [len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(Bad):
            check(path)


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path = place(tmp_path)
    data = bytearray(path.read_bytes())
    end = len(data) - FOOTER_BYTES
    places = [*range(HEADER_BYTES), HEADER_BYTES, 4000, *range(PAYLOAD_OFFSET, end, 53), *range(end - 60, end + 32)]
    for at in places:
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises((Bad, UnknownVersion)):
            check(path)
        data[at] ^= 1 << at % 8
    for at in range(end + 32, len(data)):
        data[at] ^= 1
        path.write_bytes(data)
        assert check(path) is False
        data[at] ^= 1


def test_an_appended_byte_is_bad(tmp_path: Path) -> None:
    path = place(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(Bad, match="header says"):
        check(path)


def test_two_swapped_files_are_bad(tmp_path: Path) -> None:
    first = place(tmp_path)
    second = place(tmp_path, replace(DRAFT, start_hash="0" * 32, metadata={**DRAFT.metadata, "why": "swap"}))
    both = first.read_bytes(), second.read_bytes()
    assert len(both[0]) == len(both[1])
    second.write_bytes(both[0])
    first.write_bytes(both[1])
    for path in (first, second):
        with pytest.raises(Bad, match="other tokens"):
            check(path)
        with SegmentFile(Files().open(path), path) as segment:
            assert segment.verify(KEY, named=False)


def test_another_format_version_is_refused_and_not_bad(tmp_path: Path) -> None:
    path = place(tmp_path)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 2)
    path.write_bytes(data)
    with pytest.raises(Refused, match="format 2") as caught:
        check(path)
    assert not isinstance(caught.value, Bad) and path.name in caught.value.message


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**40])
@pytest.mark.parametrize("field", range(5))
def test_huge_counts_are_refused_before_anything_is_allocated(field: int, count: int) -> None:
    values = [0, 1, 0, 4, 0]
    values[field] = count
    data = struct.pack("<8sIIQQQQQ8x", b"strata\x1a\n", 1, 0, *values)
    with pytest.raises(Bad):
        Header.unpack(data, PAYLOAD_OFFSET + 4 + FOOTER_BYTES)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 2**63))
def test_a_header_of_any_bytes_raises_nothing_else(data: bytes, file_bytes: int) -> None:
    for header in (data, b"strata\x1a\n\x01\0\0\0" + data):
        try:
            Header.unpack(header, file_bytes)
        except StrataError:
            continue


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, PAYLOAD_OFFSET + len(PAYLOAD) + 500), patch=st.binary(min_size=1, max_size=40))
def test_any_patch_is_found_or_changes_nothing(tmp_path: Path, at: int, patch: bytes) -> None:
    path = place(tmp_path)
    data = bytearray(path.read_bytes())
    good = bytes(data)
    data[at : at + len(patch)] = patch
    path.write_bytes(data)
    try:
        own = check(path)
    except StrataError:
        return
    assert not own or bytes(data) == good


@pytest.mark.parametrize("name", [b"start_hash", b"end_hash"])
def test_metadata_that_is_sealed_but_wrong_is_bad(tmp_path: Path, name: bytes) -> None:
    path = place(tmp_path)
    data = path.read_bytes()[:-FOOTER_BYTES]
    wrong = data.replace(b'"' + name + b'"', b'"' + name[::-1] + b'"')
    digest = blake3(wrong).digest()
    path.write_bytes(wrong + digest + seal_of(digest, KEY))
    with pytest.raises(Bad, match="names no"):
        check(path)


def test_a_slice_in_use_outlives_close(tmp_path: Path) -> None:
    path = place(tmp_path)
    segment = SegmentFile(Files().open(path), path)
    rows = segment.payload
    segment.close()
    segment.close()
    assert rows == PAYLOAD


def test_a_disk_that_cannot_deliver_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(tmp_path)

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("strata_cli.segment._make_resident", broken)
    with SegmentFile(Files().open(path), path) as segment, pytest.raises(StorageFailed, match="Input/output"):
        segment.verify(KEY)
