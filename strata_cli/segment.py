"""The bytes of one segment file: header, payload, token ids, metadata, digest and seal.

    offset  bytes
    0       64       header: magic, version, flags, start, end, three byte counts, zeros (little-endian)
    64      4032     zeros
    4096    payload  what the engine serialised for tokens [start, end)
            tokens   the ids of [start, end), u32 little-endian
            metadata canonical JSON: identity, `start_hash`, `end_hash`, why and when it was written
            32       digest: blake3 of all before it
            32       seal: blake3 of the digest, keyed with the directory's own key

It owns encoding and verifying. Where files lie, and what becomes of a bad one, is the directory's business.
"""

import contextlib
import errno
import mmap
import os
import re
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from .errors import Bad, Refused
from .files import BLOCK_BYTES, Buffer, storage_errors
from .identity import Json, canonical_json, parse_json, token_bytes, tokens_from_bytes

FORMAT_VERSION = 1
MAGIC = b"strata\x1a\n"
HEADER_BYTES = 64
PAYLOAD_OFFSET = 4096
DIGEST_BYTES = 32
FOOTER_BYTES = 64
KEY_BYTES = 32
# Metadata is parsed as a whole, so a forged count must not be able to ask for all memory.
METADATA_LIMIT_BYTES = 16 * 1024 * 1024
FILE_NAME = re.compile(r"(\d{1,15})-([0-9a-f]{32})\.(seg|part)", re.ASCII)
FOLDER_NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)

_HEADER = struct.Struct("<8sIIQQQQQ8x")
# linux/mman.h; Python names it from 3.14 on.
_MADV_POPULATE_READ = 22
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class Kind(Enum):
    """What a segment holds: rows, or the part of a boundary that cannot be cut by position."""

    ROWS = "seg"
    PART = "part"


_FLAGS = {Kind.ROWS: 0, Kind.PART: 1}
_KINDS = {flags: kind for kind, flags in _FLAGS.items()}


class UnknownVersion(Refused):
    """A newer strata wrote this file; it is not bad."""


@dataclass(frozen=True)
class Header:
    """The first 64 bytes. `start` and `end` are token positions; the rest counts bytes."""

    version: int
    kind: Kind
    start: int
    end: int
    payload_bytes: int
    tokens_bytes: int
    metadata_bytes: int

    @property
    def file_bytes(self) -> int:
        """How long a file with this header is."""
        return PAYLOAD_OFFSET + self.payload_bytes + self.tokens_bytes + self.metadata_bytes + FOOTER_BYTES

    def pack(self) -> bytes:
        """The header as 64 bytes."""
        counts = (self.payload_bytes, self.tokens_bytes, self.metadata_bytes)
        return _HEADER.pack(MAGIC, self.version, _FLAGS[self.kind], self.start, self.end, *counts)

    @staticmethod
    def unpack(data: bytes, file_bytes: int) -> "Header":
        """Read a header against the file's real size. Raises Bad, or UnknownVersion for another format."""
        if len(data) < HEADER_BYTES:
            raise Bad(f"only {file_bytes} bytes long, too short for a segment")
        magic, version, flags, start, end, payload, tokens, metadata = _HEADER.unpack(data[:HEADER_BYTES])
        if magic != MAGIC:
            raise Bad("does not begin as a segment does")
        if version != FORMAT_VERSION:
            hint = "install the strata version that wrote it"
            raise UnknownVersion(f"written in format {version}; this strata reads {FORMAT_VERSION}", hint=hint)
        if flags not in _KINDS or not start < end or tokens != 4 * (end - start):
            raise Bad("its header contradicts itself")
        header = Header(version, _KINDS[flags], start, end, payload, tokens, metadata)
        if header.file_bytes != file_bytes or metadata > METADATA_LIMIT_BYTES:
            raise Bad(f"{file_bytes} bytes long, but its header says {header.file_bytes}")
        return header


