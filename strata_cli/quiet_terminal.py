"""A terminal that nobody reads from for a while: what is typed ahead is not echoed and waits, byte for byte.

Owns the terminal's modes from the loop's first prompt to its end. Ctrl-C and Ctrl-Z stay signals. Reading what was
typed is `terminal`.
"""

import os
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

PASTES_MARKED, PASTES_PLAIN = "\x1b[?2004h", "\x1b[?2004l"
IFLAG, LFLAG, CC = 0, 3, 6  # places in what `tcgetattr` returns


class QuietTerminal:
    """The terminal behind `source`; `screen` is where it is drawn. Without a terminal nothing is done."""

    def __init__(self, source: TextIO, screen: TextIO) -> None:
        self._fd, self._screen = source.fileno(), screen
        self._before: list[Any] | None = None
        self._quiet = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Quiet inside, and as it was behind it, whatever happens. A stopped process leaves it as it was, too."""
        with suppress(termios.error):
            self._before = termios.tcgetattr(self._fd)
        try:
            with _handling(signal.SIGTSTP, self._stop), _handling(signal.SIGCONT, self._continue):
                self._hush()
                yield
        finally:
            self.restore()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """As it was, for an editor or a question."""
        self.restore()
        try:
            yield
        finally:
            self._hush()

    def restore(self) -> None:
        """The modes as they were. Never raises, so that a process may call it on its last breath."""
        self._quiet = False
        if self._before is not None and self._is_ours():
            self._write(PASTES_PLAIN)
            self._set(self._before)

    def _hush(self) -> None:
        self._quiet = True
        if self._before is None or not self._is_ours():
            return
        modes = [*self._before[:CC], list(self._before[CC])]
        modes[IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        # With ICANON the kernel would edit what is typed, and a Ctrl-D or half a line could not be read later.
        modes[LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        modes[CC][termios.VMIN], modes[CC][termios.VTIME] = 1, 0
        self._set(modes)
        self._write(PASTES_MARKED)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            if self._screen.isatty():
                self._screen.write(text)
                self._screen.flush()

    def _set(self, modes: list[Any]) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)

    def _is_ours(self) -> bool:
        """A process in the background would be stopped for changing a terminal that is another's now."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def _stop(self, number: int, _: FrameType | None) -> None:
        was_quiet = self._quiet
        self.restore()
        self._quiet = was_quiet
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continue(self, number: int, _: FrameType | None) -> None:
        if self._quiet:
            self._hush()


@contextmanager
def _handling(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """With this handler inside; none where the signal is ignored, or outside the main thread."""
    before = signal.getsignal(number)
    try:
        if before != signal.SIG_IGN:
            signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)
