"""The strata file: what is written is read again, and everything else is refused. No engine."""

import io
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import made_up
import pytest
from faulty_files import tree

from strata_cli.archive import BLOCK, Manifest, Reader, header, parse_manifest
from strata_cli.errors import Bad, Refused, StrataError
from strata_cli.reception import Wish, look, receive
from strata_cli.snapshot import execute_save, plan_save
from strata_cli.store import Store


def reader_of(data: bytes, most: int = 1 << 30) -> Reader:
    stream = io.BytesIO(data)

    def read_into(view: memoryview) -> int:
        piece = stream.read(min(most, len(view)))
        view[: len(piece)] = piece
        return len(piece)

    return Reader(read_into)


def archive_of(store: Store, name: str = "notes") -> bytes:
    written = bytearray()
    execute_save(plan_save(store, name), store, written.extend, lambda _: None)
    return bytes(written)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return made_up.open_store(tmp_path / "a")


@pytest.fixture
def data(store: Store) -> bytes:
    made_up.converse(store, "notes", turns=2, payload_bytes=3000, parts=True)
    return archive_of(store)


def refused(data: bytes, root: Path) -> StrataError:
    """What receiving raises; outside `tmp/`, and there too after it, nothing may have been written."""
    target = made_up.open_store(root)
    with pytest.raises((Bad, Refused)) as caught:
        receive(target, reader_of(data), Wish())
    left = {path for path in tree(root) if not path.endswith(("lock", ".lock"))} if root.exists() else set()
    assert left == set()
    return caught.value


def test_what_was_written_is_read(data: bytes) -> None:
    manifest, head, log = look(reader_of(data))
    assert manifest.name == "notes" and manifest.total_bytes == len(data)
    assert (head.turns, head.tokens, len(log.branch())) == (2, 40, 4)
    assert len(manifest.carried) == 4


