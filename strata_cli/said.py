"""A turn as JSON: the `data` of `run`'s envelope.

Owns the keys that scripts rely on, and nothing else.
"""

from typing import Any

from .turn import NotReused, TurnResult


def not_reused_data(why: NotReused | None) -> dict[str, Any] | None:
    """Why a turn reads more than what is new."""
    return None if why is None else {"code": why.code, "message": why.message, "at_token": why.at_token}


def turn_data(result: TurnResult, load_ms: float) -> dict[str, Any]:
    """See the contract's `strata run`. Times are milliseconds, sizes bytes."""
    parked, restored, why = result.ticket.parked, result.restored, result.not_reused
    return {
        "conversation": result.conversation,
        "reply": result.reply,
        "reply_tokens": list(result.reply_tokens),
        "finish_reason": result.finish,
        "tokens": {
            "prompt": result.prompt_tokens,
            "reused": result.reused_tokens,
            "evaluated": result.prompt_tokens - result.reused_tokens,
            "generated": len(result.reply_tokens),
        },
        "restore": {
            "from": result.source,
            "boundary": result.reused_tokens,
            "segments": restored.segments,
            "bytes": restored.size_bytes,
            "ms": round(restored.ms, 3),
            "not_reused": not_reused_data(why),
        },
        "park": {
            "tokens": parked.tokens,
            "segments": parked.segments,
            "bytes_written": parked.bytes_written,
            "capture_ms": round(parked.capture_ms, 3),
            "ms": round(parked.ms, 3),
            "skipped": parked.skipped,
        },
        "timings": {
            "load_ms": round(load_ms, 3),
            "prompt_ms": round(result.prompt_ms, 3),
            "generate_ms": round(result.generate_ms, 3),
        },
    }
