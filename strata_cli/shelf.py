"""Where parked state is found: in memory first, then on disk.

Owns looking in both and telling which it was. What is kept in memory is `tier`, the files are `store`.
"""

from collections.abc import Sequence
from pathlib import Path

from .engine import EngineFailed
from .errors import NotFound, StorageFailed
from .segment import SegmentFile
from .state_files import Child
from .store import Store
from .tier import Entry, HeldSegment, Tier, available_bytes

Readable = SegmentFile | HeldSegment


class Shelf:
    """A session directory with what this process still has in memory in front of it."""

    def __init__(self, store: Store, tier: Tier) -> None:
        self.store, self.tier = store, tier
        self.trouble: StorageFailed | None = None  # why a folder could not be listed, for the turn to tell

    @classmethod
    def of_disk(cls, store: Store) -> "Shelf":
        """The directory alone, for those who hold nothing in memory."""
        return cls(store, Tier(0, 0, available_bytes, 0))

    def children(self, start_hash: str) -> Sequence[Child]:
        """The segments that begin at a boundary. A disk that fails to list them is as if it had none."""
        held = self.tier.children(start_hash)
        try:
            stored = self.store.children(start_hash)
        except StorageFailed as error:
            self.trouble = error
            return held
        paths = {child.path for child in held}
        return [*held, *(child for child in stored if child.path not in paths)]

    def held(self, path: Path) -> bool:
        return self.tier.get(path) is not None

    def open(self, path: Path) -> Readable:
        """For its token ids alone. Raises NotFound, Bad, Refused, StorageFailed."""
        entry = self.tier.get(path)
        return self._from_memory(entry) if entry else self.store.open_segment(path)

    def verified(self, path: Path) -> Readable:
        """Every byte checked; memory that this process captured needs none but to be there. Raises as `open` does."""
        entry = self.tier.get(path)
        if entry is None:
            return self.store.verified(path)
        try:
            entry.ready()
        except EngineFailed as error:
            raise NotFound(f"{entry.path.name}: {error.message}") from error
        return self._from_memory(entry)

    def _from_memory(self, entry: Entry) -> HeldSegment:
        self.tier.touch(entry.path)
        return HeldSegment(entry)

    def look_again(self, path: Path) -> None:
        """What prune took from the disk, while no conversation named it, is only in memory again."""
        entry = self.tier.get(path)
        if entry is not None and entry.durable and not path.exists():
            entry.durable = False

    def is_durable(self, path: Path) -> bool:
        """Whether a head may name this file: it is no longer only in memory."""
        entry = self.tier.get(path)
        return entry is None or entry.durable
