"""Heads read by one look: the same values and the same faults as by the parser, and in the common case without it."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_head import HEAD, NOW, STATE, A, B, signed

from strata_cli import plain_head
from strata_cli.errors import StrataError
from strata_cli.head import Head, SegmentRef, StateRef, StoredStates, encode_head, files_of, parse_head
from strata_cli.identity import canonical_json
from strata_cli.plain_head import parse_plain_head

PLAIN = replace(HEAD, pins=(), extra={})
COUNTS = st.integers(0, 10**15 - 1)
FLAT = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=3)
DIGITS = st.text("0123456789abcdef", min_size=32, max_size=32)


def outcome(parse: Any, data: bytes) -> object:
    try:
        found = parse(data, "notes")
    except StrataError as error:
        return type(error), error.message, error.hint
    return found, dict(found.states), files_of(found), encode_head(found)


def same(data: bytes) -> None:
    assert outcome(parse_plain_head, data) == outcome(parse_head, data)


@st.composite
def refs(draw: st.DrawFn, kind: str) -> tuple[SegmentRef, ...]:
    rows = []
    for _ in range(draw(st.integers(0, 3))):
        start, end = draw(COUNTS), draw(COUNTS)
        rows.append(SegmentRef(kind, start, end, f"{draw(DIGITS)}/{end}-{draw(DIGITS)}.{kind}", draw(COUNTS)))
    return tuple(rows)


STATES = st.builds(StateRef, FLAT, refs("seg"), refs("part"), COUNTS)
HEADS = st.builds(
    Head,
    name=st.just("notes"),
    kind=st.sampled_from(["auto", "named"]),
    key=st.text("0123456789abcdef", max_size=16),
    title=st.text(max_size=20),
    model=FLAT,
    engine=FLAT,
    template=FLAT,
    created=st.sampled_from(["", NOW]),
    updated=st.sampled_from(["", NOW, "2026-01-01T00:00:00+00:00"]),
    last_turn=st.sampled_from(["", NOW]),
    turns=COUNTS,
    tokens=COUNTS,
    lines=COUNTS,
    pins=st.lists(COUNTS, max_size=2).map(tuple),
    states=st.dictionaries(st.text("0123456789abcdef", min_size=64, max_size=64), STATES, max_size=2),
    extra=st.sampled_from([{}, {"pinned": True}, {"zz": {"a": [1]}}]),
)


@given(HEADS)
@example(PLAIN)
@example(HEAD)
@example(Head("notes", "auto"))
def test_every_head_reads_alike(head: Head) -> None:
    same(encode_head(head))


def test_a_plain_one_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of this would be for nothing."""
    monkeypatch.setattr(plain_head, "parse_head", None)
    for head in (
        PLAIN,
        replace(PLAIN, title="Gr\u00fc\u00dfe, \u4f60\u597d"),
        replace(PLAIN, states={}),
        Head("notes", "auto"),
    ):
        assert parse_plain_head(encode_head(head), "notes") == head


@given(HEADS)
@example(replace(PLAIN, states={"0" * 64: replace(STATE, identity={"name": "Gr\u00fc\u00dfe"})}))
def test_what_a_state_takes_is_known_from_its_text(head: Head) -> None:
    """Prune frees that much, and must not say otherwise."""
    try:
        states = parse_plain_head(encode_head(head), "notes").states
    except StrataError:
        return
    assert isinstance(states, StoredStates)
    assert states.text_bytes in (0, len(canonical_json(states.raw)) - len("{}"))
    assert states.text_bytes > 0 or len(states) != 1 or states.files is None


def test_what_a_state_would_take_is_not_known_of_other_json() -> None:
    body = re.sub(rb',"check":"[0-9a-f]{16}"\}\n', b"}", encode_head(PLAIN))
    body = body.replace(b'"identity":{', b'"identity":{ ', 1)
    found = parse_plain_head(body[:-1] + b',"check":"' + plain_head_check(body) + b'"}\n', "notes")
    assert isinstance(found.states, StoredStates) and found.states.text_bytes == 0 and len(found.states) == 1


