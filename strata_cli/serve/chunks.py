"""The events of one stream, in order: a role, texts and calls of tools, how it ended.

Owns what a stream has said so far. The shapes are `answers`.
"""

from .answers import (
    About,
    Outcome,
    chat_chunk,
    event,
    last_chat_chunk,
    last_plain_chunk,
    plain_chunk,
    usage_chunk,
)
from .tool_calls import ToolText


class ChatChunks:
    """Of a chat completion; `tools` reads calls out of the text, None leaves it alone."""

    def __init__(self, about: About, tools: ToolText | None, *, tells_usage: bool) -> None:
        self._about, self._tools, self._tells_usage = about, tools, tells_usage

    def begin(self) -> bytes:
        return event(chat_chunk(self._about, {"role": "assistant", "content": ""}))

    def text(self, piece: str) -> bytes:
        if self._tools is None:
            return self._said(piece)
        return self._said(self._tools.push(piece)) + self._called(self._tools)

    def end(self, outcome: Outcome) -> bytes:
        rest, calls = self._tools.finish() if self._tools is not None else ("", [])
        data = self._said(rest) + (self._called(self._tools) if self._tools is not None else b"")
        data += event(last_chat_chunk(self._about, calls, outcome))
        return data + (event(usage_chunk(self._about, "chat.completion.chunk", outcome)) if self._tells_usage else b"")

    def _said(self, text: str) -> bytes:
        return event(chat_chunk(self._about, {"content": text})) if text else b""

    def _called(self, tools: ToolText) -> bytes:
        calls = tools.take()
        return event(chat_chunk(self._about, {"tool_calls": calls})) if calls else b""


class PlainChunks:
    """Of a completion of a text; `echo` comes first."""

    def __init__(self, about: About, echo: str, *, tells_usage: bool) -> None:
        self._about, self._echo, self._tells_usage = about, echo, tells_usage

    def begin(self) -> bytes:
        return self.text(self._echo)

    def text(self, piece: str) -> bytes:
        return event(plain_chunk(self._about, piece)) if piece else b""

    def end(self, outcome: Outcome) -> bytes:
        data = event(last_plain_chunk(self._about, outcome))
        return data + (event(usage_chunk(self._about, "text_completion", outcome)) if self._tells_usage else b"")
