"""Calls of tools in replies: every format, in whatever pieces it arrives, and back through A2's comparison."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.call_text import CLOSES_LIMIT, MARKS_LIMIT, Call, CallText, split_calls
from strata_cli.messages import compared
from strata_cli.serve.tool_calls import ToolText

F = Call("f", {"x": 1})

CASES = [
    ("plain text", "plain text", []),
    ("  spaces stay \n", "  spaces stay \n", []),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "", [F]),
    ('Sure.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n', "Sure.", [F]),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [F]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> <tool_call>{"name": "g"}</tool_call>', "",
     [F, Call("g", {})]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "", [F]),
    ('<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call> done', " done",
     [Call("f", {"x": "</tool_call>"})]),
    ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
    ('<tool_call>no</tool_call><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>',
     "<tool_call>no</tool_call>", [F]),
    ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    ("a < b and <tool_", "a < b and <tool_", []),
    ('{"name": "f", "parameters": {"x": 1}}', "", [F]),
    (' {"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}\n', "", [F]),
    ('{"name": "f", "parameters": {"x": 1}}; {"name": "g", "arguments": {}}', "", [F, Call("g", {})]),
    ('<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [F]),
    ('[{"name": "f", "arguments": {"x": 1}}]', "", [F]),
    ('{"name": "Ann", "age": 7}', '{"name": "Ann", "age": 7}', []),
    ('{"name": "Ann"}', '{"name": "Ann"}', []),
    ('{"answer": 42}', '{"answer": 42}', []),
    ('{"name": "f", "parameters": {"x": 1}} is what I would call', None, []),
    ("[1, 2]", "[1, 2]", []),
    ('[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', "", [F, Call("g", {})]),
    ('[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g{}', "", [F, Call("g", {})]),
    ("[TOOL_CALLS] of what?", "[TOOL_CALLS] of what?", []),
    ('<think>I could <tool_call>{"name": "no"}</tool_call></think>yes', None, []),
    ('<think>hm</think>\n{"name": "f", "parameters": {"x": 1}}', "<think>hm</think>", [F]),
    ("<think>never ends", "<think>never ends", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "calls"), CASES, ids=range(len(CASES)))
def test_a_reply_is_content_and_calls(text: str, content: str | None, calls: list[Call]) -> None:
    assert split_calls(text) == (text if content is None else content, calls)


ALPHABET = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<", "[", "{",
    '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {}}', '"', "name", "f", ":", "}", "]", " ",
    "\n",
]  # fmt: skip


def in_pieces(text: str, cuts: list[int]) -> tuple[str, list[Call]]:
    reader, places = CallText(), [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    content = "".join(reader.push(text[a:b]) for a, b in itertools.pairwise(places))
    return content + reader.finish(), reader.calls


@given(st.one_of(st.sampled_from([text for text, _, _ in CASES]), st.lists(st.sampled_from(ALPHABET)).map("".join)),
       st.lists(st.integers(0, 120)))  # fmt: skip
def test_pieces_change_nothing(text: str, cuts: list[int]) -> None:
    assert in_pieces(text, cuts) == split_calls(text)


@pytest.mark.parametrize("text", [text for text, _, calls in CASES if calls])
def test_no_part_of_a_call_is_shown(text: str) -> None:
    reader, content = CallText(), split_calls(text)[0]
    shown = ""
    for letter in text:
        shown += reader.push(letter)
        assert content.startswith(shown)


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    reader = CallText()
    assert reader.push("Hello") == "Hello"
    assert reader.push(" <") == "" and reader.push("b>") == " <b>"
    assert reader.push(' <tool_call>{"name": "f"}</tool_call>') == "" and reader.calls == [Call("f", {})]
    answer = CallText()
    assert answer.push('{"an') == '{"an', "an answer in JSON is streamed once it cannot be a call"


def test_many_tags_are_text_in_the_end() -> None:
    text = "<tool_call>" * (MARKS_LIMIT + 10) + "</tool_call>" * (CLOSES_LIMIT + 10)
    assert split_calls(text) == (text, [])


@given(st.lists(st.sampled_from([text for text, _, _ in CASES]), min_size=1, max_size=2).map("\n".join))
def test_A2_a_client_that_sends_the_answer_back_says_the_same(text: str) -> None:
    reader = ToolText("seed")
    content = reader.push(text)
    rest, calls = reader.finish()
    sent: dict[str, Any] = {"role": "assistant", "content": (content + rest) or None}
    sent |= {"tool_calls": json.loads(json.dumps(calls))} if calls else {}
    assert compared(sent) == compared({"role": "assistant", "content": text})


def test_calls_as_a_client_reads_them() -> None:
    reader = ToolText("seed")
    call = '<tool_call>{"name": "f", "arguments": {"city": "Lódź"}}</tool_call>'
    assert reader.push(call) == "" and reader.take() == [
        {"index": 0, "id": reader.finish()[1][0]["id"], "type": "function",
         "function": {"name": "f", "arguments": '{"city": "Lódź"}'}}
    ]  # fmt: skip
    assert reader.take() == []
    reader.push(call)
    (second,) = reader.take()
    assert second["index"] == 1
    _, calls = reader.finish()
    assert len({each["id"] for each in calls}) == 2 and all(len(each["id"]) == 9 for each in calls)
    assert calls == calls_of("seed", call * 2)
    assert calls != calls_of("other", call * 2), "another reply has other ids"


def calls_of(seed: str, text: str) -> list[dict[str, Any]]:
    reader = ToolText(seed)
    reader.push(text)
    return reader.finish()[1]
