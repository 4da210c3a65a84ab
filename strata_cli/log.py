"""The text of one conversation: an append-only log of checked JSON lines, and the branches that it describes.

Each line is canonical JSON with a last key `check`: the first 16 hex digits of the blake3 of the line without
it. A line that is torn or changed costs that line alone. Nothing here touches a disk or removes a line.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blake3 import blake3

from .errors import Bad
from .identity import Json, canonical_json, parse_json

LOG_VERSION = 1
KINDS = ("message", "back", "setup")
_CHECK = re.compile(rb',"check":"([0-9a-f]{16})"\}')
_CHECK_BYTES = len(b',"check":"0123456789abcdef"}')
# SQLite's and JavaScript's whole numbers agree up to here; larger ids are nobody's.
_ID_LIMIT = 2**53


@dataclass(frozen=True)
class Line:
    """One line of a log.

    `parent` is the line it continues (for `back`: the line from where it goes on; None is the beginning).
    sequence(line) = sequence(parent)[:start] + tokens. `tokenizer` is the digest that `tokens` belong to.
    """

    id: int
    parent: int | None
    kind: str
    time: str
    message: Mapping[str, Json] | None = None
    tokens: tuple[int, ...] = ()
    start: int = 0
    tokenizer: str = ""
    marks: tuple[str, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)


def encode_line(line: Line) -> bytes:
    """The line's bytes, newline included. Raises Bad for what JSON cannot hold."""
    value: dict[str, Json] = {"v": LOG_VERSION, "id": line.id, "parent": line.parent}
    value |= {"kind": line.kind, "time": line.time}
    if line.message is not None:
        value["message"] = dict(line.message)
    if line.tokens or line.start:
        value |= {"tokens": list(line.tokens), "start": line.start}
    optional = {"tokenizer": line.tokenizer, "marks": list(line.marks), "settings": dict(line.settings)}
    value |= {name: found for name, found in optional.items() if found}
    body = canonical_json(value)
    return body[:-1] + b',"check":"' + _check(body) + b'"}\n'


def append_bytes(lines: Iterable[Line], *, tail_has_newline: bool = True) -> bytes:
    """What to append for `lines`; it begins with a newline where the file ends in a torn line."""
    return (b"" if tail_has_newline else b"\n") + b"".join(map(encode_line, lines))


def _check(body: bytes) -> bytes:
    return blake3(body).hexdigest(length=8).encode()


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used: its number in the file, from 1, and why."""

    number: int
    why: str


@dataclass(frozen=True)
class Log:
    """The good lines of a log in file order, and the bad ones."""

    lines: tuple[Line, ...] = ()
    bad: tuple[BadLine, ...] = ()

    @cached_property
    def _by_id(self) -> dict[int, Line]:
        return {line.id: line for line in self.lines}

    @cached_property
    def _ids(self) -> list[int]:
        return sorted(self._by_id)

    @cached_property
    def next_id(self) -> int:
        """An id that no good line has; ids start at 1."""
        return self._ids[-1] + 1 if self._ids else 1

    @cached_property
    def tip(self) -> int | None:
        """The last good message's id, or where the last good `back` went after it; None is the beginning."""
        for line in reversed(self.lines):
            if line.kind == "message":
                return line.id
            if line.kind == "back":
                return self._parent(line)
        return None

    def line(self, id: int) -> Line | None:
        """The good line with this id."""
        return self._by_id.get(id)

    def _parent(self, line: Line) -> int | None:
        """The line's parent, or where that is lost the nearest good message before it."""
        if line.parent is None or line.parent in self._by_id:
            return line.parent
        for id in reversed(self._ids[: bisect_left(self._ids, line.parent)]):
            if self._by_id[id].kind == "message":
                return id
        return None

    def _path(self, tip: int | None) -> list[Line]:
        """Root to tip, through lines of every kind. Parents have smaller ids, so this ends."""
        path = []
        while tip is not None and (line := self._by_id.get(tip)):
            path.append(line)
            tip = self._parent(line)
        return path[::-1]

    def _tip(self, tip: int | None) -> int | None:
        return self.tip if tip is None else tip

    def branch(self, tip: int | None = None) -> tuple[Line, ...]:
        """The messages from the root to `tip` (default: the log's)."""
        return tuple(line for line in self._path(self._tip(tip)) if line.kind == "message")

    def setup(self, tip: int | None = None) -> Mapping[str, Json]:
        """The settings in force at `tip`: those of the last setup line that hangs from its branch."""
        on_path: set[int | None] = {None, *(line.id for line in self._path(self._tip(tip)))}
        for line in reversed(self.lines):
            if line.kind == "setup" and (line.id in on_path or self._parent(line) in on_path):
                return line.settings
        return {}

    def tokens(self, tip: int | None = None) -> tuple[int, ...]:
        """The token ids that the engine read up to `tip`; where a line is lost, those before it."""
        sequence: list[int] = []
        whole = True
        for line in self._path(self._tip(tip)):
            if line.start == 0 and line.kind == "message":
                sequence, whole = list(line.tokens), True
                continue
            lost = line.parent is not None and line.parent not in self._by_id
            whole = whole and not lost and line.start <= len(sequence)
            if whole and line.kind == "message":
                sequence[line.start :] = line.tokens
        return tuple(sequence)

    def alternatives(self) -> tuple[int, ...]:
        """The ids of the last messages of abandoned branches, oldest first; pass one to `branch`."""
        messages = [line for line in self.lines if line.kind == "message"]
        current = {line.id for line in self._path(self.tip)}
        parents = {self._parent(line) for line in messages}
        return tuple(line.id for line in messages if line.id not in parents and line.id not in current)


