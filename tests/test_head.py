"""Heads: round trips, unknown keys kept, and every malformed one is bad and nothing worse."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.errors import Bad, Refused, StrataError
from strata_cli.head import Head, SegmentRef, StateRef, encode_head, parse_head, title_of
from strata_cli.identity import checked_json


def signed(value: dict[str, object]) -> bytes:
    """A head's bytes with a check that fits, whatever it says."""
    return checked_json({name: each for name, each in value.items() if name != "check"}) + b"\n"


NOW = "2026-01-01T00:00:00.000001Z"
A, B = "a" * 32, "b" * 32
STATE = StateRef(
    {"weights": "b3:0", "rope": {"freq_base": 1.5}},
    (SegmentRef("seg", 0, 10, f"{A}/10-{B}.seg", 5000), SegmentRef("seg", 10, 20, f"{B}/20-{A}.seg", 6000)),
    (SegmentRef("part", 0, 20, f"{A}/20-{B}.part", 100),),
    20,
)
HEAD = Head(
    name="notes",
    kind="named",
    key="0123456789abcdef",
    title="hello",
    model={"path": "m.gguf"},
    engine={"ctx_size": 8192},
    template={"digest": "b3:1"},
    created=NOW,
    updated=NOW,
    last_turn=NOW,
    turns=2,
    tokens=20,
    pins=(10,),
    states={"0" * 64: STATE},
    extra={"mood": [1]},
)


def test_round_trip() -> None:
    data = encode_head(HEAD)
    again = parse_head(data, "notes")
    assert again == HEAD and dict(again.states) == dict(HEAD.states)
    assert data.endswith(b"}\n") and encode_head(again) == data
    assert encode_head(replace(again, turns=3)) != data


def test_least_head_and_the_files_own_name() -> None:
    head = Head("x", "auto")
    assert parse_head(encode_head(head), "x") == head
    assert parse_head(encode_head(head), "moved").name == "moved"


def test_unknown_keys_are_kept() -> None:
    value = json.loads(encode_head(HEAD)) | {"later": {"a": 1}}
    again = parse_head(signed(value), "notes")
    assert again.extra == {"mood": [1], "later": {"a": 1}}
    assert encode_head(again) == signed(value)


def test_another_format_is_refused_and_not_bad() -> None:
    value = json.loads(encode_head(HEAD)) | {"version": 2}
    with pytest.raises(Refused, match="format 2"):
        parse_head(signed(value), "notes")


@pytest.mark.parametrize("name", sorted({*json.loads(encode_head(HEAD))} - {"name", "mood", "check"}))
@pytest.mark.parametrize("wrong", [None, "x", -1, 1.5, [], {}, True, [[]], {"a": 1}, [None], 10**400], ids=repr)
def test_wrong_types_are_bad(name: str, wrong: object) -> None:
    value = json.loads(encode_head(HEAD))
    if isinstance(wrong, type(value[name])) and name in ("key", "title", "model", "engine", "template", "pins"):
        wrong = None
    if name == "states" and wrong == {}:
        wrong = {"a": {}}
    data = signed(value | {name: wrong})
    with pytest.raises(Bad, match="'notes'"):
        parse_head(data, "notes")


ROW = [0, 10, f"{A}/10-{B}.seg", 5000]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ROW[:3],
        [*ROW, 1],
        ["0", *ROW[1:]],
        [True, *ROW[1:]],
        [-1, *ROW[1:]],
        [10, *ROW[1:]],
        [*ROW[:3], 2**60],
        [*ROW[:2], 5, 5000],
        [*ROW[:2], "../../key", 5000],
        [*ROW[:2], f"{A}/../{A}/10-{B}.seg", 5000],
        [*ROW[:2], f"/{A}/10-{B}.seg", 5000],
        [*ROW[:2], f"{A}/10-{B}.part", 5000],
        [*ROW[:2], f"{A}/10-{B}.seg\n", 5000],
        [*ROW[:2], f"{A}/10-{B}.seg\n{A}/10-{B}.seg", 5000],
        [*ROW[:2], f"{A}/\u0661-{B}.seg", 5000],
        {"a": 1, "b": 2, "c": 3, "d": 4},
    ],
    ids=repr,
)
def test_a_malformed_segment_is_bad(row: object) -> None:
    value = json.loads(encode_head(HEAD))
    value["states"]["0" * 64]["segments"].append(row)
    with pytest.raises(Bad, match="segments"):
        parse_head(signed(value), "notes")


@given(st.binary(max_size=100), st.integers(0, 2000), st.integers(0, 2000))
def test_any_bytes_raise_nothing_else(patch: bytes, at: int, cut: int) -> None:
    data = bytearray(encode_head(HEAD))
    data[at : at + len(patch)] = patch
    for head in (patch, bytes(data), bytes(data[:cut])):
        try:
            encode_head(parse_head(head, "notes"))
        except StrataError:
            continue


def test_every_flipped_bit_of_a_head_is_noticed() -> None:
    data = encode_head(HEAD)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Bad, Refused)):
            parse_head(bytes(flipped), "notes")
    for size in range(len(data)):
        with pytest.raises(Bad):
            parse_head(data[:size], "notes")


def test_titles_are_harmless() -> None:
    assert title_of("a\nb\tc\x1b[31m\u202e" + "d" * 100) == "a b c [31m " + "d" * 49
    assert title_of("") == "" and title_of(" \n ") == ""
    assert title_of("é😀") == "é😀"