@dataclass(frozen=True)
class Draft:
    """A segment that is to be written: all but its payload. `tokens` are the ids of [start, end)."""

    kind: Kind
    start: int
    end: int
    start_hash: str
    end_hash: str
    tokens: Sequence[int]
    metadata: Mapping[str, Json]

    @property
    def relative_path(self) -> str:
        """Its place under `segments/`."""
        return f"{self.start_hash}/{self.end}-{self.end_hash}.{self.kind.value}"


def file_bytes(draft: Draft, payload_bytes: int) -> int:
    """How long the file of a draft with this much payload will be."""
    metadata = canonical_json({**draft.metadata, "start_hash": draft.start_hash, "end_hash": draft.end_hash})
    counts = (payload_bytes, 4 * len(draft.tokens), len(metadata))
    return Header(FORMAT_VERSION, draft.kind, draft.start, draft.end, *counts).file_bytes


def encode(draft: Draft, payload: Sequence[Buffer], key: bytes) -> tuple[list[Buffer], int]:
    """The blocks of a segment file in order, and their bytes in all.

    The payload comes in pieces, which are hashed and not copied.

    Raises Bad where the draft contradicts itself.
    """
    if not 0 <= draft.start < draft.end or len(draft.tokens) != draft.end - draft.start:
        raise Bad(f"tokens [{draft.start}, {draft.end}) cannot be {len(draft.tokens)} token ids")
    names = {"start_hash": draft.start_hash, "end_hash": draft.end_hash}
    metadata = canonical_json({**draft.metadata, **names})
    pieces = [memoryview(piece).cast("B") for piece in payload]
    counts = (sum(piece.nbytes for piece in pieces), 4 * len(draft.tokens), len(metadata))
    header = Header(FORMAT_VERSION, draft.kind, draft.start, draft.end, *counts)
    blocks: list[Buffer] = [
        header.pack().ljust(PAYLOAD_OFFSET, b"\0"),
        *pieces,
        token_bytes(draft.tokens) + metadata,
    ]
    digest = _digest(*blocks)
    blocks.append(digest + seal_of(digest, key))
    return blocks, header.file_bytes


def _are_same(found: bytes, stated: bytes) -> bool:
    from hmac import compare_digest  # it brings a library of ciphers along, which many commands do without

    return compare_digest(found, stated)


def seal_of(digest: bytes, key: bytes) -> bytes:
    """The seal that a directory with this 32-byte key puts under a digest."""
    return blake3(digest, key=key).digest()


def _digest(*blocks: Buffer) -> bytes:
    hasher = blake3(max_threads=blake3.AUTO)
    for block in blocks:
        hasher.update(block)
    return hasher.digest()