def parse_log(data: bytes) -> Log:
    """Read a log; every line that cannot be used is told in `bad`, and nothing is raised for it."""
    lines: list[Line] = []
    bad: list[BadLine] = []
    seen: set[int] = set()
    raw_lines = data.split(b"\n")
    if not raw_lines[-1]:
        raw_lines.pop()
    for number, raw in enumerate(raw_lines, 1):
        try:
            line = _parse_line(raw)
            if line.id in seen:
                raise Bad(f"a second line with id {line.id}")
        except Bad as error:
            bad.append(BadLine(number, error.message))
            continue
        seen.add(line.id)
        lines.append(line)
    return Log(tuple(lines), tuple(bad))


def _parse_line(raw: bytes) -> Line:
    found = _CHECK.fullmatch(raw, max(0, len(raw) - _CHECK_BYTES))
    if not found:
        raise Bad("torn: it does not end in a check")
    if _check(raw[:-_CHECK_BYTES] + b"}") != found[1]:
        raise Bad("its check fails")
    value = parse_json(raw, "line")
    if not isinstance(value, dict):
        raise Bad("no JSON object")
    if value.get("v") != LOG_VERSION:
        raise Bad("written in another format version")
    return _line(value)


def _line(value: dict[str, Any]) -> Line:
    id, parent, kind = value.get("id"), value.get("parent"), value.get("kind")
    if type(id) is not int or not 0 < id < _ID_LIMIT:
        raise Bad("its id is no whole number above 0")
    if parent is not None and (type(parent) is not int or not 0 < parent < id):
        raise Bad("its parent is no earlier line")
    if kind not in KINDS:
        raise Bad("of an unknown kind")
    message = value.get("message")
    if kind == "message" and not _is_message(message):
        raise Bad("its message is none")
    return Line(
        id=id,
        parent=parent,
        kind=kind,
        time=_text(value, "time"),
        message=message if isinstance(message, dict) else None,
        tokens=_tokens(value.get("tokens", [])),
        start=_start(value.get("start", 0)),
        tokenizer=_text(value, "tokenizer"),
        marks=_marks(value.get("marks", [])),
        settings=_settings(value.get("settings", {})),
    )


def _is_message(message: Json) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    return isinstance(message.get("content"), str | list | None)


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name, "")
    if not isinstance(found, str):
        raise Bad(f"{name} is no text")
    return found


def _tokens(found: Json) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise Bad("tokens is no list")
    try:
        return tuple(array("I", found))
    except (TypeError, OverflowError) as error:
        raise Bad("tokens holds what is no token id") from error


def _start(found: Json) -> int:
    if type(found) is not int or not 0 <= found < _ID_LIMIT:
        raise Bad("start is no position")
    return found


def _marks(found: Json) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(mark, str) for mark in found):
        raise Bad("marks is no list of texts")
    return tuple(found)


def _settings(found: Json) -> Mapping[str, Json]:
    if not isinstance(found, dict):
        raise Bad("settings is no object")
    return found
