"""Texts that cannot fit the context, whatever tokens they have: refused before they are tokenised.

Tokenising cannot be broken off, and a megabyte can take minutes of it. Owns the bound alone: a token stands for no
more bytes than the longest one of the vocabulary does.
"""

from collections.abc import Iterable

from .engine import Vocabulary
from .errors import ContextFull

_LONGEST: dict[str, int] = {}  # by the vocabulary's digest


def check_length(vocabulary: Vocabulary, room: int, texts: Iterable[str], *, least_bytes: int = 0) -> None:
    """Raises ContextFull for texts of more bytes than `room` tokens can stand for; below `least_bytes` for none."""
    size_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size_bytes <= max(room, least_bytes):
        return
    if size_bytes > room * _longest_bytes(vocabulary):
        raise ContextFull(
            f"the text has {size_bytes:,} bytes: more than a context of {room:,} tokens can hold",
            hint="a shorter text, or a larger --ctx-size where the model takes one",
        )


def _longest_bytes(vocabulary: Vocabulary) -> int:
    """Asked of every token once: that takes as long as a short turn where the vocabulary is large."""
    if vocabulary.digest not in _LONGEST:
        _LONGEST[vocabulary.digest] = max(
            len(vocabulary.special_text(token).encode() if vocabulary.is_special(token) else vocabulary.piece(token))
            for token in range(len(vocabulary))
        )
    return _LONGEST[vocabulary.digest]
