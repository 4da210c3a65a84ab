"""Calls of tools in what a model says, in the formats that chat templates teach: text in, content and calls out.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen and others; several may follow each other
    {"name": ..., "parameters": {...}}                          Llama 3: the reply is nothing else
    [TOOL_CALLS][{"name": ..., "arguments": {...}}]             Mistral; newer ones: [TOOL_CALLS]name[ARGS]{...}

Owns the rule that a reply gives the same content and the same calls in whatever pieces it arrives, and that no part
of a call is shown before it is known to be none. What is no call is text. Reasoning is never searched for calls.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

THINK, THOUGHT = "<think>", "</think>"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
MISTRAL, ARGS = "[TOOL_CALLS]", "[ARGS]"
PYTHON = "<|python_tag|>"  # stands before Llama's bare call where the engine prints it
MARKS = (THINK, OPEN, MISTRAL)
BARE_BEGINS = ("", "{", "[", PYTHON[0])
_NAME = re.compile(r"\s*([A-Za-z0-9_.-]{1,128})\s*", re.ASCII)
_WHITE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s;,]*")
# How a bare call can begin: its first key, as far as it is there, must begin one of these.
_BARE = re.compile(r"\s*\[?\s*(?:\{\s*(?:\"(\w*)(\"?))?)?")
_KEYS = ("name", "arguments", "parameters", "type", "function", "id")
# Beyond these the rest is text: a message made of nothing but tags must not cost its length squared.
MARKS_LIMIT, CLOSES_LIMIT = 1000, 16


@dataclass(frozen=True)
class Call:
    """One call. `arguments` is what JSON says, an object as a rule, {} where nothing was said."""

    name: str
    arguments: Any


class CallText:
    """Collects a reply; `push` gives what is certainly text by now, `finish` the rest; `calls` grows meanwhile.

    White space that touches a call is dropped.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._held = ""
        self._space = ""  # white space at the end of what was shown, until something follows it
        self._thinking = False
        self._blank = True  # nothing was said yet, reasoning aside
        self._scanned = 0  # how much of a held call was searched for its end
        self._closes = 0  # how many closing tags were no end of it
        self._marks = 0

    def push(self, text: str) -> str:
        """Take the next of the reply; returns what can be shown."""
        self._held += text
        return self._release(final=False)

    def finish(self) -> str:
        """The text that was held back and is no call."""
        rest = self._release(final=True)
        space, self._space = self._space, ""
        return rest if self.calls else rest + space

    def _release(self, *, final: bool) -> str:
        shown = ""
        while self._held and (step := self._step(final)) is not None:
            whole = self._space + step
            text = whole.rstrip()
            self._space = whole[len(text) :]
            shown += text
        return shown

    def _step(self, final: bool) -> str | None:
        """The next text that is decided, "" where a call was taken; None while more must be known."""
        if self._marks > MARKS_LIMIT:
            return self._take(len(self._held))
        if self._thinking:
            return self._reasoning(final)
        if self._blank and self._held.lstrip()[:1] in BARE_BEGINS:
            if (found := self._bare(final)) is None:
                return None
            if found:
                return ""
        if self._held.startswith((OPEN, MISTRAL)):
            return self._tagged(final) if self._held.startswith(OPEN) else self._mistral(final)
        if self._held.startswith(THINK):
            self._marks += 1
            self._thinking = True
            return self._take(len(THINK))
        return self._plain(final)

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        self._scanned = self._closes = 0
        return taken

    def _reasoning(self, final: bool) -> str | None:
        end = self._held.find(THOUGHT)
        if end >= 0:
            self._thinking = False
            return self._take(end + len(THOUGHT))
        return self._take(len(self._held) - (0 if final else _tail(self._held, (THOUGHT,)))) or None

    def _plain(self, final: bool) -> str | None:
        """Text up to the next mark."""
        places = [at for mark in MARKS if (at := self._held.find(mark)) >= 0]
        end = min(places) if places else len(self._held) - (0 if final else _tail(self._held, MARKS))
        text = self._take(end)
        self._blank = self._blank and not text.strip()
        return text or None

    def _bare(self, final: bool) -> bool | None:
        """Whether a bare call was taken; None while it can still become one."""
        if not final:
            return None if may_be_bare(self._held) else False
        calls = _whole_json(_without_tag(self._held))
        if not calls:
            return False
        self._keep(calls, len(self._held))
        return True

    def _keep(self, calls: list[Call], count: int) -> str:
        self.calls += calls
        self._marks += 1
        self._space = ""
        self._blank = False
        self._take(count)
        return ""

    def _tagged(self, final: bool) -> str | None:
        """A call between tags. Its end is the first closing tag before which there is JSON: texts may hold a tag."""
        at = max(len(OPEN), self._scanned)
        while (end := self._held.find(CLOSE, at)) >= 0:
            if (call := _call_between(self._held, len(OPEN), end)) is not None:
                return self._keep([call], end + len(CLOSE))
            at = end + len(CLOSE)
            self._closes += 1
            if self._closes == CLOSES_LIMIT:
                return self._no_call(len(OPEN))
        self._scanned = max(at, len(self._held) - len(CLOSE) + 1)
        if not final:
            return None
        if (call := _call_between(self._held, len(OPEN), len(self._held))) is not None:
            return self._keep([call], len(self._held))
        return self._no_call(len(OPEN))

    def _mistral(self, final: bool) -> str | None:
        if not final:
            return None
        calls = _mistral_calls(self._held)
        return self._keep(calls, len(self._held)) if calls else self._no_call(len(MISTRAL))

    def _no_call(self, count: int) -> str:
        self._marks += 1
        self._blank = False
        return self._take(count)


