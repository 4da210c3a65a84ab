"""llama.cpp's sequence-state file (GGSQ), which llama-server writes and restores as a slot; and strata's trailer in it.

    0    u32       magic 0x67677371
    4    u32       version (3): compared for equality by llama.cpp
    8    u32       count of words
    12   u32 each  token ids; or the packed form: -1, 1, count, ids, media count, media, zero padding
    ..   state     as llama_state_seq_get_data gives it, without that call's 8-byte prefix
    ..   anything  llama.cpp reads the state by its own counts and ignores what follows

strata's trailer is the last block: canonical JSON, its blake3, its length as u64, 8 bytes of magic. Source of the
format: llama_context::state_seq_save_file and server_tokens::serialize of llama.cpp 0.5.0 (llama-cpp-python 0.3.36).
A file without the trailer has no digest: flipped K/V in it cannot be noticed, and nothing tells whose weights made it.
"""

import contextlib
import hmac
import mmap
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from blake3 import blake3

from .errors import Bad, Refused
from .files import Files, storage_errors
from .identity import Json, canonical_json, parse_json, tokens_from_bytes

MAGIC = 0x67677371
VERSION = 3
PACKED = 0xFFFFFFFF
PACKED_VERSION = 1
HEADER_BYTES = 12
PREFIX_BYTES = 8
TRAILER_MAGIC = b"strata\x1a\x0c"
TRAILER_VERSION = 1
TRAILER_LIMIT_BYTES = 1 << 30
_TAIL_BYTES = 32 + 8 + len(TRAILER_MAGIC)
# What llama.cpp's get_data and set_data put before a state (io magic, sequence id); files lack it.
STATE_MAGIC = 0xAF143CD8


@dataclass(frozen=True)
class Trailer:
    """What strata adds behind the state: `body_digest` is the blake3 of all before it."""

    value: dict[str, Any]
    start: int


def is_slot_file(first: bytes) -> bool:
    """Whether a file begins as one."""
    return first[:4] == MAGIC.to_bytes(4, "little")


def token_list(data: bytes) -> "array[int]":
    """The token ids of a file's words, plain or packed.

    Raises Bad for counts that do not fit, Refused for media and for another version of the packed form. Zero words
    after the media list are padding; anything else there is refused.
    """
    words = tokens_from_bytes(data)
    if not words or words[0] != PACKED:
        return words
    if len(words) < 4:
        raise Bad("the packed token list ends before its counts")
    if words[1] != PACKED_VERSION:
        raise Refused(f"the packed token list has version {words[1]}; strata reads {PACKED_VERSION}", reason="refused")
    count = words[2]
    if count > len(words) - 4:
        raise Bad(f"the packed token list says it has {count} tokens, and there are {len(words) - 4} words")
    media, padding = words[3 + count], words[4 + count :]
    if media:
        raise Refused(f"the file contains images or other media ({media}): strata keeps text", reason="media")
    if any(padding):
        raise Bad("the padding after the packed token list is not zero")
    return words[3 : 3 + count]


