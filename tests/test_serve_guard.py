"""Who may ask the service, and how much: every check of a request's head and body, without a socket."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from strata_cli.errors import NotFound, StorageFailed, StrataError, UsageProblem
from strata_cli.serve.guard import Guard, Limits, check, is_loopback, read_key

KEY = "sk-local-1234"
JSON = (b"content-type", b"application/json")
HOST = (b"host", b"127.0.0.1:8080")
Header = tuple[bytes, bytes]


def scope(*headers: Header, method: str = "POST", path: str = "/v1/chat/completions") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": list(headers)}


def status(*headers: Header, key: str | None = None, method: str = "POST", path: str = "/v1/models") -> int:
    found = check(scope(*headers, method=method, path=path), key)
    return 200 if found is None else found.status


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.8.7:65535", "[::1]", "[::1]:8080", " 127.0.0.1"]
)
def test_loopback_names_pass(host: str) -> None:
    assert status((b"host", host.encode()), JSON) == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "evil.example:127.0.0.1", "0.0.0.0",
     "192.168.0.5", "127.0.0.1@evil.example", "[::1].evil", "::1", "localhost:", "127.0.0.1:123456", "localhost evil",
     "loc\u00e0lhost"],
)  # fmt: skip
def test_another_name_is_403(host: str) -> None:
    assert status((b"host", host.encode("latin-1")), JSON) == 403


def test_no_host_and_two_hosts_are_403() -> None:
    assert status(JSON) == 403
    assert status(HOST, (b"host", b"evil.example"), JSON) == 403


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"])
def test_a_form_is_415(kind: str) -> None:
    assert status(HOST, (b"content-type", kind.encode())) == 415
    assert status(HOST) == 415
    assert status(HOST, JSON, (b"content-type", b"text/plain")) == 415
    assert status(HOST, method="GET") == 200


def test_json_with_a_charset_passes() -> None:
    assert status(HOST, (b"content-type", b"Application/JSON ; charset=utf-8")) == 200


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer  {KEY}", 200),
        (KEY, 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        (f"Basic {KEY}", 401),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        ("Bearer \u00e9", 401),
    ],
)
def test_with_a_key_the_key_decides(given: str, expected: int) -> None:
    header = (b"authorization", given.encode("latin-1"))
    elsewhere = (b"host", b"models.lan:8080")
    assert status(elsewhere, header, key=KEY) == expected
    assert status(elsewhere, header, key=KEY, method="GET", path="/metrics") == expected
    assert status(elsewhere, header, key=KEY, method="GET", path="/slots") == expected


def test_health_is_open_and_nothing_else() -> None:
    assert status(key=KEY, method="GET", path="/health") == 200
    for path in ("/", "/metrics", "/slots", "/v1/models", "/health/", "/health/../slots", "/Health"):
        assert status(key=KEY, method="GET", path=path) == 401
    twice = ((b"authorization", f"Bearer {KEY}".encode()), (b"authorization", b"Bearer other"))
    assert status(*twice, key=KEY) == 401


# -- bodies


def ask(
    parts: Sequence[dict[str, Any]], *headers: Header, limits: Limits | None = None
) -> tuple[int, Any, list[bytes]]:
    """Send a request's messages through the guard; status, answer, and what the application read."""
    read: list[bytes] = []
    sent: list[Any] = []
    waiting = list(parts)

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        read.append(message["body"])
        assert not message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"ok"'})

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(3600)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    guard = Guard(app, None, limits)
    asyncio.run(guard(scope(HOST, JSON, *(headers or ((b"transfer-encoding", b"chunked"),))), receive, send))
    if not sent:
        return 0, None, read
    return sent[0]["status"], json.loads(sent[1]["body"]), read


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_arrives_whole() -> None:
    assert ask([part(b"{"), part(b""), part(b"}", False)]) == (200, "ok", [b"{}"])


def test_a_body_that_is_declared_too_large_is_413() -> None:
    for length in (b"11", b"9" * 19, b"9" * 400):
        told, answer, read = ask([part(b"x" * 11, False)], (b"content-length", length), limits=Limits(body_bytes=10))
        assert (told, answer["error"]["code"], read) == (413, "request_too_large", [])


def test_a_body_that_grows_too_large_is_413() -> None:
    told, _, read = ask([part(b"x" * 6), part(b"x" * 6), part(b"", False)], limits=Limits(body_bytes=10))
    assert (told, read) == (413, [])


def test_a_body_that_does_not_come_is_408() -> None:
    told, answer, read = ask([part(b"{")], limits=Limits(body_s=0.02))
    assert (told, answer["error"]["type"], read) == (408, "invalid_request_error", [])


def test_a_client_that_goes_away_is_not_answered() -> None:
    assert ask([part(b"{"), {"type": "http.disconnect"}]) == (0, None, [])


def test_web_sockets_are_closed_and_lifespan_passes() -> None:
    seen, sent = [], []

    async def app(inner: Any, _receive: Any, _send: Any) -> None:
        seen.append(inner["type"])

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    for kind in ("lifespan", "websocket"):
        asyncio.run(Guard(app, None)({"type": kind, "headers": []}, receive, send))
    assert (seen, sent) == (["lifespan"], ["websocket.close"])


# -- the key's file


def test_a_key_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    assert read_key(path) == (KEY, "")
    path.chmod(0o644)
    assert read_key(path)[0] == KEY and "chmod 600" in read_key(path)[1]


@pytest.mark.parametrize("text", ["", "\n", "two\nlines\n", "two words", "k\u00e9y", "a\x00b", "\x1b[2J", "x" * 5000])
def test_what_is_no_key(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(UsageProblem):
        read_key(tmp_path / "key")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, error in (("missing", NotFound), ("pipe", StorageFailed), (".", StrataError)):
        with pytest.raises(error):
            read_key(tmp_path / name)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False),
     ("", False)],
)  # fmt: skip
def test_which_addresses_are_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
