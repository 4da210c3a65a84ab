"""The head of a conversation or prefix: a small JSON file that names its segments, replaced as a whole.

It owns the head's values and their JSON form. Losing a head costs reading time, never text. Reading thousands
of them must cost little more than their JSON: they are checked column by column, and their segments become
values only when somebody asks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from .errors import Bad, Refused
from .identity import Json, checked_json, has_check, parse_json

HEAD_VERSION = 1
TITLE_CHARS = 60
KINDS = ("auto", "named")
_TIME = r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|\+00:00))?"
_TIMES = re.compile(f"{_TIME},{_TIME},{_TIME}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COUNT = "[0-9]{1,15}+"
_ROWS = {
    kind: re.compile(
        rf"\[(?:\[{_COUNT}, {_COUNT}, '[0-9a-f]{{32}}+/{_COUNT}-[0-9a-f]{{32}}+\.{kind}', {_COUNT}\](?:, )?+)*+\]",
        re.ASCII,
    )
    for kind in ("seg", "part")
}


class SegmentRef(NamedTuple):
    """One file that a head names: `file` is its path under `segments/`, `start` and `end` are tokens."""

    kind: str
    start: int
    end: int
    file: str
    bytes: int


@dataclass(frozen=True)
class StateRef:
    """What is stored of a conversation under one identity (its fields as JSON), up to token `tokens`."""

    identity: Mapping[str, Json]
    segments: tuple[SegmentRef, ...]
    parts: tuple[SegmentRef, ...]
    tokens: int


@dataclass(frozen=True)
class Head:
    """All that is known of a conversation besides its text.

    Times are ISO-8601 UTC; `last_turn` is "" before the first completed turn. `pins` are token positions,
    `tokens` is the length of the current branch, `lines` the last id that its text had. `states` maps an identity
    digest (64 hex digits) to what is stored under it. `extra` holds keys of other versions, which are written back
    as they came.
    """

    name: str
    kind: str
    key: str = ""
    title: str = ""
    model: Mapping[str, Json] = field(default_factory=dict)
    engine: Mapping[str, Json] = field(default_factory=dict)
    template: Mapping[str, Json] = field(default_factory=dict)
    created: str = ""
    updated: str = ""
    last_turn: str = ""
    turns: int = 0
    tokens: int = 0
    lines: int = 0
    pins: tuple[int, ...] = ()
    states: Mapping[str, StateRef] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)
    version: int = HEAD_VERSION


def title_of(first_user_text: str) -> str:
    """A title made harmless: the first 60 characters, with all that does not print made spaces."""
    return "".join(char if char.isprintable() else " " for char in first_user_text[:TITLE_CHARS]).strip()


def encode_head(head: Head) -> bytes:
    """The head's file: canonical JSON that ends in a check, and a newline."""
    value = dict(head.extra)
    value |= {name: getattr(head, name) for name in _plain_names()}
    value |= {name: dict(value[name]) for name in ("model", "engine", "template")}
    value["pins"] = list(head.pins)
    value["states"] = states_as_json(head.states)
    return checked_json(value) + b"\n"


@cache
def _plain_names() -> tuple[str, ...]:
    return tuple(each.name for each in fields(Head) if each.name not in ("extra", "states"))


@cache
def _known_names() -> frozenset[str]:
    # Not "extra": a file that has such a key is of another version.
    return frozenset((*_plain_names(), "states"))


def states_as_json(states: Mapping[str, StateRef]) -> dict[str, Json]:
    """A head's states as its file has them, segments as rows of start, end, file, bytes."""
    if isinstance(states, StoredStates):
        return states.raw
    return {digest: _state_as_json(state) for digest, state in states.items()}


def _state_as_json(state: StateRef) -> dict[str, Json]:
    return {
        "identity": dict(state.identity),
        "segments": [ref[1:] for ref in state.segments],
        "parts": [ref[1:] for ref in state.parts],
        "tokens": state.tokens,
    }


class StoredStates(Mapping[str, StateRef]):
    """The states of a head that was read: checked JSON, made into values at first use.

    `text_bytes`: what the only one, `"digest":{...}`, takes as canonical JSON; 0 where nobody measured it. `files`:
    those that they name, where somebody has them already.
    """

    __slots__ = ("_made", "files", "raw", "text_bytes")

    def __init__(self, raw: dict[str, Any], files: tuple[str, ...] | None = None, text_bytes: int = 0) -> None:
        self.raw = raw
        self.files = files
        self.text_bytes = text_bytes
        self._made: dict[str, StateRef] | None = None

    def __getitem__(self, digest: str) -> StateRef:
        if self._made is None:
            self._made = {}
        if digest not in self._made:
            self._made[digest] = _state(self.raw[digest])
        return self._made[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)


def _state(raw: dict[str, Any]) -> StateRef:
    segments = tuple(SegmentRef("seg", *row) for row in raw["segments"])
    parts = tuple(SegmentRef("part", *row) for row in raw["parts"])
    return StateRef(raw["identity"], segments, parts, raw["tokens"])


