"""Being asked to stop while the service runs: signals are flags, and a job has its own.

Owns what the session's `stop` means then: `cancelled` is the running job's wish, `hurried` the end of the time that
leaving may take.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..signals import ENDING, LAST_WARNING, Stop


class Cancellable(Protocol):
    """A job that can be asked whether to go on."""

    def cancelled(self) -> bool: ...


class ServiceStop(Stop):
    """Counts signals; never raises. `flags` is the running job's."""

    def __init__(self, leave_s: float = 10.0) -> None:
        super().__init__()
        self._leave_s = leave_s
        self._deadline = float("inf")
        self.flags: Cancellable | None = None

    @property
    def ends(self) -> bool:
        """Whether the service is ending."""
        return self.requested > 0

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Signals are flags anyway."""
        yield

    def cancelled(self) -> bool:
        return self.ends or (self.flags is not None and self.flags.cancelled())

    def hurried(self) -> bool:
        """A second signal, or the end of the time that leaving may take: gives up on state, never on text."""
        return self.requested > 1 or time.monotonic() > self._deadline

    @property
    def overdue_s(self) -> float:
        """Seconds since leaving should have been over; negative before."""
        return time.monotonic() - self._deadline

    def take(self, number: signal.Signals) -> bool:
        """A signal arrived. Whether it was one too many."""
        if not self.ends:
            self._deadline = time.monotonic() + self._leave_s
        self.requested += 1
        self.ending = self.ending or number in ENDING
        return self.requested >= LAST_WARNING
