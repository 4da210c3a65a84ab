"""Calls of tools as OpenAI's clients read them, from a reply that was asked for with tools.

Owns ids and shapes. Which text is a call is `call_text`, the very rule by which messages are compared (A2): a client
that sends these calls back continues the conversation that said them.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..call_text import Call, CallText

ID_CHARS = 9  # Mistral's templates refuse other lengths, and anything but letters and digits


class ToolText:
    """A reply as it arrives: `push` gives the content to show, `take` the calls that became complete since.

    `seed` tells this reply from all others: ids are made of it, so that an equal run has equal ids.
    """

    def __init__(self, seed: str) -> None:
        self._reader, self._seed, self._taken = CallText(), seed, 0

    def push(self, text: str) -> str:
        """Take the next of the reply; never returns a part of a call."""
        return self._reader.push(text)

    def take(self) -> list[dict[str, Any]]:
        """The calls that became complete since the last time, as a streamed delta has them."""
        new = self._all()[self._taken :]
        numbered = [{"index": self._taken + n, **call} for n, call in enumerate(new)]
        self._taken += len(new)
        return numbered

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """What was held back and is content, and every call, as a message has them."""
        rest = self._reader.finish()
        return rest, self._all()

    def _all(self) -> list[dict[str, Any]]:
        return as_openai(self._reader.calls, self._seed)


def as_openai(calls: Sequence[Call], seed: str) -> list[dict[str, Any]]:
    """`tool_calls` of a message."""
    return [
        {
            "id": _id(seed, number),
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call.arguments)},
        }
        for number, call in enumerate(calls)
    ]


def _arguments(value: Any) -> str:
    """Text that is no JSON goes to the client as the model wrote it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _id(seed: str, number: int) -> str:
    return hashlib.sha256(f"{number}:{seed}".encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARS]