WRONG: list[object] = [
    None,
    True,
    1,
    -1,
    1.5,
    10**15,
    2**60,
    "x",
    "a\nb",
    [],
    [1],
    {},
    {"a": 1},
    {"a": {"b": {"c": 1}}},
    "}",
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_every_wrong_value_is_judged_alike(wrong: object) -> None:
    value = dict(vars(PLAIN)) | {"states": {"0" * 64: state(STATE)}, "pins": []}
    del value["extra"]
    for name in value:
        same(signed(value | {name: wrong}))
    for name in state(STATE):
        same(signed(value | {"states": {"0" * 64: state(STATE) | {name: wrong}}}))
    for column in range(4):
        row: list[Any] = [0, 10, f"{A}/10-{B}.seg", 5000]
        row[column] = wrong
        same(signed(value | {"states": {"0" * 64: state(STATE) | {"segments": [row]}}}))


def state(ref: StateRef) -> dict[str, Any]:
    return {
        "identity": dict(ref.identity),
        "segments": [list(each[1:]) for each in ref.segments],
        "parts": [list(each[1:]) for each in ref.parts],
        "tokens": ref.tokens,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb'"turns":2', b'"turns":02'),
        (rb'"turns":2', b'"turns":2,"turns":3'),
        (rb'"title":"hello"', b'"title":"hel\x01lo"'),
        (rb'"title":"hello"', b'"title":"\xff"'),
        (rb'"title":"hello"', b'"title":"\\u00e9"'),
        (rb'\{"path":"m.gguf"\}', b'{"path":"}'),
        (rb'\{"path":"m.gguf"\}', b'{"path":"m.gguf",}'),
        (rb'\{"path":"m.gguf"\}', b'{"path":NaN}'),
        (rb'"segments":\[', b'"segments":[,'),
        (rb'\],\[', b"] , ["),
        (rb'\],\[', b"],,["),
        (rb'\],\[', b"]["),
        (rb'\]\],"tokens"', b'],],"tokens"'),
        (rb"\[0,10,", b"[00,10,"),
        (rb'"identity":\{', b'"identity":{ '),
        (rb'"identity":\{', b'"identity":{"a":"},\\\\"parts\\\\":","b":"}",'),
        (rb'"identity":\{', b'"identity":{"a":{"b":{}},"c":"},",'),
        (rb"\]\],\"tokens\"", b']],],"tokens"'),
        (rb"\[0,10,", b"[10,0,"),
        (rb"\[0,10,", b"[10,10,"),
        (rb'"version":1', b'"version":2'),
        (rb'"version":1', b'"version":true'),
    ],
)  # fmt: skip
def test_every_odd_text_is_judged_alike(old: bytes, new: bytes) -> None:
    """With a check that fits: whoever writes such a head can make one."""
    body = re.sub(rb',"check":"[0-9a-f]{16}"\}\n', b"}", encode_head(PLAIN))
    changed, count = re.subn(old, lambda _: new, body, count=1)
    assert count == 1
    same(changed[:-1] + b',"check":"' + plain_head_check(changed) + b'"}\n')


def plain_head_check(body: bytes) -> bytes:
    from blake3 import blake3

    return blake3(body).hexdigest(length=8).encode()


@given(st.binary(max_size=3), st.integers(0, 900), st.integers(0, 3))
@settings(max_examples=300)
def test_any_bytes_are_judged_alike(patch: bytes, at: int, cut: int) -> None:
    data = encode_head(PLAIN)
    same(data[:at] + patch + data[at + cut :])


def test_equal_is_not_the_same() -> None:
    """Two heads under one digest, one of which has 1 where the other has true: each is written back as it was."""
    for value in (1, True, 1.0):
        head = replace(PLAIN, states={"1" * 64: replace(STATE, identity={"b": value})})
        data = encode_head(head)
        for parse in (parse_head, parse_plain_head):
            assert encode_head(parse(data, "notes")) == data
