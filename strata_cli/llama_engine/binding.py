"""llama_cpp imported late, and llama.cpp's own log kept off the terminal.

Owns the one import of the binding and the log callback. The log goes to a file under the state folder (a new one
once it is larger than a mebibyte) and, when asked, to stderr; the last errors are remembered for messages.
"""

import ctypes
import os
import sys
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

LOG_LIMIT_BYTES = 1 << 20
ERROR_LEVEL, CONTINUED_LEVEL = 4, 5  # ggml_log_level


class EngineLog:
    """Where llama.cpp's lines go. One per process, since llama.cpp has one callback."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self.echo = False
        self._descriptor: int | None = None
        self._level = 0

    def to_file(self, path: Path) -> None:
        """Append to `path` (0600). A log that cannot be opened is no reason to fail: lines are dropped."""
        self.close()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            if os.fstat(descriptor).st_size > LOG_LIMIT_BYTES:
                os.ftruncate(descriptor, 0)
            self._descriptor = descriptor
        except OSError:
            self._descriptor = None

    def take(self, level: int, text: bytes) -> None:
        self._level = self._level if level == CONTINUED_LEVEL else level
        if self._level == ERROR_LEVEL:
            self.errors.append(text.decode(errors="replace").strip())
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, text)
            except OSError:
                self.close()
        if self.echo:
            sys.stderr.write(text.decode(errors="replace"))

    def reason(self) -> str:
        """The last errors in one line, most telling first; forgets them."""
        lines = [line.split(": ", 1)[-1] for line in self.errors if line]
        self.errors.clear()
        return "; ".join(dict.fromkeys(lines))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


LOG = EngineLog()


@cache
def llama() -> Any:
    """The llama_cpp module with its backend started and its log redirected.

    Raises ImportError where the binding is missing or its library cannot be loaded.
    """
    import llama_cpp

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def take(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        LOG.take(level, text)

    llama_cpp.strata_log = take  # llama.cpp keeps a bare pointer: the callback must live as long as the module
    llama_cpp.llama_log_set(take, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp
