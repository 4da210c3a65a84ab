"""Which state format the installed engine has: read as text from its package, which is not imported.

Owns finding that number and remembering it by the package's version, in a file that may be lost.
"""

import contextlib
import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path

from .errors import StrataError
from .files import Files, read_bytes, write_new

_LIMIT_BYTES = 4 << 20
_LINE = re.compile(r"^LLAMA_STATE_SEQ_VERSION\s*=\s*(\d{1,6})\s*$", re.MULTILINE)


def installed_state_format(cache_folder: Path, files: Files | None = None) -> int | None:
    """The sequence-state format of the installed llama_cpp; None where there is none, or it does not say."""
    files = files or Files()
    try:
        version = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None
    cache = cache_folder / "engine.json"
    if (known := _remembered(cache, version, files)) is not None:
        return known
    found = _read_from_package(files)
    # Looking makes no folder: where nothing was cached yet, the text is read again.
    if found is not None and cache_folder.is_dir():
        with contextlib.suppress(StrataError, OSError):
            data = json.dumps({"llama_cpp_python": version, "state_format": found}).encode()
            write_new(files, cache_folder, cache, [data], len(data))
    return found


def _remembered(cache: Path, version: str, files: Files) -> int | None:
    try:
        known = json.loads(read_bytes(files, cache, 4096))
        found = known["state_format"] if known["llama_cpp_python"] == version else None
    except (StrataError, OSError, ValueError, KeyError, TypeError):
        return None
    return found if type(found) is int else None


def _read_from_package(files: Files) -> int | None:
    spec = importlib.util.find_spec("llama_cpp")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        with contextlib.suppress(StrataError, OSError, UnicodeDecodeError):
            text = read_bytes(files, Path(place) / "llama_cpp.py", _LIMIT_BYTES).decode()
            if match := _LINE.search(text):
                return int(match[1])
    return None
