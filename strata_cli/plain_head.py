"""A head as this version of strata writes it, read by one look at its bytes: thousands are read at a time.

Owns a pattern that such heads match, and nothing that a head may be: what does not match is read by `head`, with the
same result or its reason. Values that heads have in common are made once.
"""

import re
from functools import lru_cache
from sys import intern
from typing import Any

from .errors import Bad, StrataError
from .head import HEAD_VERSION, Head, StoredStates, parse_head
from .identity import canonical_json, has_check, parse_json, parse_json_whole

# Nothing is given back once it matched: keeping the ways back would cost a tenth of the whole.
_TIME = r'"((?:[0-9]{4}+-[0-9]{2}+-[0-9]{2}+T[0-9]{2}+:[0-9]{2}+:[0-9]{2}+(?:\.[0-9]{1,6}+)?+(?:Z|\+00:00))?+)"'
_TEXT = r'"([^"\\\x00-\x1f]*+)"'
_COUNT = r"(0|[1-9][0-9]{0,14}+)"
_DIGITS = r"[0-9]{1,15}+"


# What follows is coarse where a JSON parser looks at the same text afterwards: searching for the next brace is several
# times as fast as asking of each character whether it may stand there. Pieces that are JSON make a whole that is.
def _object(before: str) -> str:
    """What may be an object, up to the first brace that the key `before` follows."""
    return rf'(\{{[^}}]*+\}}(?:[^}}]*+\}})*?)(?=,"{before}":)'


def _rows(kind: str) -> str:
    row = rf'\[{_DIGITS},{_DIGITS},"[0-9a-f]{{32}}+/{_DIGITS}-[0-9a-f]{{32}}+\.{kind}",{_DIGITS}\]'
    return rf"(\[(?:{row},?+)*+\])"


_FLAT = r"(\{[^}]*+\})"
_STATE = (
    rf'"([0-9a-f]{{64}})":\{{"identity":{_object("parts")},"parts":{_rows("part")},"segments":{_rows("seg")},'
    rf'"tokens":{_COUNT}\}}'
)
_STATE_BYTES = len('"":{"identity":,"parts":,"segments":,"tokens":}') + 64
_PLAIN = re.compile(
    rf'\{{"created":{_TIME},"engine":{_object("key")},"key":{_TEXT},"kind":"(auto|named)","last_turn":{_TIME},'
    rf'"lines":{_COUNT},"model":{_FLAT},"name":"[^"\\\x00-\x1f]*+","pins":\[\],"states":\{{(?:{_STATE})?\}},'
    rf'"template":{_FLAT},"title":{_TEXT},"tokens":{_COUNT},"turns":{_COUNT},"updated":{_TIME},'
    rf'"version":{HEAD_VERSION},"check":"[0-9a-f]{{16}}"\}}\n',
    re.ASCII,
)


# Shared, too: the fewer pages thousands of heads fill, the sooner they are looked through.
_NO_STATES = StoredStates({}, ())
_NOTHING: dict[str, Any] = {}


def parse_plain_head(data: bytes, name: str) -> Head:
    """What `parse_head` gives, sooner where the head is plain. Raises as it does."""
    try:
        return _plain(data, name) or parse_head(data, name)
    except (UnicodeDecodeError, StrataError):
        return parse_head(data, name)


def _plain(data: bytes, name: str) -> Head | None:
    found = _PLAIN.fullmatch(data.decode())
    if found is None or not has_check(data[:-1]):
        return None
    (created, engine, key, kind, last_turn, lines, model, digest, identity, parts, segments, covered,
     template, title, tokens, turns, updated) = found.groups()  # fmt: skip
    states = _NO_STATES if digest is None else _states(digest, identity, parts, segments, covered)
    head = object.__new__(Head)
    # A frozen dataclass sets its fields one by one, which takes longer than all of the above.
    head.__dict__.update(
        name=name,
        kind=intern(kind),
        key=key,
        title=title,
        model=_shared(model),
        engine=_shared(engine),
        template=_shared(template),
        created=created,
        updated=updated,
        last_turn=updated if last_turn == updated else last_turn,
        turns=int(turns),
        tokens=int(tokens),
        lines=int(lines),
        pins=(),
        states=states,
        extra=_NOTHING,
        version=HEAD_VERSION,
    )
    return head


@lru_cache(1000)
def _shared(text: str) -> Any:
    """An object that many heads have. Nobody writes into it. Raises Bad."""
    return parse_json(text, "a part of a head")


@lru_cache(1000)
def _identity(text: str) -> tuple[Any, int]:
    """The same of an identity, and what it takes as canonical JSON, in bytes; 0 where it was written otherwise."""
    value, data = _shared(text), text.encode()
    return value, len(data) if canonical_json(value) == data else 0


def _states(digest: str, identity: str, parts: str, segments: str, covered: str) -> StoredStates:
    """The only state of a head, of the texts that matched. Raises Bad where they are not what they look like."""
    fields, fields_bytes = _identity(identity)
    rows, files = _read_rows(segments)
    part_rows, part_files = _read_rows(parts)
    state = {"identity": fields, "segments": rows, "parts": part_rows, "tokens": int(covered)}
    # The rows hold no blank and no zero too many, or they had not matched or were no JSON.
    measured = fields_bytes and _STATE_BYTES + fields_bytes + len(parts) + len(segments) + len(covered)
    return StoredStates({intern(digest): state}, files + part_files, measured)


def _read_rows(text: str) -> tuple[list[list[Any]], tuple[str, ...]]:
    """The rows of a list that matched, and their files. Raises Bad, too where one of them ends before it begins."""
    if text == "[]":
        return [], ()
    rows: list[list[Any]] = parse_json_whole(text, "rows")
    files = []
    for start, end, file, _ in rows:
        if start >= end:
            raise Bad("a segment ends before it begins")
        files.append(file)
    return rows, tuple(files)
