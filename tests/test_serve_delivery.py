"""A stream that waits for its turn: what is sent meanwhile, and how a refusal reaches the client before and after."""

import asyncio
import json
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from strata_cli.errors import ContextFull
from strata_cli.serve import delivery
from strata_cli.serve.answers import About, Outcome
from strata_cli.serve.chunks import ChatChunks
from strata_cli.serve.delivery import ALIVE, ClientGone, EventStream, Feed
from strata_cli.serve.stopping import ServiceStop
from strata_cli.serve.worker import Flags, Job

SOON_S = 0.05
DONE = Outcome("stop", 3, 0, 1, 1.0, 1.0)


class Client:
    """One ASGI connection that stays; `body` is what came."""

    def __init__(self) -> None:
        self.body, self.status = b"", 0

    async def receive(self) -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


def job() -> Job[Any]:
    return Job(lambda *_: None, Flags(ServiceStop()), 0.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ALIVE_S", SOON_S)


def stream(work: Job[Any], feed: Feed) -> EventStream:
    chunks = ChatChunks(About("chatcmpl-1", 1, "tiny"), None, tells_usage=False)
    return EventStream(work, feed, chunks, lambda _: DONE)


def events(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


async def waited(after: Any) -> Client:
    """A stream whose job stands in the queue for three times `ALIVE_S`; then `after(feed, job)` happens."""
    feed, work, client = Feed(), job(), Client()
    begun = await stream(work, feed).begun(client.receive)
    sending = asyncio.create_task(begun({}, client.receive, client.send))
    await asyncio.sleep(3 * SOON_S)
    after(SimpleNamespace(feed=feed, done=work.done))
    await asyncio.wait_for(sending, 10)
    return client


def test_a_stream_that_waits_shows_that_it_lives_and_then_answers() -> None:
    def answer(there: Any) -> None:
        there.feed.begin(None)
        there.feed.put("Hello")
        there.done.set_result(None)

    client = asyncio.run(waited(answer))
    assert client.status == 200 and client.body.count(ALIVE) >= 1
    texts = [event["choices"][0]["delta"].get("content") for event in events(client.body)]
    assert texts == ["", "Hello", None] and client.body.endswith(b"data: [DONE]\n\n")


def test_a_refusal_after_that_is_an_event() -> None:
    client = asyncio.run(waited(lambda there: there.done.set_exception(ContextFull("too long"))))
    assert client.status == 200 and "too long" in events(client.body)[-1]["error"]["message"]


def test_a_job_that_was_given_up_ends_the_stream_without_an_answer() -> None:
    client = asyncio.run(waited(lambda there: there.done.cancel()))
    assert b"[DONE]" not in client.body and b"fault" not in client.body


def test_a_refusal_before_that_is_a_status() -> None:
    async def refused() -> None:
        feed, work = Feed(), job()
        waiting = stream(work, feed)
        work.done.set_exception(ContextFull("too long"))
        await waiting.begun(Client().receive)

    with pytest.raises(ContextFull):
        asyncio.run(refused())


def test_a_client_that_goes_while_it_waits_is_gone() -> None:
    async def gone() -> None:
        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.disconnect"}

        await stream(job(), Feed()).begun(receive)

    with pytest.raises(ClientGone):
        asyncio.run(gone())
