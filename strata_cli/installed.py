"""Which state format the installed engine has: read as text from its package, which is not imported.

Owns finding that number and remembering it by the state of the file that says it, in a file that may be lost.
"""

import contextlib
import importlib.util
import json
import re
from pathlib import Path

from .errors import StrataError
from .files import Files, read_bytes, write_new

_LIMIT_BYTES = 4 << 20
_LINE = re.compile(r"^LLAMA_STATE_SEQ_VERSION\s*=\s*(\d{1,6})\s*$", re.MULTILINE)


def installed_state_format(cache_folder: Path, files: Files | None = None) -> int | None:
    """The sequence-state format of the installed llama_cpp; None where there is none, or it does not say."""
    files = files or Files()
    if (source := _source()) is None:
        return None
    cache = cache_folder / "engine.json"
    try:
        facts = source.stat()
    except OSError:
        return None
    stamp: list[str | int] = [str(source), facts.st_size, facts.st_mtime_ns]
    if (known := _remembered(cache, stamp, files)) is not None:
        return known
    found = _read(source, files)
    # Looking makes no folder: where nothing was cached yet, the text is read again.
    if found is not None and cache_folder.is_dir():
        with contextlib.suppress(StrataError, OSError):
            data = json.dumps({"read_from": stamp, "state_format": found}).encode()
            write_new(files, cache_folder, cache, [data], len(data))
    return found


def _remembered(cache: Path, stamp: list[str | int], files: Files) -> int | None:
    try:
        known = json.loads(read_bytes(files, cache, 4096))
        found = known["state_format"] if known["read_from"] == stamp else None
    except (StrataError, OSError, ValueError, KeyError, TypeError):
        return None
    return found if type(found) is int else None


def _source() -> Path | None:
    """The file of the package that says it. Looking it up imports nothing, nor does it read the package's metadata."""
    try:
        spec = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        return None
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    return next((Path(place) / "llama_cpp.py" for place in places), None)


def _read(source: Path, files: Files) -> int | None:
    with contextlib.suppress(StrataError, OSError, UnicodeDecodeError):
        if match := _LINE.search(read_bytes(files, source, _LIMIT_BYTES).decode()):
            return int(match[1])
    return None