def files_of(head: Head) -> tuple[str, ...]:
    """The files that a head names, rows and parts of every identity, without making values of them."""
    if isinstance(head.states, StoredStates) and head.states.files is not None:
        return head.states.files
    states = states_as_json(head.states)
    return tuple([row[2] for state in states.values() for rows in (state["segments"], state["parts"]) for row in rows])


def parse_head(data: bytes, name: str) -> Head:
    """Read a head; the file's own name counts. Raises Bad, or Refused for another format version."""
    value = parse_json(data, f"head of {name!r}")
    if not isinstance(value, dict):
        raise Bad(f"head of {name!r}: no JSON object")
    version = value.get("version")
    if type(version) is not int or not 1 <= version < 2**31:
        raise Bad(f"head of {name!r}: it has no version")
    if version != HEAD_VERSION:
        hint = "install the strata version that wrote it"
        raise Refused(f"head of {name!r}: written in format {version}; this strata reads {HEAD_VERSION}", hint=hint)
    why = _fault(value) if has_check(data[:-1]) and data[-1:] == b"\n" else "its check fails"
    value.pop("check", None)
    if why:
        raise Bad(f"head of {name!r}: {why}")
    return _head(value, name)


def _head(value: dict[str, Any], name: str) -> Head:
    # A frozen dataclass sets its sixteen fields one by one, which costs a third of reading the JSON. The names of
    # the fields are ours and not those that came with the JSON: thousands of heads then share them.
    head = object.__new__(Head)
    head.__dict__.update(zip(_TYPES, _COLUMNS(value), strict=True))
    states = {digest: _as_kept(digest, state) for digest, state in value["states"].items()}
    unknown = value.keys() - _known_names()
    head.__dict__.update(
        name=name,
        pins=tuple(value["pins"]),
        states=StoredStates(states),
        extra={each: value[each] for each in unknown} if unknown else {},
        version=HEAD_VERSION,
    )
    return head


def _as_kept(digest: str, state: dict[str, Any]) -> dict[str, Any]:
    """A state as it came, but for its identity: the heads of a directory share the few that there are."""
    if len(state) != 4:
        return state
    identity = state["identity"]
    known = _known_identities.get(digest)
    if known is None and len(_known_identities) < 1000:
        known = _known_identities[digest] = identity
    return {
        # Equal is not the same: Python's 1 is also True and 1.0, and what is written back must be what was read.
        "identity": known if known is identity or repr(known) == repr(identity) else identity,
        "segments": state["segments"],
        "parts": state["parts"],
        "tokens": state["tokens"],
    }


_known_identities: dict[str, dict[str, Json]] = {}


_TYPES = {
    "kind": str,
    "key": str,
    "title": str,
    "model": dict,
    "engine": dict,
    "template": dict,
    "created": str,
    "updated": str,
    "last_turn": str,
    "turns": int,
    "tokens": int,
    "lines": int,
    "pins": list,
    "states": dict,
}


_COLUMNS = itemgetter(*_TYPES)
_COLUMN_TYPES = tuple(_TYPES.values())


def _fault(value: dict[str, Any]) -> str:
    """Why this is no head; "" where it is one."""
    try:
        columns = _COLUMNS(value)
    except KeyError as error:
        return f"{error.args[0]!r} is missing or of a wrong type"
    if tuple(map(type, columns)) != _COLUMN_TYPES:
        wrong = next(name for name, column in zip(_TYPES, columns, strict=True) if type(column) is not _TYPES[name])
        return f"{wrong!r} is missing or of a wrong type"
    kind, _, _, _, _, _, created, updated, last_turn, turns, tokens, lines, pins, states = columns
    if kind not in KINDS:
        return "of an unknown kind"
    if not _TIMES.fullmatch(f"{created},{updated},{last_turn}"):
        wrong = next(name for name in ("created", "updated", "last_turn") if not _TIMES.fullmatch(f"{value[name]},,"))
        return f"{wrong!r} is no time"
    if not _are_counts((turns, tokens, lines, *pins)):
        return "a count is no whole number"
    for digest, state in states.items():
        if not (digest in _known_digests or _is_digest(digest)) or not _is_state(state):
            return "the list of its segments is malformed"
    return ""


_known_digests: set[str] = set()


def _is_digest(text: str) -> bool:
    """Whether it is the name of an identity; a directory has few, which are remembered."""
    if not _DIGEST.fullmatch(text):
        return False
    if len(_known_digests) < 1000:
        _known_digests.add(text)
    return True


def _are_counts(values: Sequence[Json]) -> bool:
    return not values or (set(map(type, values)) == _INT and min(values) >= 0 and max(values) < 2**53)


_INT = {int}


def _is_state(state: Json) -> bool:
    if type(state) is not dict or type(state.get("identity")) is not dict:
        return False
    if not _are_counts((state.get("tokens"),)):
        return False
    return _are_refs(state.get("segments"), "seg") and _are_refs(state.get("parts"), "part")


def _are_refs(rows: Json, kind: str) -> bool:
    """Rows of start, end, file, bytes: the text of the list says it in one look."""
    if type(rows) is not list:
        return False
    # `repr` of what came out of JSON has one form for each value, and a file's name here no quotes nor escapes.
    return not rows or (_ROWS[kind].fullmatch(repr(rows)) is not None and all(row[0] < row[1] for row in rows))
