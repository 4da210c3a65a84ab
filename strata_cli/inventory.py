"""All that lies in a session directory, by one look at it: values for `inspect` and `prune` to judge.

Owns the look: heads are read, everything else is known from folder listings. Nothing is opened for writing, no text
and no K/V is read. What is of use and what may go is decided above.
"""

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from .directory import RECORD_KINDS
from .errors import Bad, NotFound, StrataError
from .files import Entry, Sizes, read_bytes, storage_errors
from .head import Head, files_of
from .names import NAME
from .plain_head import parse_plain_head
from .segment import FILE_NAME, FOLDER_NAME
from .store import HEAD_LIMIT_BYTES, Store

SEGMENT = re.compile(rf"{FOLDER_NAME.pattern}/{FILE_NAME.pattern}", re.ASCII)


class Record(NamedTuple):
    """A conversation or prefix as it lies on disk. `head` is None where there is none to read: `why`, `code` say more.

    `files` are paths under `segments/`. Sizes in bytes.
    """

    name: str
    kind: str
    head: Head | None
    files: tuple[str, ...]
    head_bytes: int
    log_bytes: int
    held: bool = False
    why: str = ""
    code: str = ""


@dataclass(frozen=True)
class Loose:
    """A temporary or a file in quarantine: its folder, its name, since when (seconds since 1970), who wrote it."""

    folder: Path
    name: str
    bytes: int
    since_s: float
    writer_lives: bool = False


@dataclass(frozen=True)
class Inventory:
    """The directory at one moment. `segments` are sizes by path under `segments/`; `stranger_bytes` lie among them."""

    conversations: tuple[Record, ...]
    prefixes: tuple[Record, ...]
    segments: dict[str, int]
    temporaries: tuple[Loose, ...]
    quarantine: tuple[Loose, ...]
    other_bytes: int
    stranger_bytes: int

    @property
    def records(self) -> tuple[Record, ...]:
        return self.conversations + self.prefixes

    @property
    def text_bytes(self) -> int:
        """Heads, logs, locks, counters, key: all that is not state."""
        return self.other_bytes + sum(record.head_bytes + record.log_bytes for record in self.records)

    @cached_property
    def total_bytes(self) -> int:
        loose = sum(each.bytes for each in (*self.temporaries, *self.quarantine))
        return self.text_bytes + sum(self.segments.values()) + self.stranger_bytes + loose

    @property
    def hides_names(self) -> bool:
        """Whether a head could not be read that may name segments: one that is bad names none that count."""
        return any(record.head is None and record.code not in (NotFound.code, Bad.code) for record in self.records)

    @property
    def knows_all(self) -> bool:
        """Whether every head was read: else nobody knows which segments are named by none."""
        return all(record.head is not None or record.code == NotFound.code for record in self.records)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: it would walk through thousands of heads again and again and free nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Nor later: what was read is not looked through again. It goes, as all does, when nothing refers to it.
            gc.freeze()
            gc.enable()


@uncollected()
def take_inventory(store: Store) -> Inventory:
    """Look at everything once. Raises StorageFailed."""
    found = {kind: _records(store, kind) for kind in RECORD_KINDS}
    directory = store.directory
    # After the heads: what is written meanwhile is then a segment without a name, and not a name without a segment.
    named = chain.from_iterable(record.files for records, _ in found.values() for record in records)
    segments, stranger_bytes = _segments(store, frozenset(named))
    folders = {directory.tmp, directory.state_tmp}
    loose = tuple(each for folder in sorted(folders) for each in _temporaries(store, folder))
    other = sum(_folder_bytes(store, folder) for folder in (directory.root, directory.root / "counters"))
    return Inventory(
        conversations=found["conversations"][0],
        prefixes=found["prefixes"][0],
        segments=segments,
        temporaries=loose,
        quarantine=tuple(_quarantine(store)),
        other_bytes=other + sum(stray for _, stray in found.values()),
        stranger_bytes=stranger_bytes,
    )


def _list(store: Store, folder: Path, *, sizes: Sizes = True) -> list[Entry]:
    with storage_errors(folder, "list"):
        return store.directory.files.list(folder, sizes=sizes)


def _folder_bytes(store: Store, folder: Path) -> int:
    return sum(entry.size for entry in _list(store, folder) if entry.is_file)


