"""The strata file: one conversation as one stored tar archive that is written and read as a stream.

    strata.json          the manifest: format, version, what follows with its bytes, every file of the state
    conversation.json    the head, as in a session directory
    conversation.jsonl   the log: the text, in the clear
    segments/...         segment files, byte for byte as they lie in the directory they come from
    digest               blake3 of every byte before this member's header

Tar is read and written front to back and every system can look inside (`tar tf`). The reader is far stricter than
tar: each 512-byte header must be, byte for byte, the one that this module writes for the name and size that come
next, so links, slashes, duplicates, other owners and odd numbers have no way in. It owns the bytes; what may be
written where is decided above.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from .errors import Bad, Refused
from .files import Buffer
from .identity import Json, canonical_json, parse_json
from .segment import FILE_NAME, FOLDER_NAME

FORMAT, VERSION = "strata archive", 1
MANIFEST, HEAD, LOG, DIGEST = "strata.json", "conversation.json", "conversation.jsonl", "digest"
SEGMENTS = "segments/"
BLOCK = 512
END_BYTES = 2 * BLOCK
CHUNK_BYTES = 1 << 20
SIZE_LIMIT_BYTES = 8**11 - 1  # what a tar header's eleven octal digits can say
MANIFEST_LIMIT_BYTES, HEAD_LIMIT_BYTES, LOG_LIMIT_BYTES = 64 << 20, 64 << 20, 1 << 30
FILES_LIMIT = 1_000_000
_DIGEST_MEMBER_BYTES = len("b3:") + 64 + 1


@dataclass(frozen=True)
class Listed:
    """One segment file of the conversation: its path under `segments/`, its bytes, the digest in its footer (hex)."""

    file: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The first member. `files` are all that the state stands on, `carried` those that are in this archive.

    `branches` is "current" or "all"; `since` names the archive (hex of its manifest's digest) that has the rest;
    `seal` is the log's digest, keyed with the secret of the directory it comes from.
    """

    name: str
    branches: str
    head_bytes: int
    log_bytes: int
    files: tuple[Listed, ...]
    carried: tuple[str, ...]
    since: str = ""
    seal: str = ""

    def encode(self) -> bytes:
        """Canonical JSON and a newline."""
        return (
            canonical_json(
                {
                    "format": FORMAT,
                    "version": VERSION,
                    "name": self.name,
                    "branches": self.branches,
                    "head_bytes": self.head_bytes,
                    "log_bytes": self.log_bytes,
                    "files": [[each.file, each.bytes, each.digest] for each in self.files],
                    "carried": list(self.carried),
                    "since": self.since,
                    "seal": self.seal,
                }
            )
            + b"\n"
        )

    @property
    def digest(self) -> str:
        """What `since` of a later archive says."""
        return blake3(self.encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """The members between manifest and digest in their order, in bytes."""
        by_file = {each.file: each.bytes for each in self.files}
        return {HEAD: self.head_bytes, LOG: self.log_bytes} | {SEGMENTS + f: by_file[f] for f in self.carried}

    @property
    def total_bytes(self) -> int:
        """How long the whole archive is."""
        sizes = (len(self.encode()), *self.sizes().values(), _DIGEST_MEMBER_BYTES)
        return sum(map(_padded, sizes)) + END_BYTES


def parse_manifest(data: bytes) -> Manifest:
    """Raises Bad for every malformed one, Refused for another version."""
    value = parse_json(data, MANIFEST)
    if not isinstance(value, dict) or value.get("format") != FORMAT or type(value.get("version")) is not int:
        raise Bad(f"{MANIFEST}: not the manifest of a strata file")
    if value["version"] != VERSION:
        raise Refused(
            f"a strata file of version {value['version']}; this strata reads {VERSION}",
            hint="install the strata version that wrote it",
        )
    manifest = _manifest(value)
    if manifest.encode() != data:
        raise Bad(f"{MANIFEST}: not written as strata writes it")
    return manifest


def _manifest(value: dict[str, Any]) -> Manifest:
    texts: list[Any] = [value.get(name) for name in ("name", "branches", "since", "seal")]
    counts: list[Any] = [value.get(name) for name in ("head_bytes", "log_bytes")]
    rows, carried = value.get("files"), value.get("carried")
    if not all(isinstance(text, str) for text in texts) or not all(_is_size(count) for count in counts):
        raise Bad(f"{MANIFEST}: a value is missing or of a wrong type")
    if not isinstance(rows, list) or not isinstance(carried, list) or len(rows) > FILES_LIMIT:
        raise Bad(f"{MANIFEST}: its lists of files are none")
    files = tuple(_listed(row) for row in rows)
    known = {each.file for each in files}
    if len(known) != len(files) or len(set(map(str, carried))) != len(carried) or not known.issuperset(carried):
        raise Bad(f"{MANIFEST}: a file is listed twice, or carried and not listed")
    name, branches, since, seal = texts
    return Manifest(name, branches, counts[0], counts[1], files, tuple(carried), since, seal)


def _is_size(value: Json) -> bool:
    return type(value) is int and 0 <= value <= SIZE_LIMIT_BYTES


def _listed(row: Json) -> Listed:
    if isinstance(row, list) and len(row) == 3:
        file, size, digest = row
        folder, slash, name = str(file).partition("/")
        named = slash and FOLDER_NAME.fullmatch(folder) and FILE_NAME.fullmatch(name)
        if isinstance(file, str) and named and _is_size(size) and isinstance(digest, str) and _is_hex(digest):
            return Listed(file, size, digest)
    raise Bad(f"{MANIFEST}: {str(row)[:120]!a} is no segment file")


def _is_hex(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdef" for char in text)


def header(name: str, size_bytes: int) -> bytes:
    """The ustar header of a regular file of mode 0600, owned by nobody in particular, without a time."""
    if size_bytes > SIZE_LIMIT_BYTES or len(name) > 100:
        raise Bad(f"{name!a} with {size_bytes} bytes does not fit a tar archive")
    fields = [
        name.encode().ljust(100, b"\0"),
        b"0000600\0" + b"0000000\0" + b"0000000\0",
        b"%011o\0" % size_bytes,
        b"%011o\0" % 0,
        b" " * 8,
        b"0" + b"\0" * 100,
        b"ustar\x0000" + b"\0" * 64,
        b"0000000\0" * 2 + b"\0" * 155,
    ]
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _padding(size_bytes: int) -> int:
    return -size_bytes % BLOCK


def _padded(size_bytes: int) -> int:
    return BLOCK + size_bytes + _padding(size_bytes)


class Writer:
    """Writes an archive through `write`, which takes all that it is given. `bytes_written` is what went out."""

    def __init__(self, write: Callable[[Buffer], None]) -> None:
        self._write = write
        self._hasher = blake3(max_threads=blake3.AUTO)
        self.bytes_written = 0

    def _out(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._write(data)
        self.bytes_written += memoryview(data).nbytes

    def add(self, name: str, size_bytes: int, blocks: Iterable[Buffer]) -> None:
        """One member. Raises Bad where `blocks` are not `size_bytes` long together."""
        self._out(header(name, size_bytes))
        done = 0
        for block in blocks:
            self._out(block)
            done += memoryview(block).nbytes
        if done != size_bytes:
            raise Bad(f"{name}: {done} bytes instead of {size_bytes}")
        self._out(bytes(_padding(size_bytes)))

    def end(self) -> None:
        """The digest of all that went out, and tar's end."""
        digest = f"b3:{self._hasher.hexdigest()}\n".encode()
        self.add(DIGEST, len(digest), [digest])
        self._out(bytes(END_BYTES))


class Reader:
    """Reads an archive from `read_into`, which fills a buffer and returns the bytes it put there (0: the end).

    Members are taken in their order: `manifest`, `head`, `log`, then `blocks` for each carried file, then `end`.
    Nothing that was read counts before `end` has returned. Raises Bad, or Refused for another version.
    """

    def __init__(self, read_into: Callable[[memoryview], int]) -> None:
        self._read_into = read_into
        self._hasher = blake3(max_threads=blake3.AUTO)
        self._chunk = bytearray(CHUNK_BYTES)
        self.bytes_read = 0

    def _fill(self, target: memoryview, what: str) -> None:
        done = 0
        while done < len(target):
            got = self._read_into(target[done:])
            if not got:
                raise Bad(f"the file ends inside {what}, {self.bytes_read + done} bytes from its beginning")
            done += got
        self.bytes_read += done

    def _take(self, size_bytes: int, what: str) -> bytes:
        """A small piece as a copy; memory grows only with what has really arrived."""
        data = bytearray()
        for block in self._stream(size_bytes, what):
            data += block
        return bytes(data)

    def _stream(self, size_bytes: int, what: str) -> Iterator[memoryview]:
        left = size_bytes
        while left:
            view = memoryview(self._chunk)[: min(left, CHUNK_BYTES)]
            self._fill(view, what)
            self._hasher.update(view)
            left -= len(view)
            yield view

    def _header(self, name: str, size_bytes: int) -> None:
        found = self._take(BLOCK, f"the header of {name}")
        if found != header(name, size_bytes):
            raise Bad(f"the archive has {_shown(found)} where {name} with {size_bytes} bytes should begin")

    def _pad(self, size_bytes: int, name: str) -> None:
        if any(self._take(_padding(size_bytes), f"the padding of {name}")):
            raise Bad(f"the padding after {name} is not empty")

    def _member(self, name: str, size_bytes: int, limit_bytes: int) -> bytes:
        if size_bytes > limit_bytes:
            raise Bad(f"{name} says it has {size_bytes} bytes, more than the {limit_bytes} that it may have")
        self._header(name, size_bytes)
        data = self._take(size_bytes, name)
        self._pad(size_bytes, name)
        return data

    def manifest(self) -> Manifest:
        """The first member, and the list of what follows."""
        first = self._take(BLOCK, "its first block")
        size_bytes = _declared(first)
        if size_bytes is None or first != header(MANIFEST, size_bytes):
            raise Bad("not a strata file", hint="`strata save NAME -o FILE` writes one")
        if size_bytes > MANIFEST_LIMIT_BYTES:
            raise Bad(f"{MANIFEST} says it has {size_bytes} bytes, more than the {MANIFEST_LIMIT_BYTES} it may have")
        data = self._take(size_bytes, MANIFEST)
        self._pad(size_bytes, MANIFEST)
        return parse_manifest(data)

    def head(self, manifest: Manifest) -> bytes:
        """The head's bytes."""
        return self._member(HEAD, manifest.head_bytes, HEAD_LIMIT_BYTES)

    def log(self, manifest: Manifest) -> bytes:
        """The log's bytes."""
        return self._member(LOG, manifest.log_bytes, LOG_LIMIT_BYTES)

    def blocks(self, listed: Listed) -> Iterator[memoryview]:
        """A segment file in blocks; each is valid until the next."""
        name = SEGMENTS + listed.file
        self._header(name, listed.bytes)
        yield from self._stream(listed.bytes, name)
        self._pad(listed.bytes, name)

    def end(self) -> None:
        """Check the digest, tar's end, and that nothing follows."""
        digest = f"b3:{self._hasher.hexdigest()}\n".encode()
        found = self._member(DIGEST, _DIGEST_MEMBER_BYTES, _DIGEST_MEMBER_BYTES)
        if not hmac.compare_digest(found, digest):
            raise Bad("the archive's bytes fail its digest")
        if any(self._take(END_BYTES, "its end")):
            raise Bad("the archive goes on after its digest")
        if self._read_into(memoryview(self._chunk)[:1]):
            raise Bad("bytes follow after the archive's end")


def _declared(block: bytes) -> int | None:
    """The size that a tar header states; None where there is no plain octal number."""
    digits = block[124:135]
    return int(digits, 8) if all(48 <= digit < 56 for digit in digits) else None


def _shown(block: bytes) -> str:
    """What an unexpected header says of itself, harmless and short."""
    if not any(block):
        return "its end"
    kinds = {b"1": "a link", b"2": "a symbolic link", b"5": "a folder", b"x": "an extended header"}
    name = block[:100].rstrip(b"\0")[:60]
    return f"{kinds.get(block[156:157], 'a member')} called {name.decode('latin-1')!a}"


def write_archive(
    writer: Writer, manifest: Manifest, head: bytes, log: bytes, blocks_of: Callable[[str], Iterable[Buffer]]
) -> None:
    """A whole archive; `blocks_of` gives a carried file's bytes."""
    encoded = manifest.encode()
    writer.add(MANIFEST, len(encoded), [encoded])
    writer.add(HEAD, len(head), [head])
    writer.add(LOG, len(log), [log])
    sizes = manifest.sizes()
    for file in manifest.carried:
        writer.add(SEGMENTS + file, sizes[SEGMENTS + file], blocks_of(file))
    writer.end()
