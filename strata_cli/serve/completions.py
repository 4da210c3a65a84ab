"""Requests of plain text and tokens: /v1/completions, /tokenize, /detokenize, /apply-template.

They have no user message, so no key (A1): nothing of them is stored, in text or in state. What the engine and the
directory hold is reused by tokens. What was open before is parked first (A3).
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ..conversation import Chat
from ..engine import Cancelled, Vocabulary
from ..errors import UsageProblem
from ..messages import Message
from ..opened import Opened
from ..prompt import Entry, Prompt, content_text
from ..reply import Reply, ReplyOptions, write_reply
from ..session import Session
from ..too_long import check_length
from ..turn import UnderWay, Watch
from .leaving import leave
from .slot_files import SLOT

LISTED_TOKENS = 1 << 20  # more than any context has
COUNTED_BYTES = (
    1 << 19
)  # a text of this size is tokenised also where it cannot fit: who counts wants to know by how much


@dataclass(frozen=True)
class CompletionRequest:
    """A text, or tokens, to go on from. `only_read`: `max_tokens` was 0."""

    prompt: str | tuple[int, ...]
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    echo: bool = False
    only_read: bool = False


@dataclass(frozen=True)
class Completed:
    """What was said. Durations are milliseconds; `restored_segments` came from memory or disk."""

    text: str
    finish: str
    prompt_tokens: int
    reused_tokens: int
    reply_tokens: int
    restored_ms: float
    restored_segments: int
    prompt_ms: float
    generate_ms: float


def complete(session: Session, request: CompletionRequest, watch: Watch) -> Completed:
    """Go on from a prompt. Raises NoRoom where it does not fit, UsageProblem for tokens that the model lacks.

    A client that goes away ends it as `interrupted`.
    """
    chat = session.chat
    assert chat is not None, "the model is loaded before the port is opened"
    if isinstance(request.prompt, str):
        chat.check_length([request.prompt])
    tokens = prompt_tokens(request.prompt, chat.engine.vocabulary)
    prompt = Prompt(tokens, len(tokens) - 1, 0, (), None, ())
    chat.check_fits(prompt)
    chat.restores = not leave(session, chat)
    opened = Opened(session.store, SLOT)
    chat.opened = opened
    try:
        return _completed(chat, opened, prompt, request, watch)
    finally:
        chat.opened, chat.restores = None, True


def _completed(chat: Chat, opened: Opened, prompt: Prompt, request: CompletionRequest, watch: Watch) -> Completed:
    way, begun = UnderWay(prompt, ()), time.perf_counter()
    plan, restored, _ = chat.restore(opened, way, watch)
    reply = Reply("", (), "interrupted")
    try:
        chat.read_prompt(opened, way, plan.position, watch)
        prompt_ms = (time.perf_counter() - begun) * 1000
        if request.only_read:
            reply = Reply("", (), "length")
        else:
            reply = write_reply(chat.engine, request.reply, show=watch.show, cancelled=watch.cancelled)
    except Cancelled:
        prompt_ms = (time.perf_counter() - begun) * 1000
    if reply.failed is not None:
        raise reply.failed
    return Completed(
        text=reply.text,
        finish=reply.finish,
        prompt_tokens=len(prompt.tokens),
        reused_tokens=plan.position,
        reply_tokens=len(reply.tokens),
        restored_ms=restored.ms,
        restored_segments=restored.segments,
        prompt_ms=prompt_ms,
        generate_ms=(time.perf_counter() - begun) * 1000 - prompt_ms,
    )


def prompt_tokens(prompt: str | Sequence[int], vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens of a prompt; a text begins with the model's beginning token where it has one. Raises UsageProblem.

    Special tokens in a text are read as such, as llama-server does: who sends a raw prompt writes the template himself.
    """
    if not isinstance(prompt, str):
        return checked_tokens(prompt, vocabulary)
    tokens = vocabulary.tokenize(prompt, special=True)
    if vocabulary.add_bos and tokens[:1] != [vocabulary.bos]:
        tokens.insert(0, vocabulary.bos)
    if not tokens:
        raise UsageProblem("the prompt is empty")
    return tuple(tokens)


def checked_tokens(tokens: Sequence[int], vocabulary: Vocabulary) -> tuple[int, ...]:
    """Token ids that the model has. Raises UsageProblem."""
    if not tokens:
        raise UsageProblem("the prompt is empty")
    wrong = next((token for token in tokens if not 0 <= token < len(vocabulary)), None)
    if wrong is not None:
        raise UsageProblem(f"token {wrong} is none of this model's {len(vocabulary):,} tokens")
    return tuple(tokens)


def read_token_list(value: Any, name: str) -> tuple[int, ...]:
    """A JSON list of token ids. Raises UsageProblem naming the field."""
    if not isinstance(value, list) or len(value) > LISTED_TOKENS or not all(type(each) is int for each in value):
        raise UsageProblem(f"`{name}` must be a list of token ids")
    return tuple(value)


def tokenized(body: Mapping[str, Any], chat: Chat) -> dict[str, Any]:
    """The answer of /tokenize: ids, or with `with_pieces` ids and what each prints (bytes where it is no text).

    Raises UsageProblem, ContextFull for a text that is too long to be a prompt by far.
    """
    content, vocabulary = body.get("content"), chat.engine.vocabulary
    if not isinstance(content, str):
        raise UsageProblem("`content` must be a text")
    check_length(vocabulary, chat.engine.context_tokens, [content], least_bytes=COUNTED_BYTES)
    special = _flag(body, "parse_special", True)
    tokens = vocabulary.tokenize(content, special=special)
    if _flag(body, "add_special", False) and vocabulary.add_bos:
        tokens.insert(0, vocabulary.bos)
    if not _flag(body, "with_pieces", False):
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(vocabulary.piece(token))} for token in tokens]}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise UsageProblem(f"`{name}` must be true or false")
    return value


def detokenized(body: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """The answer of /detokenize; special tokens are written out."""
    tokens = read_token_list(body.get("tokens"), "tokens")
    if tokens:
        checked_tokens(tokens, vocabulary)
    texts = [
        vocabulary.special_text(token).encode() if vocabulary.is_special(token) else vocabulary.piece(token)
        for token in tokens
    ]
    return {"content": b"".join(texts).decode("utf-8", "replace")}


def texts_of(messages: Sequence[Message], tools: Sequence[Any] | None) -> list[str]:
    """All that a prompt is made of."""
    said = [content_text(message) for message in messages]
    called = [json.dumps(message["tool_calls"]) for message in messages if message.get("tool_calls")]
    return [*said, *called, *([json.dumps(list(tools))] if tools else [])]


def templated(chat: Chat, messages: Sequence[Message], tools: Sequence[Any] | None, day: date) -> dict[str, Any]:
    """The answer of /apply-template: the prompt that these messages become. Raises Refused, ContextFull."""
    chat.check_length(texts_of(messages, tools))
    prompt = chat.prompter.build([Entry(message) for message in messages], tools=tools, day=day)
    return {"prompt": detokenized({"tokens": list(prompt.tokens)}, chat.engine.vocabulary)["content"]}