class SlotFile:
    """An open sequence file, mapped privately: `state` can be given a prefix without touching the file."""

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        """Raises NotFound, StorageFailed, Bad for a malformed head, Refused for another version or media.

        `follow` false: a link is refused, also where it leads to a good file.
        """
        self.path = path
        self._map: mmap.mmap | None = None
        with storage_errors(path, "open"):
            fd = Files().open(Path(os.path.realpath(path)) if follow else path)
        try:
            with storage_errors(path, "read"):
                self.size = os.fstat(fd).st_size
                first = os.pread(fd, HEADER_BYTES, 0)
                words = self._count(first)
                data = os.pread(fd, 4 * words, HEADER_BYTES)
                self.state_start = HEADER_BYTES + 4 * words
                self.tokens = token_list(data)
                if not self.tokens:
                    raise Bad(f"{path.name}: a slot file without tokens")
                self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_COPY)
            self._view = memoryview(self._map)
        finally:
            os.close(fd)

    def _count(self, first: bytes) -> int:
        if len(first) < HEADER_BYTES or not is_slot_file(first):
            raise Bad(f"{self.path.name}: neither a strata file nor a sequence file of llama.cpp")
        version, words = (int.from_bytes(first[at : at + 4], "little") for at in (4, 8))
        if version != VERSION:
            raise Refused(
                f"{self.path.name}: state format {version}; this engine reads {VERSION}",
                reason="identity",
                hint="restore it with the llama.cpp that wrote it; a strata file keeps the text too",
            )
        if 4 * words > self.size - HEADER_BYTES:
            raise Bad(f"{self.path.name}: says it has {words} words of tokens, and is {self.size} bytes long")
        return words

    @property
    def state(self) -> memoryview:
        """All behind the tokens: the state, and what may follow it."""
        return self._view[self.state_start :]

    def prefixed_state(self, state_bytes: int) -> memoryview:
        """The state with the prefix that the engine's in-memory call wants, put over the last two token words."""
        start = self.state_start - PREFIX_BYTES
        self._view[start : self.state_start] = STATE_MAGIC.to_bytes(4, "little") + bytes(4)
        return self._view[start : self.state_start + state_bytes]

    def trailer(self, state_bytes: int | None = None) -> Trailer | None:
        """strata's trailer, its digest and that of state and tokens checked; None where there is none. Raises Bad.

        Blocks of others may stand before it or after it. `state_bytes` is what the engine found, None without one.
        """
        behind = self.state_start + (state_bytes or 0)
        tail = self._view[behind:]
        assert self._map is not None
        found = self._map.rfind(TRAILER_MAGIC, behind)
        if found < 0:
            return None
        end = found + len(TRAILER_MAGIC) - behind
        size = int.from_bytes(tail[end - 16 : end - 8], "little")
        start = end - _TAIL_BYTES - size
        if start < 0 or size > TRAILER_LIMIT_BYTES:
            raise Bad(f"{self.path.name}: strata's trailer says it is {size} bytes long, and is not")
        data = bytes(tail[start : start + size])
        if not hmac.compare_digest(blake3(data).digest(), bytes(tail[start + size : start + size + 32])):
            raise Bad(f"{self.path.name}: strata's trailer fails its digest")
        value = parse_json(data, "the trailer")
        if not isinstance(value, dict) or value.get("version") != TRAILER_VERSION:
            raise Refused(f"{self.path.name}: strata's trailer has another version", hint="install its strata version")
        self._check_body(value, behind + start, None if state_bytes is None else behind)
        return Trailer(value, behind + start)

    def _check_body(self, value: dict[str, Any], limit: int, wanted: int | None) -> None:
        size = value.get("body_bytes")
        if type(size) is not int or not self.state_start <= size <= limit or wanted not in (None, size):
            raise Bad(f"{self.path.name}: its state is not as long as strata's trailer says")
        digest = blake3(max_threads=blake3.AUTO).update(self._view[:size]).hexdigest()
        if value.get("body_digest") != digest:
            raise Bad(f"{self.path.name}: its bytes fail their digest")

    def close(self) -> None:
        if self._map is not None:
            # A slice that an error still holds keeps the mapping until it is gone.
            with contextlib.suppress(BufferError):
                self._view.release()
                self._map.close()
            self._map = None

    def __enter__(self) -> "SlotFile":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def trailer_bytes(value: dict[str, Json], body_bytes: int, body_digest: str) -> bytes:
    """The block to append behind the state, which ends `body_bytes` from the file's beginning."""
    body = {"body_bytes": body_bytes, "body_digest": body_digest}
    data = canonical_json({**value, **body, "version": TRAILER_VERSION})
    return data + blake3(data).digest() + len(data).to_bytes(8, "little") + TRAILER_MAGIC


def file_digest(fd: int, size: int) -> str:
    """The blake3 (hex) of the first `size` bytes of a file, in bounded memory."""
    hasher, chunk, at = blake3(max_threads=blake3.AUTO), bytearray(1 << 20), 0
    while at < size:
        got = os.preadv(fd, [memoryview(chunk)[: min(len(chunk), size - at)]], at)
        if not got:
            raise Bad("the file became shorter while it was read")
        hasher.update(memoryview(chunk)[:got])
        at += got
    return hasher.hexdigest()
