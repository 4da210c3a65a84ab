"""Failures as HTTP answers: the one table of statuses, and the body that OpenAI's clients read.

Owns no text: the raiser said what happened.
"""

from dataclasses import dataclass
from typing import Any

from ..engine import EngineFailed
from ..errors import (
    Bad,
    ContextFull,
    DiskFull,
    Locked,
    ModelUnavailable,
    NoRoom,
    NotFound,
    Refused,
    StorageFailed,
    StrataError,
    UsageProblem,
)
from .slot_files import NotOffered
from .worker import Busy, Leaving

INVALID, SERVER = "invalid_request_error", "server_error"
RETRY_AFTER_S = 2


@dataclass(frozen=True)
class Status:
    """An HTTP status, with the type and the code of the error body; "" is the error's own code."""

    status: int
    kind: str
    code: str = ""


# The first that fits: children stand before their parents.
STATUSES: tuple[tuple[type[StrataError], Status], ...] = (
    (ContextFull, Status(400, INVALID, "context_length_exceeded")),
    (UsageProblem, Status(400, INVALID, "invalid_value")),
    (Refused, Status(400, INVALID)),
    (Bad, Status(400, INVALID)),
    (NotFound, Status(404, INVALID)),
    (Locked, Status(409, INVALID)),
    (NotOffered, Status(501, INVALID)),
    (Busy, Status(503, SERVER)),
    (Leaving, Status(503, SERVER)),
    (DiskFull, Status(507, SERVER)),
    (NoRoom, Status(503, SERVER, "no_memory")),
    (ModelUnavailable, Status(500, SERVER)),
    (StorageFailed, Status(500, SERVER)),
    (EngineFailed, Status(500, SERVER, "engine")),
    (StrataError, Status(500, SERVER)),
)


class BadRequest(UsageProblem):
    """A request that cannot be taken; `param` is the field that it is about."""

    def __init__(self, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


def status_of(error: StrataError) -> Status:
    """What the table says."""
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def error_body(error: StrataError) -> dict[str, Any]:
    """`{"error": {...}}`, as OpenAI's clients read it."""
    found = status_of(error)
    # What a command would do about a full context is not what a client can do.
    hint = "send less, or start the service with a larger --ctx-size" if isinstance(error, ContextFull) else error.hint
    message = f"{error.message} ({hint})" if hint else error.message
    param = error.param if isinstance(error, BadRequest) else None
    return {"error": {"message": message, "type": found.kind, "param": param, "code": found.code or error.code}}


def error_headers(error: StrataError) -> dict[str, str]:
    """Who should come back is told when."""
    return {"Retry-After": str(RETRY_AFTER_S)} if status_of(error).status == 503 else {}
