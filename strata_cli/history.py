"""A conversation's past as the prompt needs it: messages with the tokens that were sampled for them.

Owns which stored token ids count: those of this tokenizer, and of lines from elsewhere only where they say their text.
"""

from collections.abc import Sequence

from .engine import Vocabulary
from .foreign import Foreign, foreign_of, honest
from .log import Line
from .opened import GIVEN, Opened, role
from .prompt import Entry, content_text


def entries(
    opened: Opened | None, system: str | None, vocabulary: Vocabulary, dropped: int | None = None
) -> list[Entry]:
    """The system text and the messages up to the last reply, less those up to line `dropped`."""
    first = [Entry({"role": "system", "content": system})] if system else []
    if opened is None:
        return first
    foreign = foreign_of(opened.head)
    return [*first, *(_entry(line, vocabulary, foreign) for line in opened.answered if line.id > (dropped or 0))]


def _entry(line: Line, vocabulary: Vocabulary, foreign: Foreign) -> Entry:
    sampled = role(line) == "assistant" and line.tokenizer == vocabulary.digest and GIVEN not in line.marks
    return Entry(line.message or {}, line.tokens if sampled and _believes(line, vocabulary, foreign) else None)


def _believes(line: Line, vocabulary: Vocabulary, foreign: Foreign) -> bool:
    """Token ids that came with a file count only as far as they say the text that came with them (B16)."""
    if not foreign.covers(line.id):
        return True
    if any(token >= len(vocabulary) for token in line.tokens):
        return False
    specials = [vocabulary.is_special(token) or vocabulary.is_end(token) for token in line.tokens]
    return honest([vocabulary.piece(token) for token in line.tokens], specials, content_text(line.message or {}))


def known_tokens(opened: Opened | None, vocabulary: Vocabulary) -> Sequence[int]:
    """What the engine had read of this conversation up to its last reply, in this tokenizer's ids."""
    answered = opened.answered if opened is not None else ()
    if opened is None or not answered or answered[-1].tokenizer != vocabulary.digest:
        return ()
    return opened.log.tokens(answered[-1].id)
