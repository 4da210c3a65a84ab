"""What was said as the bodies that OpenAI's clients read: whole, and as chunks of a stream. Pure.

Owns the shapes, `usage`, and llama-server's `timings`. Calls of tools are `tool_calls`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..turn import TurnResult
from .completions import Completed

FINGERPRINT = f"strata-{__version__}"
DONE = b"data: [DONE]\n\n"
STREAM_TYPE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class About:
    """What every object of one answer tells. `created` in seconds since 1970."""

    id: str
    created: int
    model: str

    def named(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


@dataclass(frozen=True)
class Outcome:
    """How an answer ended and what it took. Durations are milliseconds."""

    finish: str
    prompt_tokens: int
    reused_tokens: int
    reply_tokens: int
    prompt_ms: float
    generate_ms: float


def outcome_of(done: TurnResult | Completed) -> Outcome:
    replied = done.reply_tokens if isinstance(done.reply_tokens, int) else len(done.reply_tokens)
    return Outcome(done.finish, done.prompt_tokens, done.reused_tokens, replied, done.prompt_ms, done.generate_ms)


def usage(outcome: Outcome) -> dict[str, Any]:
    """Tokens; `cached_tokens` were not read again."""
    return {
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.reply_tokens,
        "total_tokens": outcome.prompt_tokens + outcome.reply_tokens,
        "prompt_tokens_details": {"cached_tokens": outcome.reused_tokens},
    }


def timings(outcome: Outcome) -> dict[str, Any]:
    """Durations as llama-server tells them."""
    read, said = outcome.prompt_tokens - outcome.reused_tokens, outcome.reply_tokens
    return {
        "cache_n": outcome.reused_tokens,
        **_rates("prompt", read, outcome.prompt_ms),
        **_rates("predicted", said, outcome.generate_ms),
    }


def _rates(name: str, count: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": round(ms / count, 3) if count else 0.0,
        f"{name}_per_second": round(count * 1000 / ms, 3) if ms > 0 else 0.0,
    }


def finish_reason(outcome: Outcome, calls: Sequence[Any] = ()) -> str:
    """OpenAI's word for how a reply ended."""
    return "length" if outcome.finish == "length" else "tool_calls" if calls else "stop"


def chat_body(about: About, content: str, calls: Sequence[Mapping[str, Any]], outcome: Outcome) -> dict[str, Any]:
    """A whole chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content or None if calls else content}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(outcome, calls)}
    return {
        **about.named("chat.completion"),
        "choices": [choice],
        "usage": usage(outcome),
        "timings": timings(outcome),
    }


def chat_chunk(about: About, delta: Mapping[str, Any]) -> dict[str, Any]:
    """The next of a streamed chat completion."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": None}
    return {**about.named("chat.completion.chunk"), "choices": [choice]}


def last_chat_chunk(about: About, calls: Sequence[Any], outcome: Outcome) -> dict[str, Any]:
    """The one that says how it ended."""
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish_reason(outcome, calls)}
    return {**about.named("chat.completion.chunk"), "choices": [choice], "timings": timings(outcome)}


def plain_body(about: About, text: str, outcome: Outcome) -> dict[str, Any]:
    """A whole completion of a text."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason(outcome)}
    return {
        **about.named("text_completion"),
        "choices": [choice],
        "usage": usage(outcome),
        "timings": timings(outcome),
    }


def plain_chunk(about: About, text: str) -> dict[str, Any]:
    """The next of a streamed completion of a text."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    return {**about.named("text_completion"), "choices": [choice]}


def last_plain_chunk(about: About, outcome: Outcome) -> dict[str, Any]:
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": finish_reason(outcome)}
    return {**about.named("text_completion"), "choices": [choice], "timings": timings(outcome)}


def usage_chunk(about: About, kind: str, outcome: Outcome) -> dict[str, Any]:
    """What `stream_options.include_usage` asks for: the last object, without choices."""
    return {**about.named(kind), "choices": [], "usage": usage(outcome)}


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


def models_body(model: str, created: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The list of the one model."""
    return {"object": "list", "data": [model_body(model, created, facts)]}


def model_body(model: str, created: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": "local", "meta": dict(facts)}
