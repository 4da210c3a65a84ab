"""The memory tier: parked state that is still in memory, in front of the disk.

Owns which ranges are kept and which leave first. An entry is either durable (its file is complete on disk) or the only
copy there is; only durable ones leave by themselves. Writing is `writer`, and when to do it is decided above.
"""

import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .segment import Draft, Header
from .state_files import Child

MIB = 1 << 20


@dataclass
class Entry:
    """One captured range or part. `owner` is the conversation it was parked for.

    `memory` may still be filled behind the chat's back: `ready` waits for that, and `payload` is what to read.
    """

    draft: Draft
    memory: memoryview
    path: Path
    file_bytes: int
    owner: str
    order_ns: int
    release: Callable[[], None]
    own: bool = True  # False: captured upon state from elsewhere, and foreign as that is
    durable: bool = False
    ready: Callable[[], None] = lambda: None
    new_tokens: int = 0  # that nothing covered before

    @property
    def payload(self) -> memoryview:
        """The state's bytes, once all are there. Raises EngineFailed where the engine did not give them."""
        self.ready()
        return self.memory

    @property
    def size_bytes(self) -> int:
        return self.memory.nbytes

    @property
    def child(self) -> Child:
        """The entry as a listing of its folder would show it."""
        draft = self.draft
        return Child(draft.kind, draft.start_hash, draft.end, draft.end_hash, self.path, self.file_bytes, self.order_ns)


class HeldSegment:
    """An entry, read as a segment file is: what `restore` needs of either."""

    def __init__(self, entry: Entry) -> None:
        self._entry, self.own = entry, entry.own
        draft = entry.draft
        self.header = Header(0, draft.kind, draft.start, draft.end, entry.size_bytes, 4 * len(draft.tokens), 0)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self._entry.draft.metadata)

    @property
    def payload(self) -> memoryview:
        return self._entry.payload

    def tokens(self) -> "array[int]":
        return array("I", self._entry.draft.tokens)

    def close(self) -> None:
        """The memory stays the tier's."""

    def __enter__(self) -> "HeldSegment":
        return self

    def __exit__(self, *_: object) -> None:
        """The memory stays the tier's."""


class Tier:
    """Entries by their path, oldest first. `limit_bytes` 0 keeps nothing but what is being written.

    Safe to use from the chat's thread and the writer's.
    """

    def __init__(
        self, limit_bytes: int, limit_conversations: int, available_bytes: Callable[[], int], floor_bytes: int
    ) -> None:
        self.limit_bytes, self.limit_conversations = limit_bytes, limit_conversations
        self._available, self._floor_bytes = available_bytes, floor_bytes
        self._entries: OrderedDict[Path, Entry] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(entry.size_bytes for entry in self._entries.values())

    def get(self, path: Path) -> Entry | None:
        return self._entries.get(path)

    def children(self, start_hash: str) -> list[Child]:
        with self._lock:
            return [entry.child for entry in self._entries.values() if entry.draft.start_hash == start_hash]

    def put(self, entry: Entry) -> None:
        """Take an entry in, whatever its size: it is the only copy. What may leave leaves in `shrink`."""
        with self._lock:
            self.drop(entry.path)
            self._entries[entry.path] = entry

    def touch(self, path: Path) -> None:
        """Used again: it leaves later."""
        with self._lock:
            if path in self._entries:
                self._entries.move_to_end(path)

    def drop(self, path: Path) -> None:
        """Forget an entry. Its memory is used again only where nobody can be writing it at this moment."""
        with self._lock:
            entry = self._entries.pop(path, None)
        if entry is not None and entry.durable:
            entry.release()

    def lose(self, entry: Entry) -> None:
        """Forget an entry that never got its bytes, unless another has taken its place."""
        with self._lock:
            if self._entries.get(entry.path) is entry:
                del self._entries[entry.path]
        entry.release()

    def drop_where(self, wanted: Callable[[Entry], bool]) -> None:
        with self._lock:
            paths = [path for path, entry in self._entries.items() if wanted(entry)]
        for path in paths:
            self.drop(path)

    def shrink(self) -> bool:
        """Let durable entries go, oldest first, until the rest is within bounds; whether it is still over them."""
        with self._lock:
            for path in [path for path, entry in self._entries.items() if entry.durable]:
                if not self.over():
                    return False
                self.drop(path)
            return self.over()

    def over(self) -> bool:
        """Whether more is held than may be, or memory is short."""
        with self._lock:
            if not self._entries:
                return False
            if self.size_bytes > self.limit_bytes:
                return True
            owners = {entry.owner for entry in self._entries.values()}
        if self.limit_conversations and len(owners) > self.limit_conversations:
            return True
        return self._available() < self._floor_bytes

    def unwritten(self, owner: str | None = None) -> list[Entry]:
        """What has no file yet, oldest first; of one conversation or of all."""
        with self._lock:
            entries = list(self._entries.values())
        return [entry for entry in entries if not entry.durable and owner in (None, entry.owner)]


def available_bytes() -> int:
    """Physical memory that can be had without pushing others out; a large number where the system does not say."""
    # Asked at every park: the few bytes that are needed, not the whole table.
    try:
        descriptor = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.read(descriptor, 512)
        finally:
            os.close(descriptor)
        return int(head.partition(b"MemAvailable:")[2].split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 1 << 60
