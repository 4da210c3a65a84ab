"""The one thread that the session, its chat and its engine belong to: jobs in order of arrival, one at a time.

Owns the queue, its bound, and how a job is asked to stop. What a job does is its own: it is a function of the session
and of `Flags`, and `flags.cancelled` is what it asks between two batches and between two tokens.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import StrataError
from ..session import Session
from .stopping import ServiceStop

T = TypeVar("T")
LOOKING_S = 1.0  # how long freeing the engine waits for who looks at its vocabulary
CHORES_AFTER = 8  # jobs, while others wait: chores look at the whole directory
ENDING = "the service is shutting down"


class Busy(StrataError):
    """As many requests wait as may."""

    code = "queue_full"


class Leaving(StrataError):
    """The service is ending: what was not begun is not begun any more."""

    code = "shutting_down"


@dataclass
class Flags:
    """How one job is asked to stop. Safe from any thread."""

    stop: ServiceStop
    waited_s: float = 0.0  # from its arrival to its beginning
    _gone: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._gone.set()

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    def cancelled(self) -> bool:
        """Whether to end at the next safe point: the client went away, or the service ends."""
        return self.gone or self.stop.ends


@dataclass
class Job(Generic[T]):
    """One request's work on the engine. `done` is its result, or why there is none."""

    work: Callable[[Session, Flags], T]
    flags: Flags
    arrived: float
    done: "Future[T]" = field(default_factory=Future)

    def run(self, session: Session) -> None:
        """Do it, unless nobody waits for it any more."""
        self.flags.waited_s = time.monotonic() - self.arrived
        if self.flags.gone:
            self.done.cancel()
        if not self.done.set_running_or_notify_cancel():
            return
        if self.flags.stop.ends:
            self.done.set_exception(Leaving(ENDING))
        else:
            self._do(session)

    def _do(self, session: Session) -> None:
        try:
            result = self.work(session, self.flags)
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class Worker:
    """Runs jobs. `after` follows each, and each `wake`: chores that nobody waits for."""

    def __init__(self, session: Session, stop: ServiceStop, limit: int) -> None:
        self._session, self._stop, self._limit = session, stop, limit
        self._waiting: deque[Job[Any]] = deque()
        self._changed = threading.Condition()
        self._ends = self._woken = False
        self.running: Job[Any] | None = None
        self.looking = threading.Lock()  # held by who looks at the vocabulary on another thread: it is not freed then
        self.freed = False
        self.thread = threading.Thread(target=self._work, name="strata-engine")

    def start(self) -> None:
        self.thread.start()

    @property
    def queue_length(self) -> int:
        """How many wait, without the one that runs."""
        with self._changed:
            return sum(1 for job in self._waiting if not job.flags.gone)

    @property
    def busy(self) -> bool:
        return self.running is not None

    def submit(self, work: Callable[[Session, Flags], T]) -> Job[T]:
        """Put a job behind all others. Raises Busy where too many wait, Leaving where the service ends."""
        job = Job(work, Flags(self._stop), time.monotonic())
        with self._changed:
            if self._ends or self._stop.ends:
                raise Leaving(ENDING)
            # Those whose client went away hold no place.
            self._waiting = deque(each for each in self._waiting if not each.flags.gone)
            if len(self._waiting) + (self.running is not None) > self._limit:
                raise Busy(f"{len(self._waiting):,} requests wait already", hint="try again later; serve.queue")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def wake(self) -> None:
        """Let the chores be done once nothing waits. From any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def end(self) -> None:
        """No further jobs: those that wait are told, the one that runs is asked to stop by `ServiceStop`."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def _work(self) -> None:
        since_chores = 0
        while (job := self._next()) is not None:
            if job is not _CHORES:
                self._stop.flags = job.flags
                try:
                    job.run(self._session)
                finally:
                    self._stop.flags = None
                    self.running = None
            since_chores += 1
            if not self.queue_length or since_chores >= CHORES_AFTER:
                since_chores = 0
                self._session.chores()
        self._leave()

    def _leave(self) -> None:
        """Park what is held, as long as the policy waits, then free the engine unless somebody still looks at it."""
        try:
            self._session.settle()
            if self._session.chat is not None:
                self._session.chat.finish(self._stop.hurried)
        except StrataError as error:
            self._session.out.warning(f"left without writing all: {error.message}")
        self.freed = self.looking.acquire(timeout=LOOKING_S)
        if self.freed:
            with contextlib.suppress(StrataError):  # told already
                self._session.close_chat()

    def _next(self) -> Job[Any] | None:
        with self._changed:
            while not (self._waiting or self._woken or self._ends):
                self._changed.wait()
            if self._waiting:
                self.running = self._waiting.popleft()
                return self.running
            self._woken = False
            return None if self._ends else _CHORES


_CHORES: Job[Any] = Job(lambda _session, _flags: None, Flags(ServiceStop()), 0.0)
