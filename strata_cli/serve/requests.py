"""The JSON bodies of requests as frozen values.

Owns which fields are read and what they may be: a wrong type or a value out of range is refused with the field's name,
a field that nobody knows is ignored. What cannot be done (several answers, a forced tool, a grammar) is refused, too:
an answer that looks as if it had been done would be worse.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NoReturn

from ..call_text import read_arguments
from ..engine import Sampling
from ..errors import UsageProblem
from ..messages import Incoming, Message, checked_messages, split
from ..prefix_marks import MARK
from ..reply import ReplyOptions
from .completions import CompletionRequest, read_token_list
from .statuses import BadRequest

# What of a message is kept: templates ask for these.
KEPT = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
STOPS, STOP_CHARS = 16, 256
NEST_LIMIT = 100  # what is nested deeper is no message; walking it would take the stack
WHOLE_LIMIT = 1 << 53


@dataclass(frozen=True)
class ChatRequest:
    """One chat completion. `shared_messages`: how many of the messages after the system prompt others share (P3);
    None where nothing is marked. `reads_calls`: whether calls of tools in the reply are the client's."""

    incoming: Incoming
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    tools: tuple[Any, ...] | None = None
    reads_calls: bool = False
    stream: bool = False
    include_usage: bool = False
    save: bool = True
    shared_messages: int | None = None


@dataclass(frozen=True)
class PlainRequest:
    """One completion of a text or of tokens."""

    asked: CompletionRequest
    stream: bool = False
    include_usage: bool = False


def read_body(data: bytes) -> Mapping[str, Any]:
    """The JSON object of a body. Raises BadRequest."""
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, Mapping):
        raise BadRequest("the body must be a JSON object")
    if _deeper_than(body, NEST_LIMIT):
        raise BadRequest(f"the body is nested more than {NEST_LIMIT} levels deep")
    if b"\\u" in data:
        _check_characters(body)
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _deeper_than(body: Any, limit: int) -> bool:
    level = [body]
    for _ in range(limit):
        found: list[Any] = []
        for value in level:
            found += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        level = found
        if not level:
            return False
    return True


def _check_characters(body: Any) -> None:
    """Raises BadRequest for half a character (a lone surrogate): no file can hold it."""
    try:
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest("the body has half a character (a lone surrogate)") from None