def split_calls(text: str) -> tuple[str, list[Call]]:
    """Content and calls of a whole reply."""
    if text.lstrip()[:1] not in BARE_BEGINS and not any(mark in text for mark in MARKS):
        return text, []
    reader = CallText()
    content = reader.push(text)
    return content + reader.finish(), reader.calls


def may_be_bare(text: str) -> bool:
    """Whether a text that is not complete can still be nothing but a call."""
    if PYTHON.startswith(text.lstrip()):
        return True
    text = _without_tag(text)
    found = _BARE.match(text)
    assert found is not None
    key, closed = found[1], found[2]
    if key is None:
        return found.end() == len(text)
    if closed:
        return key in _KEYS
    return found.end() == len(text) and any(each.startswith(key) for each in _KEYS)


def _without_tag(text: str) -> str:
    return text.lstrip().removeprefix(PYTHON)


def call_of(value: Any) -> Call | None:
    """The call that a JSON value is, in any of the ways in which APIs and models write one."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return Call(value["name"], {} if arguments is None else read_arguments(arguments))


def read_arguments(arguments: Any) -> Any:
    """Arguments that came as JSON in a text are read; what is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()


def _call_between(text: str, start: int, end: int) -> Call | None:
    """The call that is all of text[start:end], white space aside."""
    try:
        value, last = _DECODER.raw_decode(text, _WHITE.match(text, start).end())  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return None
    return call_of(value) if last <= end and not text[last:end].strip() else None


def _whole_json(text: str) -> list[Call]:
    """The calls of a text that is nothing but calls; [] for any other. An answer that is JSON need not be one."""
    values: list[Any] = []
    for value in _values(text):
        values += value if isinstance(value, list) else [value]
    calls = [call_of(value) for value in values]
    return [call for call in calls if call is not None] if values and all(map(_is_bare, values)) else []


def _is_bare(value: Any) -> bool:
    """Without a tag only what has a name and arguments counts: {"name": "Ann"} is an answer."""
    inner = value.get("function") if isinstance(value, dict) and isinstance(value.get("function"), dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        return False
    return isinstance(inner.get("arguments", inner.get("parameters")), dict | str)


def _values(text: str) -> Iterator[Any]:
    """JSON values one after another; a text with anything else in it ends in a None."""
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]


def _mistral_calls(text: str) -> list[Call]:
    calls: list[Call] = []
    for part in text.split(MISTRAL):
        if not part.strip():
            continue
        found = _whole_json(part)
        if not found and (name := _NAME.match(part)):
            rest = part[name.end() :].removeprefix(ARGS)
            found = [Call(name[1], value) for value in _values(rest) if isinstance(value, dict)]
        if not found:
            return []
        calls += found
    return calls


def _tail(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end could be the beginning of a mark."""
    for size in range(min(max(map(len, marks)) - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0
