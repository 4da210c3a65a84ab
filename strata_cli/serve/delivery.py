"""A job's result on its way to a client: whole, or as events while it runs.

Owns that a client which goes away cancels its job, and that a failure before the first event is an HTTP status of its
own, unless it waits for its turn so long that something has to be sent. What the events say is `answers`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from ..errors import StrataError
from ..turn import Watch
from .answers import DONE, STREAM_TYPE, Outcome, event
from .statuses import error_body
from .worker import ENDING, Flags, Job, Leaving

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ALIVE = b": reading\n\n"  # a comment: proxies and clients see that the connection lives
ALIVE_S = 15.0


class ClientGone(Exception):
    """Nobody is there to be answered."""


class Feed:
    """What a job tells while it runs: BEGUN, pieces of text, and END; from the engine's thread to the event loop."""

    BEGUN, END = object(), object()

    def __init__(self) -> None:
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[object]()
        self._begun = False

    def put(self, item: object) -> None:
        # The loop is closed where the service ended meanwhile.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    def begin(self, _: object) -> None:
        """The prompt is taken: no refusal follows."""
        if not self._begun:
            self._begun = True
            self.put(Feed.BEGUN)

    async def get(self) -> object:
        return await self._queue.get()


class Chunks(Protocol):
    """A stream's events, as bytes."""

    def begin(self) -> bytes: ...
    def text(self, piece: str) -> bytes: ...
    def end(self, outcome: Outcome) -> bytes: ...


def watch_for(flags: Flags, feed: Feed | None = None) -> Watch:
    """How a turn tells and is asked, for one job."""
    if feed is None:
        return Watch(cancelled=flags.cancelled, hurried=flags.stop.hurried)
    return Watch(show=feed.put, planned=feed.begin, cancelled=flags.cancelled, hurried=flags.stop.hurried)


@asynccontextmanager
async def cancelling(job: Job[Any], receive: Receive) -> AsyncIterator["asyncio.Task[None]"]:
    """Gives a task that ends when the client goes away. Whoever leaves by an exception wants the job no more."""
    gone = asyncio.create_task(_gone(receive))
    try:
        yield gone
    except BaseException:
        job.flags.cancel()
        raise
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def result_of(job: Job[T], receive: Receive) -> T:
    """What a job gives. Raises what it raises, ClientGone."""
    done = asyncio.wrap_future(job.done)
    done.add_done_callback(_look_at)
    async with cancelling(job, receive) as gone:
        both: set[asyncio.Future[Any]] = {done, gone}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not done.done() or done.cancelled():
            raise ClientGone
        return done.result()


def _look_at(done: "asyncio.Future[Any]") -> None:
    """An exception that nobody asks for any more is no news."""
    if not done.cancelled():
        done.exception()


class EventStream:
    """An ASGI response: what a job tells, as server-sent events. Await `begun` first."""

    def __init__(self, job: Job[Any], feed: Feed, chunks: Chunks, outcome: Callable[[Any], Outcome]) -> None:
        self._job, self._feed, self._chunks, self._outcome = job, feed, chunks, outcome
        job.done.add_done_callback(lambda _: feed.put(Feed.END))
        self.status_code = 200

    async def begun(self, receive: Receive) -> "EventStream":
        """Itself, once the prompt is taken or `ALIVE_S` is over. Raises what refuses it by then, ClientGone."""
        async with cancelling(self._job, receive) as gone:
            first = await self._next(gone, ALIVE_S)
            if first is Feed.END:
                if self._job.done.cancelled():
                    raise ClientGone
                self._job.done.result()
                raise Leaving(ENDING)
        return self

    async def _next(self, gone: "asyncio.Task[None]", timeout_s: float | None) -> object:
        """What comes next; None where nothing came in time. Raises ClientGone."""
        item = asyncio.create_task(self._feed.get())
        try:
            both: set[asyncio.Task[Any]] = {item, gone}
            await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if item.done():
                return item.result()
            if gone.done():
                raise ClientGone
            return None
        finally:
            item.cancel()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", STREAM_TYPE.encode()), (b"cache-control", b"no-cache")]
        try:
            async with cancelling(self._job, receive) as gone:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await _body(send, self._chunks.begin())
                while (item := await self._next(gone, ALIVE_S)) is not Feed.END:
                    if item is not Feed.BEGUN:
                        await _body(send, ALIVE if item is None else self._chunks.text(str(item)))
                await _body(send, self._last())
                await send({"type": "http.response.body", "body": b""})
        except (ClientGone, OSError):
            return

    def _last(self) -> bytes:
        """How it ended; a failure is an event, too, since the status is said already. Raises ClientGone."""
        if self._job.done.cancelled():
            raise ClientGone
        try:
            return self._chunks.end(self._outcome(self._job.done.result())) + DONE
        except StrataError as error:
            return event(error_body(error))
        except BaseException as error:
            return event(error_body(StrataError(f"a fault in strata: {type(error).__name__}")))


async def _body(send: Send, data: bytes) -> None:
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})
