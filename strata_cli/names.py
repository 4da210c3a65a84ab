"""Names of conversations and prefixes: what they may be, automatic ones, and how a beginning finds its name.

Pure text; whether a name exists is told by the caller's list.
"""

import difflib
import re
from collections.abc import Collection

from .errors import NotFound, UsageProblem

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
BEGINNING_CHARS = 4
_AUTOMATIC = re.compile(r"auto-([0-9a-f]{16})(?:-([1-9][0-9]{0,8}))?", re.ASCII)


def check_name(text: str) -> str:
    """The name itself. Raises UsageProblem, before anything is touched, for what is none."""
    if NAME.fullmatch(text):
        return text
    shown = repr(text if len(text) <= 80 else text[:79] + "…")
    rule = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', and begins with a letter or digit"
    raise UsageProblem(f"{shown} cannot be a name", hint=f"a name has {rule}")


def key_of(first_user_text: str) -> str:
    """The key of a conversation: the first 16 hex digits of the SHA-1 of its first user message."""
    import hashlib  # for those that name a conversation

    data = first_user_text.encode("utf-8", "surrogatepass")
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]


def automatic_name(key: str, n: int = 1) -> str:
    """`auto-<key>`, and from the second on `auto-<key>-<n>`."""
    return f"auto-{key}" if n <= 1 else f"auto-{key}-{n}"


def is_automatic(name: str) -> bool:
    """Whether strata gave this name."""
    return _AUTOMATIC.fullmatch(name) is not None


def resolve(text: str, names: Collection[str]) -> str:
    """The name that `text` is, or the only one that begins with it: 4 characters at least, also of a key.

    Raises NotFound, or UsageProblem listing the candidates.
    """
    check_name(text)
    if text in names:
        return text
    found = sorted(name for name in names if _begins(name, text))
    if len(text) < BEGINNING_CHARS or not found:
        raise NotFound(f"no conversation or prefix is called {text!r}", hint=_nearest_hint(found))
    if len(found) > 1:
        raise UsageProblem(f"{text!r} is the beginning of {len(found)} names", hint=_listed(found))
    return found[0]


def _begins(name: str, text: str) -> bool:
    return name.startswith(text) or (is_automatic(name) and name.removeprefix("auto-").startswith(text))


def _nearest_hint(found: list[str]) -> str:
    if found:
        return f"type at least {BEGINNING_CHARS} characters: {_listed(found)}"
    return "`strata inspect` lists them"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return ", ".join(found[:8]) + more


def nearest(text: str, names: Collection[str]) -> str:
    """A hint that names the existing name most like `text`."""
    found = difflib.get_close_matches(text, names, 1, 0.5)
    return f"the nearest name is {found[0]}" if found else "`strata inspect` lists them"


def same_but_for_case(name: str, names: Collection[str]) -> str | None:
    """The other name that differs from `name` by case alone; two names must not."""
    folded = name.casefold()
    return next((other for other in names if other != name and other.casefold() == folded), None)
