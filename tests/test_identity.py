"""Identities: one JSON text, one digest, differences by field, and the hashes that name prefixes."""

import json
import struct
from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.errors import Bad
from strata_cli.identity import (
    Identity,
    canonical_json,
    differences,
    from_fields,
    parse_json,
    prefix_hashes,
    token_bytes,
    tokens_from_bytes,
)

ONE = Identity(
    weights="b3:" + "0" * 64,
    adapters=(("b3:" + "1" * 64, 0.5),),
    cache_type_k="f16",
    cache_type_v="f16",
    v_transposed=False,
    rope={"freq_base": 10000.0, "factors": "short"},
    state_format=3,
    layout={},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_canonical_json_round_trips_and_is_stable(value: object) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(parse_json(data, "x")) == data
    assert b"\n" not in data


def test_canonical_json_sorts_and_keeps_half_surrogates_harmless() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert parse_json(canonical_json({"a": "\ud800é"}), "x") == {"a": "\ud800é"}
    for impossible in (float("nan"), {1: object()}):
        with pytest.raises(Bad):
            canonical_json(impossible)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"NaN", b"[" * 100_000, b"1" * 10_000, b'{"a":1}x', b"\xef\xbb\xbf{}"]
)
def test_malformed_json_is_bad_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Bad, match="thing"):
        parse_json(data, "thing")


def test_fields_round_trip_through_json() -> None:
    again = from_fields(json.loads(json.dumps(ONE.fields())))
    assert again == ONE and again.digest == ONE.digest and hash(again) == hash(ONE)
    assert ONE.digest == blake3(canonical_json(ONE.fields())).digest()
    assert ONE.short == ONE.digest.hex()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "b3:" + "2" * 64},
        {"adapters": ()},
        {"adapters": (("b3:" + "1" * 64, 0.25),)},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "q8_0"},
        {"v_transposed": True},
        {"rope": {"freq_base": 10000.0, "factors": "long"}},
        {"state_format": 4},
        {"layout": {"x": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_counts_and_is_named(change: dict[str, object]) -> None:
    other = replace(ONE, **change)
    assert other.digest != ONE.digest
    found = differences(ONE.fields(), other.fields())
    assert [each.field.split(".")[0] for each in found] == list(change)


def test_a_scale_of_one_is_one_however_it_is_written() -> None:
    assert replace(ONE, adapters=(("b3:1", 1),)).digest == replace(ONE, adapters=(("b3:1", 1.0),)).digest


def test_differences_read_well_and_are_harmless() -> None:
    other = replace(ONE, rope={"freq_base": 1.0}, cache_type_k="\x1b[31m")
    texts = [str(each) for each in differences(ONE.fields(), other.fields())]
    assert texts == [
        'cache_type_k: saved f16, now "\\u001b[31m"',
        "rope.factors: saved short, now nothing",
        "rope.freq_base: saved 10000.0, now 1.0",
    ]
    assert differences(ONE.fields(), ONE.fields()) == []


@given(JSON)
def test_from_fields_raises_bad_and_nothing_else(value: object) -> None:
    for fields in (value, {**ONE.fields(), "adapters": [value]}, {**ONE.fields(), "state_format": value}):
        try:
            from_fields(fields)
        except Bad:
            continue


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.lists(st.integers(-2, 50), max_size=6))
def test_prefix_hashes_equal_their_definition(tokens: list[int], positions: list[int]) -> None:
    found = prefix_hashes(ONE.digest, tokens, positions)
    assert set(found) == {k for k in positions if 0 <= k <= len(tokens)}
    for k, name in found.items():
        data = ONE.digest + b"".join(struct.pack("<I", token) for token in tokens[:k])
        assert name == blake3(data).digest()[:16].hex()


def test_prefixes_of_another_identity_have_other_names() -> None:
    other = replace(ONE, cache_type_k="q8_0")
    assert prefix_hashes(ONE.digest, [], [0]) != prefix_hashes(other.digest, [], [0])


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_round_trip(tokens: list[int]) -> None:
    assert list(tokens_from_bytes(token_bytes(tokens))) == tokens


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["x"], [None]])
def test_what_is_no_token_is_bad(tokens: list[int]) -> None:
    with pytest.raises(Bad):
        token_bytes(tokens)
