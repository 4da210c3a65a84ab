"""Being asked to stop: SIGINT, SIGTERM and SIGHUP become flags while something must not be cut short.

Owns the handlers and the exit status that follows. What is cancelled, and where, is decided by those who ask.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from .errors import Interrupted, StrataError, Terminated

ENDING = (signal.SIGTERM, signal.SIGHUP)
LAST_WARNING = 3  # signals until the process ends where it stands


class Stop:
    """One process's wish to stop. `requested` counts the signals since `begin`."""

    def __init__(self) -> None:
        self.requested = 0
        self.ending = False
        self.interrupted_at = float("-inf")  # the last SIGINT, on the monotonic clock
        self._deferred = False

    def install(self) -> None:
        """Take the signals over, for the rest of the process."""
        for number in (signal.SIGINT, *ENDING):
            with suppress(ValueError, OSError):  # not in the main thread, or no such signal here
                signal.signal(number, self._take)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Inside, a signal only sets a flag: ask `cancelled` at every safe point."""
        self._deferred, self.requested = True, 0
        try:
            yield
        finally:
            self._deferred = False

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
            self.interrupted_at = time.monotonic()
        self.ending = self.ending or number in ENDING
        if self.requested >= LAST_WARNING and self._deferred:
            os._exit(self.status.exit_code)
        if not self._deferred:
            raise self.status

    @property
    def status(self) -> StrataError:
        return Terminated("ended by a signal") if self.ending else Interrupted("interrupted")
