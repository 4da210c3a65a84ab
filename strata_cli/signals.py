"""Being asked to stop: SIGINT, SIGTERM and SIGHUP become flags while something must not be cut short.

Owns the handlers and the exit status that follows. What is cancelled, and where, is decided by those who ask.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from .errors import Interrupted, Stopped, Terminated

ENDING = (signal.SIGTERM, signal.SIGHUP)
LAST_WARNING = 3  # signals until the process ends where it stands
TWICE_S = 2.0  # two Ctrl-C within this time leave the loop


class Stop:
    """One process's wish to stop. `requested` counts the signals since `begin`."""

    def __init__(self) -> None:
        self.requested = 0
        self.ending = False
        self.twice = False  # two SIGINT came within TWICE_S
        self.interrupted_at = float("-inf")  # the last SIGINT, on the monotonic clock
        self.before_exit: Callable[[], None] = lambda: None  # where the process ends at once; must not raise
        self._deferred = self._after_raising = False
        self._wake: Callable[[], None] | None = None

    def install(self) -> None:
        """Take the signals over, for the rest of the process."""
        for number in (signal.SIGINT, *ENDING):
            with suppress(ValueError, OSError):  # not in the main thread, or no such signal here
                signal.signal(number, self._take)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Inside, a signal only sets a flag: ask `cancelled` at every safe point."""
        before = self._deferred
        if not before:
            self.begin()
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = before

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside `deferring`: a signal raises for a while, one that came shortly before at once. Nothing elsewhere.

        It raises once; what follows on the way out of here is deferred again.
        """
        before = self._after_raising
        deferred = self._after_raising = self._deferred
        try:
            if deferred:
                self._deferred = False
                self.check()
            yield
        finally:
            self._deferred, self._after_raising = deferred, before

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside `deferring`, where something waits for more than signals: each signal calls `wake` as well."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = None

    def begin(self) -> None:
        """What was asked for so far is done."""
        self.requested = 0

    def cancelled(self) -> bool:
        return self.requested > 0 or self.ending

    def hurried(self) -> bool:
        """A second signal gives up on state, never on text."""
        return self.requested > 1

    def check(self) -> None:
        """Raise what was deferred: Terminated, or Interrupted."""
        if self.ending:
            raise Terminated("ended by a signal")
        if self.requested:
            raise Interrupted("interrupted")

    def _take(self, number: int, _: FrameType | None) -> None:
        self.requested += 1
        if number == signal.SIGINT:
            now = time.monotonic()
            self.twice = self.twice or now - self.interrupted_at < TWICE_S
            self.interrupted_at = now
        self.ending = self.ending or number in ENDING
        if self.requested >= LAST_WARNING and self._deferred:
            self.before_exit()
            os._exit(self.status.exit_code)
        if self._wake is not None:
            self._wake()
        if not self._deferred:
            self._deferred = self._after_raising
            raise self.status

    @property
    def status(self) -> Stopped:
        return Terminated("ended by a signal") if self.ending else Interrupted("interrupted")
