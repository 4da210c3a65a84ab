"""One thread that copies state out of the engine while the chat goes on.

Owns the thread and the waiting for it: one copy at a time, and nobody may touch the context until `settle` came back.
What is copied, and whither, is `state`'s.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from ..engine import EngineFailed
from ..errors import StrataError


class Copying:
    """A copy that was begun. Any thread may wait for it."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy, self._done = copy, threading.Event()
        self._failure: StrataError | None = None

    def run(self) -> None:
        """Copy; a failure is kept for those who wait."""
        try:
            self._copy()
        except StrataError as error:
            self._failure = error
        except Exception as error:
            self._failure = EngineFailed(f"the state was not copied: {error}")
        finally:
            self._done.set()

    def wait(self) -> None:
        """Wait until all bytes are there. Raises EngineFailed where llama.cpp did not give them."""
        self._done.wait()
        if self._failure is not None:
            raise self._failure


class Copier:
    """Runs one copy behind the caller's back. The thread begins with the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Copying | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Copying | None = None

    def start(self, copy: Callable[[], None]) -> Copying:
        """Begin `copy` behind what is being copied."""
        self.settle()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="strata-copier", daemon=True)
            self._thread.start()
        self._last = Copying(copy)
        self._jobs.put(self._last)
        time.sleep(0)  # lets the thread have the interpreter: else the copy begins when the caller next waits
        return self._last

    def settle(self) -> None:
        """Wait until nothing is being copied, however that ended."""
        last, self._last = self._last, None
        if last is not None:
            with contextlib.suppress(StrataError):
                last.wait()

    def close(self) -> None:
        """End the thread behind what is being copied."""
        self.settle()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        while (copying := self._jobs.get()) is not None:
            copying.run()
