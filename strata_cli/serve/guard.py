"""Who may ask, and how much: what is checked of every request before a route sees it. An ASGI middleware.

Owns the Host header (a page in a browser can point its own name at 127.0.0.1), the content type (a page can post a
form, but no JSON), the key, and the size and the pace of a body. A request that passes carries its whole body.
"""

import asyncio
import hmac
import json
import os
import re
import stat
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageProblem
from ..files import Files, storage_errors

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_LIMIT_BYTES = 16 << 20  # a history of a million tokens has 4 to 5 MiB; a body is held before it is queued
BODY_S = 60.0
DRAINED_S = 5.0  # how long a body that is too large is read along, so that its sender sees the answer
OPEN_PATHS = frozenset({"/health", "/v1/health"})
KEY_LIMIT_BYTES = 4096
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[!-~]{1,1024}", re.ASCII)


@dataclass(frozen=True)
class Refusal:
    """An answer without a route. `code` is for programs; it closes the connection where a body is left unread."""

    status: int
    message: str
    code: str
    closes: bool = False

    @property
    def body(self) -> bytes:
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        found = [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return [*found, (b"connection", b"close")] if self.closes else found


@dataclass(frozen=True)
class Limits:
    """Of one request's body: bytes, and seconds until it is all there."""

    body_bytes: int = BODY_LIMIT_BYTES
    body_s: float = BODY_S


class Guard:
    """Wraps an application. Without a key only loopback names and JSON bodies pass."""

    def __init__(self, app: App, key: str | None, limits: Limits | None = None) -> None:
        self._app, self._key, self._limits = app, key, limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = check(scope, self._key, self._limits.body_bytes)
        if refusal is None and _has_body(scope):
            taken = await self._body(receive)
            if taken is None:
                return  # the client went away
            if isinstance(taken, bytes):
                await self._app(scope, _replayed(taken, receive), send)
                return
            refusal = taken
        if refusal is None:
            await self._app(scope, receive, send)
            return
        # Who asked before sending sends nothing then.
        if refusal.status == 413 and not _all(scope, b"expect"):
            await _drain(receive, self._limits.body_bytes * 4)
        await send({"type": "http.response.start", "status": refusal.status, "headers": refusal.headers})
        await send({"type": "http.response.body", "body": refusal.body})

    async def _body(self, receive: Receive) -> bytes | Refusal | None:
        """The whole body, a refusal, or None where the client went away before its end."""
        blocks: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    blocks.append(message.get("body", b""))
                    size_bytes += len(blocks[-1])
                    if size_bytes > self._limits.body_bytes:
                        return too_large(self._limits.body_bytes)
                    if not message.get("more_body", False):
                        return b"".join(blocks)
        except TimeoutError:
            text = f"the body was not complete after {self._limits.body_s:g} seconds"
            return Refusal(408, text, "request_timeout", closes=True)


def check(scope: Scope, key: str | None, limit_bytes: int = BODY_LIMIT_BYTES) -> Refusal | None:
    """What is wrong with a request's head; None where it may pass."""
    if key is None:
        if not _names_loopback(_all(scope, b"host")):
            return Refusal(403, "the Host header must name this machine: localhost, 127.0.0.1 or [::1]", "host", True)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and not _is_json(_all(scope, b"content-type")):
            return Refusal(415, "the content type must be application/json", "content_type", True)
    elif scope["path"] not in OPEN_PATHS and not _has_key(_all(scope, b"authorization"), key):
        return Refusal(
            401, "the header `Authorization: Bearer KEY` lacks, or names another key", "invalid_api_key", True
        )
    length = _all(scope, b"content-length")
    return too_large(limit_bytes) if any(_number(each) > limit_bytes for each in length) else None


def too_large(limit_bytes: int) -> Refusal:
    return Refusal(413, f"the body is larger than {limit_bytes:,} bytes", "request_too_large", closes=True)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine alone."""
    return host == "::1" or _LOOPBACK.fullmatch(host) is not None


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) < 20 else 0 if not value.isdigit() else 1 << 63


def _has_body(scope: Scope) -> bool:
    return bool(_all(scope, b"transfer-encoding")) or any(_number(each) for each in _all(scope, b"content-length"))


def _names_loopback(hosts: list[bytes]) -> bool:
    return len(hosts) == 1 and _LOOPBACK.fullmatch(hosts[0].decode("latin-1").strip()) is not None


def _is_json(types: list[bytes]) -> bool:
    return len(types) == 1 and types[0].split(b";")[0].strip().lower() == b"application/json"


def _has_key(given: list[bytes], key: str) -> bool:
    """Compared in constant time: how long it takes tells nothing about the key."""
    if len(given) != 1:
        return False
    scheme, _, value = given[0].partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(value.strip(), key.encode())


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what the client does."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


async def _drain(receive: Receive, limit_bytes: int) -> None:
    """Read along, and forget: a client that still sends does not look at what it is answered."""
    size_bytes = 0
    try:
        async with asyncio.timeout(DRAINED_S):
            while size_bytes < limit_bytes:
                message = await receive()
                size_bytes += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def read_key(path: Path) -> tuple[str, str]:
    """The key in a file of one line, and a warning where others can read it ("" where not).

    Raises UsageProblem for what is no key, NotFound, StorageFailed.
    """
    with storage_errors(path, "read the key in"):
        fd = Files().open(Path(os.path.realpath(path)))
        try:
            data, mode = os.read(fd, KEY_LIMIT_BYTES), os.fstat(fd).st_mode
        finally:
            os.close(fd)
    text = data.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not _KEY.fullmatch(text):
        raise UsageProblem(f"{path}: not a key", hint="one line of 1 to 1,024 visible ASCII characters without spaces")
    open_to_others = stat.S_IMODE(mode) & 0o077
    return text, f"{path}: others can read the key; chmod 600 keeps it yours" if open_to_others else ""
