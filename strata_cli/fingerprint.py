"""The digest of a file by its content, remembered so that a model of tens of gigabytes is hashed once.

It owns the hashing and its cache, a folder of small JSON files that may be lost. A remembered digest counts
while device, inode, size and both times are those that were hashed; the path does not matter.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from .errors import StorageFailed, StrataError
from .files import BLOCK_BYTES, Files, ensure_folder, read_bytes, storage_errors, write_new
from .identity import canonical_json, parse_json

PREFIX = "b3:"
# A file changed within the clock's grain of being hashed could change again and keep its times.
RACY_NS = 2_000_000_000
_CACHE_LIMIT_BYTES = 4096

Progress = Callable[[int, int], None]
Stamp = dict[str, int]


def file_digest(path: Path, cache_folder: Path, files: Files, *, progress: Progress | None = None, now_ns: int) -> str:
    """The blake3 of a file: "b3:" and 64 hex digits.

    `progress` is told (bytes done, bytes in all) and may raise to stop. `now_ns` is the time since 1970.
    A link to a model is followed: caches of models are made of them. Raises NotFound and StorageFailed.
    """
    with storage_errors(path, "read"):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stamp = _stamp(fd, path)
            place = cache_folder / f"{stamp['dev']:x}-{stamp['inode']:x}.json"
            known = _remembered(files, place, stamp)
            if known:
                return known
            digest = PREFIX + _hash(fd, stamp["size"], progress)
            if _stamp(fd, path) != stamp:
                raise StorageFailed(f"{str(path)!r} changed while it was read", hint="wait until it is complete")
        finally:
            os.close(fd)
    if now_ns - stamp["ctime_ns"] >= RACY_NS:
        _remember(files, place, stamp, digest)
    return digest


def _stamp(fd: int, path: Path) -> Stamp:
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise StorageFailed(f"{str(path)!r} is not a regular file")
    times = {"mtime_ns": facts.st_mtime_ns, "ctime_ns": facts.st_ctime_ns}
    return {"dev": facts.st_dev, "inode": facts.st_ino, "size": facts.st_size, **times}


def _hash(fd: int, size: int, progress: Progress | None) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    done = 0
    with memoryview(bytearray(max(1, min(BLOCK_BYTES, size)))) as block:
        # A file that grows faster than it is read would never end; its changed stamp is found afterwards.
        while done < size and (count := os.readv(fd, [block])):
            hasher.update(block[:count])
            done += count
            if progress:
                progress(min(done, size), size)
    return hasher.hexdigest()


def _remembered(files: Files, place: Path, stamp: Stamp) -> str | None:
    try:
        entry = parse_json(read_bytes(files, place, _CACHE_LIMIT_BYTES), "fingerprint")
    except StrataError:
        return None
    if not isinstance(entry, dict) or entry.get("stamp") != stamp:
        return None
    digest = entry.get("digest")
    return digest if isinstance(digest, str) and _is_digest(digest) else None


def _is_digest(text: str) -> bool:
    digits = text.removeprefix(PREFIX)
    return text.startswith(PREFIX) and len(digits) == 64 and set(digits) <= set("0123456789abcdef")


def _remember(files: Files, place: Path, stamp: Stamp, digest: str) -> None:
    entry = canonical_json({"stamp": stamp, "digest": digest})
    try:
        ensure_folder(files, place.parent)
        write_new(files, place.parent, place, [entry], len(entry))
    except StrataError:
        # Without its cache the next start hashes again.
        return
