"""Logs: a torn or changed line costs itself, branches are found again, and nothing malformed raises."""

import json

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.errors import Bad
from strata_cli.identity import canonical_json
from strata_cli.log import Line, Log, append_bytes, encode_line, parse_log

NOW = "2026-01-01T00:00:00.000000Z"


def message(id: int, parent: int | None, text: str = "hi", tokens: tuple[int, ...] = (), start: int = 0) -> Line:
    role = "user" if id % 2 else "assistant"
    return Line(id, parent, "message", NOW, {"role": role, "content": text}, tokens, start, "b3:tok" if tokens else "")


CHAT = (
    Line(1, None, "setup", NOW, settings={"system": "be brief"}),
    message(2, None, "question", (1, 2, 3), 0),
    message(3, 2, "answer", (4, 5), 3),
    message(4, 3, "more", (6, 7), 4),
    message(5, 4, "much", (8,), 6),
)


def sealed(value: object) -> bytes:
    body = canonical_json(value)
    return body[:-1] + b',"check":"' + blake3(body).hexdigest()[:16].encode() + b'"}\n'


def test_round_trip_and_form() -> None:
    data = append_bytes(CHAT)
    log = parse_log(data)
    assert (log.lines, log.bad, log.tip, log.next_id) == (CHAT, (), 5, 6)
    assert [line.id for line in log.branch()] == [2, 3, 4, 5]
    assert log.tokens() == (1, 2, 3, 4, 6, 7, 8)
    assert log.tokens(3) == (1, 2, 3, 4, 5)
    assert log.setup() == {"system": "be brief"}
    assert log.line(3) == CHAT[2] and log.line(99) is None
    for raw in data.splitlines():
        value = json.loads(raw)
        assert list(value)[-1] == "check" and sealed({k: v for k, v in value.items() if k != "check"})[:-1] == raw


def test_an_empty_log() -> None:
    log = parse_log(b"")
    assert log == Log() and (log.tip, log.next_id, log.tokens(), log.branch(), log.setup()) == (None, 1, (), (), {})


@given(
    st.text(),
    st.lists(st.integers(0, 2**32 - 1), max_size=5),
    st.lists(st.text(max_size=5), max_size=2),
    st.integers(0, 2**40),
)
def test_any_text_round_trips(text: str, tokens: list[int], marks: list[str], start: int) -> None:
    line = Line(1, None, "message", NOW, {"role": "user", "content": text}, tuple(tokens), start, "t", tuple(marks))
    data = encode_line(line)
    assert data.count(b"\n") == 1 and parse_log(data).lines == (line,)


def test_half_a_surrogate_pair_round_trips() -> None:
    line = message(1, None, "\ud83d")
    assert parse_log(encode_line(line)).lines == (line,)


def test_every_cut_costs_the_torn_line_alone_and_the_next_one_starts_afresh() -> None:
    data = append_bytes(CHAT)
    ends = [0]
    for line in CHAT:
        ends.append(ends[-1] + len(encode_line(line)))
    for size in range(len(data)):
        # A line is whole without its newline.
        whole = sum(size >= end - 1 for end in ends[1:])
        torn = size not in ends and size + 1 not in ends
        log = parse_log(data[:size])
        assert (len(log.lines), len(log.bad)) == (whole, int(torn))
        more = append_bytes([message(9, None)], tail_has_newline=data[:size].endswith(b"\n") or not size)
        assert parse_log(data[:size] + more).lines == (*CHAT[:whole], message(9, None))


@given(st.data())
def test_a_changed_byte_costs_at_most_two_lines(data: st.DataObject) -> None:
    raw = bytearray(append_bytes(CHAT))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    log = parse_log(bytes(raw))
    assert len(log.lines) >= len(CHAT) - 2 and log.bad
    assert all(line in CHAT for line in log.lines)


@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing(data: bytes) -> None:
    for log in (parse_log(data), parse_log(append_bytes(CHAT) + data)):
        log.branch(), log.tokens(), log.setup(), log.alternatives()
        assert log.next_id >= 1