class SegmentFile:
    """An open segment file. It owns its descriptor; `close` it, or use it as a context manager.

    Header, metadata and token ids are read on their own; the payload is mapped at its first use, so that
    looking at a file of gigabytes costs a few kilobytes. `own` is what `verify` last found.
    """

    own: bool | None = None

    def __init__(self, fd: int, path: Path) -> None:
        """Take over `fd`; check header against real size. Raises Bad, UnknownVersion, StorageFailed."""
        self.path = path
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            facts = os.fstat(fd)
            self.stamp = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            self.file_bytes = facts.st_size
            self.header = self._named_errors(self._read(0, min(HEADER_BYTES, self.file_bytes)))
        except BaseException:
            self.close()
            raise

    def _named_errors(self, data: bytes) -> Header:
        try:
            return Header.unpack(data, self.file_bytes)
        except UnknownVersion as error:
            raise UnknownVersion(f"{self.path.name!r}: {error.message}", hint=error.hint) from None
        except Bad as error:
            raise self._bad(error.message) from None

    def _bad(self, why: str) -> Bad:
        return Bad(f"segment {self.path.parent.name}/{self.path.name}: {why}")

    def _read(self, offset: int, size: int) -> bytes:
        with storage_errors(self.path, "read"):
            data = os.pread(self._fd, size, offset)
            while len(data) < size and (more := os.pread(self._fd, size - len(data), offset + len(data))):
                data += more
        if len(data) != size:
            raise self._bad("became shorter while it was read")
        return data

    @cached_property
    def metadata(self) -> dict[str, Json]:
        """The metadata as it stands in the file, not verified. Raises Bad where it is no JSON object."""
        offset = PAYLOAD_OFFSET + self.header.payload_bytes + self.header.tokens_bytes
        found = parse_json(self._read(offset, self.header.metadata_bytes), f"segment {self.path.name}: metadata")
        if not isinstance(found, dict):
            raise self._bad("its metadata is no JSON object")
        return found

    def tokens(self) -> "array[int]":
        """The token ids of [start, end), not verified."""
        offset = PAYLOAD_OFFSET + self.header.payload_bytes
        return tokens_from_bytes(self._read(offset, self.header.tokens_bytes))

    @property
    def payload(self) -> memoryview:
        """The engine's bytes, mapped read-only. Release what you slice from it before `close`."""
        return self._mapped()[PAYLOAD_OFFSET : PAYLOAD_OFFSET + self.header.payload_bytes]

    def digest(self) -> bytes:
        """The digest that the footer states."""
        return self._read(self.file_bytes - FOOTER_BYTES, DIGEST_BYTES)

    def sealed_by(self, key: bytes) -> bool:
        """Whether the footer's seal belongs to its digest and this key; says nothing about the bytes."""
        footer = self._read(self.file_bytes - FOOTER_BYTES, FOOTER_BYTES)
        return _are_same(seal_of(footer[:DIGEST_BYTES], key), footer[DIGEST_BYTES:])

    def verify(self, key: bytes, *, named: bool = True) -> bool:
        """Whether it is sealed by `key` (False: intact, from another directory).

        Raises Bad where bytes fail the digest, or where the metadata contradicts the header or, when `named`,
        the file's place.
        """
        with self._mapped()[: self.file_bytes - FOOTER_BYTES] as body:
            found = _digest(body)
        if not _are_same(found, self.digest()):
            raise self._bad("its bytes fail their digest")
        self._check_names(named)
        self.own = self.sealed_by(key)
        return self.own

    def _check_names(self, named: bool) -> None:
        start_hash, end_hash = self.metadata.get("start_hash"), self.metadata.get("end_hash")
        if not (isinstance(start_hash, str) and FOLDER_NAME.fullmatch(start_hash)):
            raise self._bad("its metadata names no start")
        if not (isinstance(end_hash, str) and FOLDER_NAME.fullmatch(end_hash)):
            raise self._bad("its metadata names no end")
        name = f"{self.header.end}-{end_hash}.{self.header.kind.value}"
        if named and (self.path.name != name or self.path.parent.name != start_hash):
            raise self._bad("it holds the state of other tokens than its name says")

    def _mapped(self) -> memoryview:
        if self._view is None:
            with storage_errors(self.path, "map"):
                self._map = mmap.mmap(self._fd, self.file_bytes, prot=mmap.PROT_READ)
                _make_resident(self._map, self._fd)
            self._view = memoryview(self._map)
        return self._view

    def close(self) -> None:
        """Give descriptor and mapping back; a slice of the payload that is still in use keeps the mapping."""
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "SegmentFile":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _make_resident(mapping: mmap.mmap, fd: int) -> None:
    """Read the file into the page cache now, so that a bad disk is an OSError here and no SIGBUS later."""
    if sys.platform == "linux":
        try:
            mapping.madvise(_MADV_POPULATE_READ)
            return
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise OSError(errno.EIO, "the disk cannot deliver its bytes") from error
    scratch = bytearray(min(BLOCK_BYTES, len(mapping)))
    for offset in range(0, len(mapping), BLOCK_BYTES):
        os.preadv(fd, [scratch], offset)
