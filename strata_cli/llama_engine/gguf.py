"""A GGUF file, looked at without llama.cpp.

Owns the checks that come before a load: what is plainly no model is told in one line.
"""

import mmap
import os
import stat
from pathlib import Path

from ..errors import ModelUnavailable
from ..gguf_parts import is_part, parts_refused

HEADER_SEARCH_BYTES = 64 << 20


def check_gguf(path: Path) -> None:
    """Raises ModelUnavailable for what is plainly no model, before llama.cpp is imported."""
    try:
        magic = _first_bytes(path)
    except FileNotFoundError:
        raise ModelUnavailable(f"{path}: no such file", hint="give a GGUF file with -m") from None
    except IsADirectoryError:
        raise ModelUnavailable(f"{path}: a folder, not a GGUF file", hint="give a GGUF file with -m") from None
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ModelUnavailable(f"{path}: not a GGUF file", hint="give a GGUF file with -m")
    if is_part(path.name):
        raise parts_refused(str(path))


def _first_bytes(path: Path) -> bytes:
    """The magic of a regular file; a FIFO or a device is refused and cannot hang."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(path)
        return os.read(descriptor, 4) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)


def has_long_factors(path: Path) -> bool:
    """Whether the GGUF names a tensor of long RoPE factors (phi-3 and its like)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"rope_factors_long.weight", 0, min(len(data), HEADER_SEARCH_BYTES)) >= 0
