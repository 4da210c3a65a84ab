"""Removing files of a session directory, each in the order that leaves nothing dangling when it is cut short.

Owns the order: a head goes, durably, before the segments that it names. What may be removed is decided above; who
calls this holds the directory's exclusive lock, and that of the conversation.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from .errors import DiskFull, NotFound
from .files import read_bytes, storage_errors, write_new
from .head import Head
from .log import parse_log
from .store import LOG_LIMIT_BYTES, Store


def remove_file(store: Store, path: Path) -> int:
    """Remove one file; returns the bytes that this freed, 0 where it was gone. Raises StorageFailed."""
    try:
        with storage_errors(path, "remove"):
            size_bytes = os.lstat(path).st_size
            store.directory.files.unlink(path)
    except NotFound:
        return 0
    return size_bytes


def remove_segments(store: Store, files: Iterable[str]) -> int:
    """Remove segments by their paths under `segments/`, and the folders that become empty. Returns the bytes."""
    freed_bytes = 0
    for file in files:
        path = store.segment_path(file)
        if path.parent.is_symlink():
            continue
        freed_bytes += remove_file(store, path)
        # No writer is between making the folder and filling it: it would hold the directory's lock.
        with contextlib.suppress(OSError):
            os.rmdir(path.parent)
    return freed_bytes


def remove_record(store: Store, name: str, kind: str, files: Iterable[str]) -> int:
    """Remove a conversation or prefix: text, head, then the segments that nobody else names. Returns the bytes.

    The head goes after the text: cut short between the two, the next run still finds it, and finishes.
    """
    folder = store.root / kind
    freed_bytes = remove_file(store, folder / f"{name}.jsonl") + remove_file(store, folder / f"{name}.json")
    _flush(store, folder)
    return freed_bytes + remove_segments(store, files)


def replace_state(store: Store, head: Head, kind: str, files: Iterable[str]) -> int:
    """Write a head that names less, then remove what only it named. Returns the bytes that this freed.

    On a disk without room for even that head it is removed first and written when the segments are gone.
    """
    path = store.root / kind / f"{head.name}.json"
    before_bytes = os.lstat(path).st_size
    try:
        written = store.write_head(head, kind)
        return before_bytes - written + remove_segments(store, files)
    except DiskFull:
        if os.stat(store.directory.state_root).st_dev != os.stat(store.root).st_dev:
            raise
    data = read_bytes(store.directory.files, path, before_bytes)
    remove_file(store, path)
    _flush(store, path.parent)
    freed_bytes = remove_segments(store, files)
    try:
        return before_bytes - store.write_head(head, kind) + freed_bytes
    except DiskFull:
        if not freed_bytes:
            # Nothing was gained: as it was, rather than without a head.
            write_new(store.directory.files, store.directory.tmp, path, [data], len(data))
        raise


def without_branches(data: bytes) -> bytes:
    """A log without its abandoned branches. Lines that cannot be read stay: nobody knows what they were."""
    log = parse_log(data)
    keep = {line.id for line in log.branch()}
    raw_lines = data.split(b"\n")
    bad = {each.number for each in log.bad}
    numbers = [number for number, raw in enumerate(raw_lines, 1) if raw and number not in bad]
    lines = dict(zip(numbers, log.lines, strict=True))
    kept = [raw for number, raw in enumerate(raw_lines, 1) if raw and _stays(lines.get(number), keep)]
    return b"".join(raw + b"\n" for raw in kept)


def _stays(line: object, keep: set[int]) -> bool:
    kind, parent = getattr(line, "kind", None), getattr(line, "parent", None)
    if kind == "setup":
        return parent is None or parent in keep
    return kind is None or (kind == "message" and getattr(line, "id", None) in keep)


def branch_bytes(store: Store, name: str) -> int:
    """What a conversation's abandoned branches take in its log."""
    data = _log_of(store, name)
    return len(data) - len(without_branches(data))


def remove_branches(store: Store, name: str) -> int:
    """Write the log without its abandoned branches. Returns the bytes that this freed."""
    data = _log_of(store, name)
    kept = without_branches(data)
    if len(kept) == len(data):
        return 0
    path = store.root / "conversations" / f"{name}.jsonl"
    write_new(store.directory.files, store.directory.tmp, path, [kept], len(kept))
    return len(data) - len(kept)


def _log_of(store: Store, name: str) -> bytes:
    try:
        return read_bytes(store.directory.files, store.root / "conversations" / f"{name}.jsonl", LOG_LIMIT_BYTES)
    except NotFound:
        return b""


def _flush(store: Store, folder: Path) -> None:
    with storage_errors(folder, "flush"):
        store.directory.files.flush(folder)