def _records(store: Store, kind: str) -> tuple[tuple[Record, ...], int]:
    """The records of a kind by name, and the bytes of the other files in their folder."""
    sizes: dict[str, dict[str, int]] = {"json": {}, "jsonl": {}, "lock": {}}
    heads, logs, locks = sizes.values()
    strays = []
    # A head says its size when it is read.
    for name, is_file, _, size, _ in _list(store, store.root / kind, sizes=_is_no_head):
        stem, _, suffix = name.rpartition(".")
        if suffix in sizes and is_file and (stem in heads or stem in logs or NAME.fullmatch(stem)):
            sizes[suffix][stem] = size
        elif is_file:
            strays.append(name)
    held = {name for name in locks if store.holder(name, kind) is not None}
    size_of = _SizesWhenAsked(store, kind)
    read = _Reader(store, kind, size_of)
    found = (read.record(name, logs.get(name, 0), name in held) for name in sorted(heads))
    records = list(filter(None, found))
    if textual := logs.keys() - heads.keys():
        records += [_without_head(kind, name, logs[name], name in held) for name in textual]
        records.sort(key=lambda record: record.name)
    return tuple(records), sum(map(size_of, strays)) + sum(locks.values())


def _is_no_head(name: str) -> bool:
    return not name.endswith(".json")


class _SizesWhenAsked:
    """The size of a file beside the heads, in bytes: of one that could not be read, or that is no head."""

    def __init__(self, store: Store, kind: str) -> None:
        self._sizes = cache(lambda: store.record_sizes(kind))

    def __call__(self, name: str) -> int:
        return self._sizes().get(name, 0)


def _without_head(kind: str, name: str, log_bytes: int, held: bool) -> Record:
    return Record(name, kind, None, (), 0, log_bytes, held, "its head is missing, its text is there", NotFound.code)


class _Reader:
    """Reads the heads of a kind. `size_of` tells the bytes of a file that could not be read."""

    def __init__(self, store: Store, kind: str, size_of: Callable[[str], int]) -> None:
        self._files, self._kind, self._size_of = store.directory.files, kind, size_of
        self._folder = f"{store.root / kind}{os.sep}"  # as text: thousands of paths are made of it

    def record(self, name: str, log_bytes: int, held: bool) -> Record | None:
        """None for one that was removed since the folder was listed."""
        try:
            data = read_bytes(self._files, f"{self._folder}{name}.json", HEAD_LIMIT_BYTES)
            head = parse_plain_head(data, name)
        except NotFound:
            return None
        except StrataError as error:
            size, why = self._size_of(f"{name}.json"), error.message
            return Record(name, self._kind, None, (), size, log_bytes, held, why, error.code)
        return Record(name, self._kind, head, files_of(head), len(data), log_bytes, held)


def _segments(store: Store, named: AbstractSet[str]) -> tuple[dict[str, int], int]:
    """Every segment by its path under `segments/`, and the bytes of what else lies there.

    What a head names has been found to be the name of a segment.
    """
    folder = store.directory.segments
    with storage_errors(folder, "list"):
        sizes = store.directory.files.sizes_below(folder)
    strangers = [name for name in sizes if name not in named and not SEGMENT.fullmatch(name)]
    return sizes, sum([sizes.pop(name) for name in strangers])


def _temporaries(store: Store, folder: Path) -> Iterable[Loose]:
    for entry in _list(store, folder):
        if entry.is_file:
            since_s = entry.mtime_ns / 1e9
            yield Loose(folder, entry.name, entry.size, since_s, _lives(entry.name))


def _lives(name: str) -> bool:
    """Whether the process that a temporary is named after still runs."""
    pid = name.partition("-")[0]
    if not (pid.isdecimal() and pid.isascii() and 0 < int(pid[:10]) < 2**31):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def _quarantine(store: Store) -> Iterable[Loose]:
    """A file keeps its old times when it is moved; its note was written on the day."""
    entries = {entry.name: entry for entry in _list(store, store.directory.quarantine) if entry.is_file}
    for name, entry in entries.items():
        note = entries.get(name + ".why")
        yield Loose(store.directory.quarantine, name, entry.size, (note or entry).mtime_ns / 1e9)
