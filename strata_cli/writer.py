"""One thread that writes what others hand over, one job at a time and in order.

Owns the thread and the waiting for it. What is written, and what a failure means, is in the jobs.
"""

import queue
import threading
import time
from collections.abc import Callable

Job = Callable[[], None]


class Writer:
    """Jobs run in the order of `submit`. A job must not raise: it tells its failures itself."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pending = 0
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        return self._pending

    def submit(self, job: Job) -> None:
        """Run `job` behind all that were submitted before."""
        with self._changed:
            self._pending += 1
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process from leaving once `leave_s` is over.
            self._thread = threading.Thread(target=self._work, name="strata-writer", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def wait(self, seconds: float | None = None, *, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until nothing is pending; False where time ran out or somebody hurries."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while self._pending:
                left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
                if left <= 0 or hurried():
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """End the thread behind what is pending, without waiting for it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                with self._changed:
                    self._pending -= 1
                    self._changed.notify_all()
