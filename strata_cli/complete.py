"""`strata _complete KIND`: what the completion scripts ask for while a word is typed. One candidate a line.

Owns the four kinds. It must be quick, so it begins without the command line's own modules; and safe, so it prints
names that match the rule for names and nothing else: no title, no text of a conversation, no path. It never fails.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping

WORD = "_complete"
# The rule of names.py; dots are what joins a setting's sections.
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
RECORDS = {"conversations": "conversations", "prefixes": "prefixes"}


def complete(arguments: list[str]) -> int:
    """Print the candidates of a kind. Returns 0, whatever happens."""
    kind = arguments[0] if arguments else ""
    try:
        for name in sorted({name for name in candidates(kind) if SAFE.fullmatch(name)}):
            print(name)
    except Exception:  # half a word is no time for an error
        return 0
    return 0


def candidates(kind: str) -> Iterable[str]:
    """The names of a kind, unfiltered. Raises whatever reading them raises."""
    if kind in RECORDS:
        from .places import find_places

        return _records(os.path.join(find_places().data, RECORDS[kind]))
    found: Mapping[str, Callable[[], Iterable[str]]] = {"keys": _keys, "models": _models}
    return found[kind]() if kind in found else ()


def _records(folder: str) -> Iterable[str]:
    with os.scandir(folder) as found:
        entries = [each.name for each in found if each.is_file(follow_symlinks=False)]
    return [stem for stem, dot, suffix in (name.rpartition(".") for name in entries) if suffix in ("json", "jsonl")]


def _keys() -> Iterable[str]:
    from .config import load_config
    from .settings import KEYS, MODEL_KEYS

    models = load_config().settings.models
    return [*(key.full_name for key in KEYS), *(f"models.{name}.{key.name}" for name in models for key in MODEL_KEYS)]


def _models() -> Iterable[str]:
    from .config import load_config

    return load_config().settings.models
