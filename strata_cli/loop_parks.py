"""What the loop tells of things that happen behind its back: parks that end, locks that are waited for.

Owns when it is told. What a park is belongs to `handover`, a lock to `locks`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .handover import Ticket
from .opened import Opened
from .output import Output
from .signals import Stop


class Parks:
    """What is told of parks that end behind the loop's back: after the line of their turn, never inside it."""

    def __init__(self, out: Output, *, prompts: bool) -> None:
        self._out, self._prompts = out, prompts
        self._lock = threading.RLock()
        self._held: list[Callable[[], None]] = []
        self._open = False

    @contextmanager
    def after_the_line(self) -> Iterator[None]:
        """Inside, a line is being answered: what is told meanwhile follows it, with the next prompt if there is one."""
        with self._lock:
            self._open = True
        try:
            yield
        finally:
            with self._lock:
                self._open = False
            if not self._prompts:
                self.flush()

    def tell(self, ticket: Ticket, opened: Opened) -> None:
        """The event `parked`, in JSON."""
        parked = ticket.parked
        fields = {
            "conversation": opened.name,
            "tokens": parked.tokens,
            "segments": parked.segments,
            "bytes_written": parked.bytes_written,
            "ms": round(parked.ms, 3),
            "skipped": parked.skipped,
        }
        self._hold_or(lambda: self._out.event("parked", **fields))

    def later(self, text: str) -> None:
        """A note for a terminal, where it must not break into a line that is being typed."""
        with self._lock:
            self._held.append(lambda: self._out.note(text))

    def _hold_or(self, say: Callable[[], None]) -> None:
        with self._lock:
            if self._open:
                self._held.append(say)
                return
        say()

    def flush(self) -> None:
        """Tell what was held back: at a terminal just before the prompt."""
        with self._lock:
            held, self._held = self._held, []
        for say in held:
            say()


class Waits:
    """Locks that another process holds: said once a line, and Ctrl-C gets out of waiting."""

    def __init__(self, out: Output, stop: Stop) -> None:
        self._out, self._stop = out, stop
        self._told = ""

    def begin(self) -> None:
        """Another line is answered."""
        self._told = ""

    def told(self, what: str) -> None:
        """Called again and again while something waits. Raises Interrupted, Terminated."""
        if threading.current_thread() is not threading.main_thread():
            return  # the writer waits behind the prompt, and nobody waits for it
        if what != self._told:
            self._told = what
            self._out.note(f"waiting: {what}; Ctrl-C gets back")
        self._stop.check()
