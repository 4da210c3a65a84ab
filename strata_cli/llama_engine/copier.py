"""One thread that copies state out of the engine while the chat goes on.

Owns the thread and the waiting for it: one copy at a time, and nobody may touch the context until `settle` came back.
What is copied, and whither, is `state`'s.
"""

import queue
import threading
import time
from collections.abc import Callable

from ..engine import EngineFailed
from ..errors import StrataError


class Copying:
    """A copy that was begun. Any thread may wait for it."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy: Callable[[], None] | None = copy
        self._done = threading.Event()
        self._failure: StrataError | None = None

    def run(self) -> None:
        """Copy; a failure is kept for those who wait."""
        copy, self._copy = self._copy, None  # it holds the memory, which must be free to go before those who wait do
        try:
            if copy is not None:
                copy()
        except StrataError as error:
            self._failure = error
        except Exception as error:
            self._failure = EngineFailed(f"the state was not copied: {error}")
        finally:
            self._done.set()

    def ended(self) -> None:
        """Wait until it has ended, however that was."""
        self._done.wait()

    def wait(self) -> None:
        """Wait until all bytes are there. Raises EngineFailed where llama.cpp did not give them."""
        self.ended()
        if self._failure is not None:
            raise self._failure


class Copier:
    """Runs one copy behind the caller's back. The thread begins with the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Copying | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Copying | None = None

    def start(self, copy: Callable[[], None]) -> Copying:
        """Begin `copy` behind what is being copied; where no thread is to be had, it has ended when this returns."""
        self.settle()
        copying = Copying(copy)
        if not self._has_thread():
            copying.run()
            return copying
        self._last = copying
        self._jobs.put(copying)
        time.sleep(0)  # lets the thread have the interpreter: else the copy begins when the caller next waits
        return copying

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="strata-copier", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def settle(self) -> None:
        """Wait until nothing is being copied. A signal that raises meanwhile changes nothing: the next call waits."""
        if self._last is not None:
            self._last.ended()
            self._last = None

    def see_through(self) -> None:
        """Wait to the end, and only then raise what a signal raised meanwhile: the context is about to be freed."""
        raised: BaseException | None = None
        while self._last is not None:
            try:
                self.settle()
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised

    def close(self) -> None:
        """End the thread behind what is being copied. Raises as `see_through` does, when all is done."""
        try:
            self.see_through()
        finally:
            if self._thread is not None:
                self._jobs.put(None)
                self._thread = None

    def _work(self) -> None:
        while (copying := self._jobs.get()) is not None:
            copying.run()