def test_it_is_a_tar_archive_for_others(data: bytes, tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        assert names[:3] == ["strata.json", "conversation.json", "conversation.jsonl"] and names[-1] == "digest"
        assert all(each.mode == 0o600 and each.isreg() for each in tar.getmembers())
        assert b"question 0 of 0: user" in tar.extractfile("conversation.jsonl").read()  # type: ignore[union-attr]
    (tmp_path / "x.tar").write_bytes(data)
    listed = subprocess.run(["tar", "-tf", tmp_path / "x.tar"], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == names


def test_equal_conversations_make_equal_files(store: Store, data: bytes) -> None:
    assert archive_of(store) == data


def test_it_is_read_from_a_pipe_that_gives_little_at_a_time(data: bytes) -> None:
    assert look(reader_of(data, most=777))[1].turns == 2


def test_N01_truncated_everywhere(data: bytes, tmp_path: Path) -> None:
    sizes = {*range(65), *range(0, len(data), BLOCK), *(n * len(data) // 16 for n in range(16)), len(data) - 1}
    sizes |= {edge + off for edge in range(BLOCK, len(data), BLOCK * 7) for off in (-1, 1)}
    for size in sorted(size for size in sizes if size < len(data)):
        error = refused(data[:size], tmp_path / "b")
        assert "ends inside" in error.message, size


def test_N02_one_bit_flipped_in_every_block_and_at_random(data: bytes, tmp_path: Path) -> None:
    chosen = random.Random(1)
    places = [at + chosen.randrange(BLOCK) for at in range(0, len(data), BLOCK)]
    places += [chosen.randrange(len(data)) for _ in range(100)]
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << chosen.randrange(8)
        refused(bytes(flipped), tmp_path / "b")


def test_C21_padded_or_followed_by_anything(data: bytes, tmp_path: Path) -> None:
    for tail in (b"\0", b"x", bytes(BLOCK), bytes(10240 - len(data) % 10240)):
        assert "follow" in refused(data + tail, tmp_path / "b").message


def members(data: bytes) -> list[tuple[bytes, bytes]]:
    """Headers and bodies (padded) in their order, without the end."""
    found, at = [], 0
    while any(data[at : at + BLOCK]):
        size = int(data[at + 124 : at + 135], 8)
        body = -(-size // BLOCK) * BLOCK
        found.append((data[at : at + BLOCK], data[at + BLOCK : at + BLOCK + body]))
        at += BLOCK + body
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(head + body for head, body in parts) + bytes(2 * BLOCK)


def renamed(block: bytes, name: bytes = b"", kind: bytes = b"", link: bytes = b"", size: bytes = b"") -> bytes:
    """A header with other fields and a checksum that fits."""
    new = bytearray(block)
    if name:
        new[:100] = name.ljust(100, b"\0")
    if kind:
        new[156:157] = kind
    if link:
        new[157:257] = link.ljust(100, b"\0")
    if size:
        new[124:136] = size.ljust(12, b"\0")
    new[148:156] = b" " * 8
    new[148:156] = b"%06o\0 " % sum(new)
    return bytes(new)


Hostile = Callable[[list[tuple[bytes, bytes]]], None]


def change(at: int, **fields: bytes) -> Hostile:
    def apply(parts: list[tuple[bytes, bytes]]) -> None:
        parts[at] = (renamed(parts[at][0], **fields), parts[at][1])

    return apply


def doubled(parts: list[tuple[bytes, bytes]]) -> None:
    parts.insert(4, parts[3])


def swapped(parts: list[tuple[bytes, bytes]]) -> None:
    parts[3], parts[4] = parts[4], parts[3]


def smuggled(parts: list[tuple[bytes, bytes]]) -> None:
    parts.insert(3, (header("conversations/other.json", 0), b""))


def extended(parts: list[tuple[bytes, bytes]]) -> None:
    parts.insert(3, (renamed(parts[3][0], name=b"PaxHeader/x", kind=b"x"), parts[3][1]))


HOSTILE: dict[str, Hostile] = {
    "slashes up": change(3, name=b"segments/../../../tmp/x"),
    "absolute": change(3, name=b"/tmp/strata-hostile"),
    "symbolic link": change(3, kind=b"2", link=b"/etc/passwd"),
    "hard link": change(3, kind=b"1", link=b"conversation.json"),
    "folder": change(3, kind=b"5"),
    "device": change(3, kind=b"3"),
    "sparse": change(3, kind=b"S"),
    "huge size": change(3, size=b"77777777777"),
    "binary size": change(3, size=b"\x80" + b"\xff" * 11),
    "negative size": change(3, size=b"-0000000001"),
    "huge manifest": change(0, size=b"77777777777"),
    "duplicate": doubled,
    "other order": swapped,
    "an extra member": smuggled,
    "extended header": extended,
    "long name": change(3, name=b"a" * 100),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives_are_refused(what: str, data: bytes, tmp_path: Path) -> None:
    parts = members(data)
    HOSTILE[what](parts)
    refused(joined(parts), tmp_path / "b")


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    assert "not a strata file" in refused(made.getvalue(), tmp_path / "b").message


def test_B15_another_version_is_refused_and_not_bad(data: bytes) -> None:
    manifest = parse_manifest(members(data)[0][1].rstrip(b"\0"))
    other = manifest.encode().replace(b'"version":1', b'"version":2')
    with pytest.raises(Refused, match="version 2"):
        parse_manifest(other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"head_bytes":', b'"head_bytes":-'),
        (b'"carried":[', b'"carried":["zzz",'),
        (b'"files":[[', b'"files":[[1,2,3],['),
        (b'"name":"notes"', b'"name":7'),
        (b'"since":""', b'"since":null'),
    ],
)
def test_a_malformed_manifest(old: bytes, new: bytes, data: bytes) -> None:
    encoded = members(data)[0][1].rstrip(b"\0")
    assert old in encoded
    with pytest.raises(Bad):
        parse_manifest(encoded.replace(old, new, 1))


def test_a_name_that_is_none_is_refused(store: Store, data: bytes, tmp_path: Path) -> None:
    plan = plan_save(store, "notes")
    for name in ("", "..", "a/b", "x" * 65, "-rf", "a\nb"):
        written = bytearray()
        forged = Manifest(**{**plan.manifest.__dict__, "name": name})
        object.__setattr__(plan, "manifest", forged)
        execute_save(plan, store, written.extend, lambda _: None)
        assert "cannot be a name" in refused(bytes(written), tmp_path / "b").message
