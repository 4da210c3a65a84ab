"""Counts of what was done in a session directory, in one small file that may be lost.

Owns the file `counters/totals`. It is written without being flushed, at most once a turn, under a lock that is tried
and not waited for: what could not be added stays in the process and is added with the next.
"""

import contextlib
import json
import os
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import StrataError
from .files import read_bytes, storage_errors
from .locks import FileLock
from .store import Store

LIMIT_BYTES = 65536
COUNTED = ("parked", "restored", "prefixes", "tokens_reused", "tokens_read", "bytes_written", "refusals", "bad_files")


@dataclass
class Counts:
    """Numbers since `since`; bytes of `today` are those of the day in `day`. `measured` is what a prune saw last."""

    since: str = ""
    parked: int = 0
    restored: int = 0
    prefixes: int = 0
    tokens_reused: int = 0
    tokens_read: int = 0
    bytes_written: int = 0
    refusals: int = 0
    bad_files: int = 0
    last_refusal: dict[str, str] | None = None
    day: str = ""
    bytes_written_today: int = 0
    measured: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        """Add what another one counted, on the day that it says."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.last_refusal = other.last_refusal or self.last_refusal
        self.measured = other.measured or self.measured
        if other.day != self.day:
            self.day, self.bytes_written_today = other.day, 0
        self.bytes_written_today += other.bytes_written

    def today(self, day: str) -> int:
        """The bytes written on that day, 0 where it is another than the last."""
        return self.bytes_written_today if self.day == day else 0

    def as_json(self, today: str) -> dict[str, Any]:
        """For `inspect`: the day's bytes are 0 when the day is over."""
        shown = {name: getattr(self, name) for name in ("since", *COUNTED, "last_refusal")}
        return {**shown, "bytes_written_today": self.today(today)}


def read_counts(store: Store) -> Counts:
    """What was counted so far; nothing where the file is missing or broken."""
    try:
        value = json.loads(read_bytes(store.directory.files, store.root / "counters" / "totals", LIMIT_BYTES))
    except (StrataError, ValueError, RecursionError):
        return Counts()
    return _counts(value) if isinstance(value, dict) else Counts()


def _counts(value: dict[str, Any]) -> Counts:
    found = Counts()
    for each in fields(Counts):
        given = value.get(each.name)
        if type(given) is type(getattr(found, each.name)) and not (isinstance(given, int) and given < 0):
            setattr(found, each.name, given)
    told = value.get("last_refusal")
    if isinstance(told, dict) and all(isinstance(text, str) for text in told.values()):
        found.last_refusal = {str(key): text for key, text in told.items()}
    found.measured = {key: n for key, n in found.measured.items() if type(n) is int}
    return found


def add_counts(store: Store, new: Counts) -> bool:
    """Add to the directory's counts; False where that could not be done now. Never raises."""
    with contextlib.suppress(StrataError, OSError):
        store.prepare()
        with _lock(store):
            counts = read_counts(store)
            new.day = store.clock()[:10]
            counts.add(new)
            counts.since = counts.since or store.clock()
            _write(store, counts)
        return True
    return False


def _lock(store: Store) -> FileLock:
    path = store.root / "counters" / "totals.lock"
    return FileLock.acquire(path, exclusive=True, wait_s=0.0, what="the directory's counts")


def _write(store: Store, counts: Counts) -> None:
    """Replaced as a whole, not flushed: a power cut may lose it, and then counting begins anew."""
    files, path = store.directory.files, store.root / "counters" / "totals"
    temporary = store.directory.tmp / f"{os.getpid()}-{os.urandom(8).hex()}.tmp"
    with storage_errors(path, "write"):
        fd = files.create(temporary)
        try:
            files.write(fd, json.dumps(vars(counts)).encode())
            files.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(temporary)
            raise
        finally:
            os.close(fd)


def measured(store: Store, total_bytes: int) -> None:
    """Remember how large the directory was found to be, so that the next turn need not look again."""
    add_counts(
        store, Counts(measured={"total_bytes": total_bytes, "at_bytes_written": read_counts(store).bytes_written})
    )


def estimated_bytes(store: Store) -> int | None:
    """How large the directory is at most, by what was written since it was measured; None where nobody knows."""
    counts = read_counts(store)
    if counts.measured.keys() != {"total_bytes", "at_bytes_written"}:
        return None
    return counts.measured["total_bytes"] + max(0, counts.bytes_written - counts.measured["at_bytes_written"])
