"""A request's head has a time in which to arrive: nobody holds a connection by saying half a word."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from strata_cli.serve.patience import PatientProtocol

WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Impatient(PatientProtocol):
    head_s = 0.4


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["path"] == "/slow":
        await asyncio.sleep(1.0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(app, http=Impatient, ws="none", lifespan="off", log_config=None, port=0)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_half_a_head_is_given_up(port: int) -> None:
    with connected(port) as silent, connected(port) as half:
        half.sendall(WHOLE[:20])
        assert silent.recv(1) == b"" and half.recv(1) == b""


def test_one_byte_at_a_time_starts_no_new_time(port: int) -> None:
    with connected(port) as trickle:
        sent = 0
        try:
            while sent < 200:
                trickle.sendall(b"G" if not sent else b"E")
                sent += 1
                time.sleep(0.1)
        except OSError:
            pass
        assert sent < 200


def test_a_whole_head_has_all_the_time_for_its_answer(port: int) -> None:
    with connected(port) as patient:
        patient.sendall(WHOLE.replace(b"GET /", b"GET /slow"))
        assert patient.recv(100).startswith(b"HTTP/1.1 200")


def test_the_second_request_of_a_connection_has_its_own_time(port: int) -> None:
    with connected(port) as twice:
        twice.sendall(WHOLE)
        time.sleep(0.1)
        assert b"ok" in twice.recv(1000)
        twice.sendall(WHOLE)
        time.sleep(0.1)
        assert b"ok" in twice.recv(1000)
        twice.sendall(WHOLE[:10])
        assert twice.recv(1) == b""