class Fields:
    """Reads fields of a body, each of one type; null is as if it was not there. Raises BadRequest naming the field."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def get(self, name: str) -> Any:
        return self._body.get(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadRequest(f"`{name}` must be true or false", param=name)
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"`{name}` must be a text", param=name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise BadRequest(f"`{name}` must be a number", param=name)
        if not low <= value <= high:
            raise BadRequest(f"`{name}` must be from {low:g} to {high:g}", param=name)
        return float(value)

    def whole(self, name: str, default: int | None, low: int, high: int = WHOLE_LIMIT) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"`{name}` must be a whole number", param=name)
        if not low <= value <= high:
            raise BadRequest(f"`{name}` must be from {low:,} to {high:,}", param=name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """One text, or a list of them."""
        value = self.get(name)
        found = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise BadRequest(f"`{name}` must be a text or a list of texts", param=name)
        if len(found) > STOPS or any(len(each) > STOP_CHARS for each in found):
            raise BadRequest(f"`{name}` takes {STOPS} texts of {STOP_CHARS} characters", param=name)
        return tuple(each for each in found if each)


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    """The body of /v1/chat/completions. Raises BadRequest, UsageProblem, Refused for media."""
    fields = Fields(body)
    _check_possible(fields)
    listed = _listed(body)
    shared = _shared(fields, listed)
    messages = [_kept(message) for message in checked_messages(listed, "`messages`")]
    incoming = split(messages, None, "`messages`")
    choice = _tool_choice(fields)
    tools = _tools(fields)
    opening = len(messages) - len(incoming.all)
    stream, usage = _stream(fields)
    return ChatRequest(
        incoming,
        _reply(fields),
        tools,
        reads_calls=tools is not None and choice != "none",
        stream=stream,
        include_usage=usage,
        save=fields.flag("strata_save", True),
        shared_messages=None if shared is None else max(0, shared - opening),
    )


def read_plain(body: Mapping[str, Any]) -> PlainRequest:
    """The body of /v1/completions. Raises BadRequest, UsageProblem."""
    fields = Fields(body)
    _check_possible(fields)
    stream, usage = _stream(fields)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]  # a list of one prompt, as some clients send it
    if not isinstance(prompt, str):
        prompt = read_token_list(prompt, "prompt")
    only_read = fields.get("max_tokens") == 0 and fields.get("max_tokens") is not False
    reply = _reply(fields, least=0)
    return PlainRequest(CompletionRequest(prompt, reply, fields.flag("echo", False), only_read), stream, usage)


def read_template(body: Mapping[str, Any]) -> tuple[tuple[Message, ...], tuple[Any, ...] | None]:
    """Messages and tools of /apply-template. Raises BadRequest, UsageProblem, Refused for media."""
    messages = tuple(_kept(message) for message in checked_messages(_listed(body), "`messages`"))
    return messages, _tools(Fields(body))


def _listed(body: Mapping[str, Any]) -> Sequence[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of messages", param="messages")
    return messages


def _kept(message: Message) -> Message:
    """A message less what no template asks for; arguments of calls that came as JSON in a text are read."""
    found = {key: message.get(key) for key in KEPT if message.get(key) is not None or key == "content"}
    if "tool_calls" in found:
        found["tool_calls"] = [_call(each) for each in _calls(found["tool_calls"])]
    for key in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(found.get(key, ""), str):
            raise BadRequest(f"`{key}` of a message must be a text", param="messages")
    return found


def _calls(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise BadRequest("`tool_calls` of a message must be a list of calls", param="messages")
    return value


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates write arguments as JSON themselves: what is JSON in a text already would be quoted twice."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = read_arguments(function.get("arguments", {}))
    return {**call, "function": {**function, "arguments": arguments}}


def _shared(fields: Fields, listed: Sequence[Any]) -> int | None:
    """How many messages end with the mark, the last one counts; None without one."""
    marked = [number for number, each in enumerate(listed, 1) if isinstance(each, Mapping) and each.get(MARK) is True]
    said = fields.whole(MARK, None, 0, len(listed))
    return max([*marked, said or 0]) or None


def _tools(fields: Fields) -> tuple[Any, ...] | None:
    tools = fields.get("tools")
    if tools is not None and (not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools)):
        raise BadRequest("`tools` must be a list of tools", param="tools")
    return tuple(dict(each) for each in tools) if tools else None


def _tool_choice(fields: Fields) -> str:
    choice = fields.get("tool_choice")
    if choice in (None, "auto", "none"):
        return choice or "auto"
    raise BadRequest("`tool_choice` can be auto or none: no tool can be forced", param="tool_choice")


def _check_possible(fields: Fields) -> None:
    """Raises BadRequest for what this service cannot do."""
    fields.text("model")
    if fields.whole("n", 1, 1) != 1:
        raise BadRequest("`n` can be 1: there is one live conversation", param="n")
    if fields.get("logprobs") not in (None, False):
        raise BadRequest("`logprobs` is not offered", param="logprobs")
    shape = fields.get("response_format")
    if shape is not None and (not isinstance(shape, Mapping) or shape.get("type") != "text"):
        raise BadRequest("`response_format` can be text: no other shape can be promised", param="response_format")


def _stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether the stream tells the usage."""
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise BadRequest("`stream_options` must be an object", param="stream_options")
    usage = Fields(options).flag("include_usage", False) if options else False
    return fields.flag("stream", False), usage


def _reply(fields: Fields, least: int = 1) -> ReplyOptions:
    defaults = Sampling()
    temperature = fields.number("temperature", defaults.temperature, 0, 100)
    sampling = replace(
        defaults,
        greedy=temperature == 0,
        temperature=temperature,
        top_k=fields.whole("top_k", defaults.top_k, 0, 1 << 30) or 0,
        top_p=fields.number("top_p", defaults.top_p, 0, 1),
        min_p=fields.number("min_p", defaults.min_p, 0, 1),
        repeat_penalty=fields.number("repeat_penalty", defaults.repeat_penalty, 0, 100),
        seed=fields.whole("seed", None, -WHOLE_LIMIT),
    )
    limits = [fields.whole(name, None, -1) for name in ("max_completion_tokens", "max_tokens")]
    limit = next((each for each in limits if each is not None), -1)
    if 0 <= limit < least:
        raise UsageProblem("`max_tokens` must be at least 1; leave it out for no limit")
    return ReplyOptions(sampling, max(limit, 0), fields.texts("stop"))