GOOD = {"v": 1, "id": 7, "parent": 3, "kind": "message", "time": NOW, "message": {"role": "user", "content": "x"}}
WRONG = [
    None,
    [],
    {},
    {**GOOD, "v": 2},
    {**GOOD, "id": "7"},
    {**GOOD, "id": True},
    {**GOOD, "id": 0},
    {**GOOD, "id": 10**300},
    {**GOOD, "id": 3, "parent": 2},
    {**GOOD, "parent": 7},
    {**GOOD, "parent": -1},
    {**GOOD, "parent": 1.5},
    {**GOOD, "kind": "else"},
    {**GOOD, "kind": []},
    {**GOOD, "time": 1},
    {**GOOD, "message": None},
    {**GOOD, "message": {"role": 1}},
    {**GOOD, "message": {"role": "user", "content": 1}},
    {**GOOD, "tokens": "abc"},
    {**GOOD, "tokens": [1, -1]},
    {**GOOD, "tokens": [2**32]},
    {**GOOD, "tokens": [1.0]},
    {**GOOD, "tokens": [None]},
    {**GOOD, "start": -1},
    {**GOOD, "start": "0"},
    {**GOOD, "tokenizer": 1},
    {**GOOD, "marks": "interrupted"},
    {**GOOD, "marks": [1]},
    {**GOOD, "settings": []},
]


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_a_wrong_typed_line_with_a_good_check_is_bad_alone(value: object) -> None:
    data = append_bytes(CHAT[:3]) + (
        sealed(value) if isinstance(value, dict) and value else canonical_json(value) + b"\n"
    )
    log = parse_log(data + encode_line(message(8, 3)))
    assert [line.id for line in log.lines] == [1, 2, 3, 8]
    assert [(bad.number, bool(bad.why)) for bad in log.bad] == [(4, True)]


def test_a_good_line_takes_unknown_keys() -> None:
    assert parse_log(append_bytes(CHAT[:3]) + sealed({**GOOD, "mood": 1})).lines[-1].id == 7


def test_a_blanked_middle_line_is_told_and_its_children_hang_from_the_line_before() -> None:
    lines = append_bytes(CHAT).split(b"\n")
    for blank in (b"", b" " * 40, b"\0" * 40):
        log = parse_log(b"\n".join([*lines[:2], blank, *lines[3:]]))
        assert [line.id for line in log.branch()] == [2, 4, 5] and log.tip == 5
        assert [bad.number for bad in log.bad] == [3]
        # What was read after the lost line cannot be known to be the same.
        assert log.tokens() == (1, 2, 3)


def test_a_lost_parent_is_the_nearest_message_before_it_not_before_the_child() -> None:
    lines = [message(1, None), message(2, 1), message(3, 1), message(4, 2)]
    raw = [encode_line(line) for line in lines]
    log = parse_log(raw[0] + b"x\n" + raw[2] + raw[3])
    assert [line.id for line in log.branch()] == [1, 4]


def test_a_lost_edit_does_not_lend_its_ancestors_tokens() -> None:
    lines = [
        message(1, None, tokens=(1, 2, 3, 4)),
        message(2, 1, tokens=(9,), start=1),
        message(3, 2, tokens=(7,), start=2),
    ]
    raw = [encode_line(line) for line in lines]
    assert parse_log(b"".join(raw)).tokens() == (1, 9, 7)
    assert parse_log(raw[0] + raw[2]).tokens() == (1, 2, 3, 4)


def test_going_back_leaves_an_alternative() -> None:
    back = Line(6, 3, "back", NOW)
    log = parse_log(append_bytes([*CHAT, back]))
    assert log.tip == 3 and [line.id for line in log.branch()] == [2, 3]
    assert log.alternatives() == (5,)
    log = parse_log(append_bytes([*CHAT, back, message(7, 3, tokens=(50,), start=5)]))
    assert log.tip == 7 and log.tokens() == (1, 2, 3, 4, 5, 50)
    assert log.alternatives() == (5,) and [line.id for line in log.branch(5)] == [2, 3, 4, 5]
    log = parse_log(append_bytes([*CHAT, Line(6, None, "back", NOW)]))
    assert log.tip is None and log.branch() == () and log.alternatives() == (5,)


def test_a_torn_back_line_leaves_the_branch_before_it() -> None:
    data = append_bytes([*CHAT, Line(6, 3, "back", NOW)])
    assert parse_log(data[:-3]).tip == 5


def test_settings_are_those_of_the_branch() -> None:
    later = Line(6, 5, "setup", NOW, settings={"system": "be long"})
    log = parse_log(append_bytes([*CHAT, later]))
    assert log.tip == 5 and log.setup() == {"system": "be long"}
    assert log.setup(3) == {"system": "be brief"}


def test_a_value_that_json_lacks_is_refused_before_it_is_written() -> None:
    with pytest.raises(Bad):
        encode_line(Line(1, None, "message", NOW, {"role": "user", "content": float("inf")}))


def test_deep_branches_need_no_recursion() -> None:
    log = parse_log(append_bytes(message(i, i - 1 or None, tokens=(i,), start=i - 1) for i in range(1, 3000)))
    assert len(log.branch()) == len(log.tokens()) == 2999
