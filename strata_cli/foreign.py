"""What of a conversation came from elsewhere: lines whose token ids were not made here, and segment files.

The mark is a value in the head (`extra["foreign"]`). A foreign segment is used by the conversations that name it with
its digest, and by nothing else; how its bytes are checked before the engine sees them is decided by the restore.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .head import Head, SegmentRef
from .identity import Json
from .log import Log
from .store import Store

KEY = "foreign"


@dataclass(frozen=True)
class Foreign:
    """`lines` are ranges of line ids, both ends included; `files` maps a path under `segments/` to a digest (hex)."""

    lines: tuple[tuple[int, int], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lines or self.files)

    def covers(self, line_id: int) -> bool:
        """Whether this line's token ids came from elsewhere."""
        return any(first <= line_id <= last for first, last in self.lines)

    def as_json(self) -> dict[str, Json]:
        return {"lines": [list(pair) for pair in self.lines], "files": dict(self.files)}


def foreign_of(head: Head | None) -> Foreign:
    """The mark of a head; what is malformed in it is as if it was not there, and its files are not used."""
    value = head.extra.get(KEY) if head is not None else None
    if not isinstance(value, Mapping):
        return Foreign()
    lines, files = value.get("lines"), value.get("files")
    pairs = tuple((each[0], each[1]) for each in lines if _is_pair(each)) if isinstance(lines, list) else ()
    named = files if isinstance(files, Mapping) else {}
    return Foreign(pairs, {str(file): str(digest) for file, digest in named.items()})


def also_foreign(foreign: Foreign, store: Store, refs: Iterable[SegmentRef]) -> Foreign:
    """The mark with those of `refs` that this directory has not sealed: what was computed upon foreign state."""
    files = dict(foreign.files)
    for ref in refs:
        if ref.file not in files:
            with store.open_segment(store.segment_path(ref.file)) as file:
                files |= {} if file.sealed_by(store.key) else {ref.file: file.digest().hex()}
    return Foreign(foreign.lines, files)


def honest(pieces: Sequence[bytes], specials: Sequence[bool], text: str) -> bool:
    """Whether token ids from elsewhere are what they claim to be: the stored text, and no special token inside it.

    `pieces` and `specials` are what this model's vocabulary says of each id.
    """
    return not any(specials) and b"".join(pieces).decode("utf-8", errors="replace") == text


SETTINGS: Mapping[str, type] = {"system": str, "tools": list, "date": str, "template": str}


def strange_setting(log: Log) -> str:
    """The name of a setting that is not of its type, in a text that came from elsewhere; empty where all are."""
    found = (
        name
        for line in log.lines
        for name, kind in SETTINGS.items()
        if name in line.settings and not isinstance(line.settings[name], kind)
    )
    return next(found, "")


def _is_pair(value: Json) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(type(each) is int for each in value)


def with_foreign(extra: Mapping[str, Json], foreign: Foreign) -> dict[str, Json]:
    """A head's `extra` with this mark, or without one where nothing is foreign."""
    rest = {name: value for name, value in extra.items() if name != KEY}
    return {**rest, KEY: foreign.as_json()} if foreign else rest
