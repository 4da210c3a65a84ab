"""Messages read back from a prompt's tokens: the inverse of a chat template, learnt from the template itself.

A slot file holds tokens and no messages. The template is rendered with marks in the places of contents, which gives
the words between them; the tokens' text is cut at those words, and the result counts only when rendering it again
gives the very same tokens. Owns nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from .engine import Template, Vocabulary
from .errors import Refused
from .prompt import Entry, Prompter, common

MARKS = tuple(f"\ue000{number}\ue001" for number in range(4))


@dataclass(frozen=True)
class Said:
    """A message's content: its text, and the range of token positions that say it."""

    role: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Words:
    """What the template writes: before the first content, and between contents of these roles."""

    opening: bytes
    system_end: bytes | None
    user_end: bytes
    reply_end: bytes


def unrender(tokens: Sequence[int], prompter: Prompter, day: date) -> tuple[str | None, tuple[Said, ...]]:
    """System prompt and messages of these tokens, up to the last whole reply.

    Raises Refused where they are no conversation in this model's template.
    """
    vocabulary = prompter.vocabulary
    pieces = [_text(token, vocabulary) for token in tokens]
    skip = 1 if tokens and tokens[0] == vocabulary.bos and vocabulary.add_bos else 0
    for words in _variants(prompter.template, day):
        found = _cut(b"".join(pieces[skip:]), words)
        if found is None:
            continue
        system, contents = found
        placed = _placed(contents, pieces, skip)
        if placed and _renders(tokens, system, placed, prompter, day):
            return system, placed
    raise Refused(
        "its tokens are no conversation in this model's chat template",
        reason="template",
        hint="give the messages themselves: strata save NAME --messages FILE",
    )


def _text(token: int, vocabulary: Vocabulary) -> bytes:
    if vocabulary.is_special(token):
        return vocabulary.special_text(token).encode()
    return vocabulary.piece(token)


def _variants(template: Template, day: date) -> list[Words]:
    """The words without a system prompt (the template may write one of its own), then with one."""
    talk = [{"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), MARKS, strict=False)]
    found = []
    for opening in ([], [{"role": "system", "content": MARKS[3]}]):
        try:
            text = template.render([*opening, *talk], tools=None, generation=True, day=day)
        except Refused:
            continue
        order = ([MARKS[3]] if opening else []) + list(MARKS[:3])
        places = [text.find(mark) for mark in order]
        if -1 in places or places != sorted(places):
            continue
        edges = [0, *(edge for at, mark in zip(places, order, strict=True) for edge in (at, at + len(mark)))]
        between = [text[a:b].encode() for a, b in zip(edges[::2], edges[1::2], strict=False)]
        system_end = between[1] if opening else None
        found.append(Words(between[0], system_end, between[-2], between[-1]))
    return found


def _cut(text: bytes, words: Words) -> tuple[str | None, list[tuple[str, int, int]]] | None:
    """System text, and (role, start, end) in bytes of each content, up to the last reply; None where it is none."""
    if not text.startswith(words.opening):
        return None
    at, system = len(words.opening), None
    if words.system_end is not None:
        end = text.find(words.system_end, at)
        if end < 0:
            return None
        system, at = text[at:end].decode(errors="replace"), end + len(words.system_end)
    contents: list[tuple[str, int, int]] = []
    while (end := text.find(words.user_end, at)) >= 0:
        contents.append(("user", at, end))
        at = end + len(words.user_end)
        end = text.find(words.reply_end, at)
        last = end < 0
        end = _without_end(text, at, words.reply_end) if last else end
        if end == at:
            break  # asked, and not answered yet
        contents.append(("assistant", at, end))
        if last:
            break
        at = end + len(words.reply_end)
    replies = [number for number, each in enumerate(contents) if each[0] == "assistant"]
    return (system, contents[: replies[-1] + 1]) if replies else None


def _without_end(text: bytes, at: int, reply_end: bytes) -> int:
    """Where the last reply ends: before as much of the words that follow a reply as is there."""
    for size in range(min(len(reply_end), len(text) - at), 0, -1):
        if text.endswith(reply_end[:size]):
            return len(text) - size
    return len(text)


def _placed(contents: Sequence[tuple[str, int, int]], pieces: Sequence[bytes], skip: int) -> tuple[Said, ...]:
    """The contents with their token positions; nothing where one begins or ends inside a token."""
    position, at, text = {0: skip}, 0, b"".join(pieces[skip:])
    for number, piece in enumerate(pieces[skip:], skip + 1):
        at += len(piece)
        position.setdefault(at, number)
    placed = []
    for role, start, end in contents:
        said = text[start:end].decode(errors="replace")
        if role == "assistant" and (start not in position or end not in position):
            return ()
        placed.append(Said(role, said, position.get(start, -1), position.get(end, -1)))
    return tuple(placed)


def _renders(tokens: Sequence[int], system: str | None, placed: Sequence[Said], prompter: Prompter, day: date) -> bool:
    """Whether these messages, rendered, are those tokens up to the end of the last reply."""
    entries = [Entry({"role": "system", "content": system})] if system is not None else []
    for said in placed:
        ids = tuple(tokens[said.start : said.end]) if said.role == "assistant" else None
        entries.append(Entry({"role": said.role, "content": said.text}, ids))
    entries.append(Entry({"role": "user", "content": "a"}))
    try:
        rendered = prompter.build(entries, day=day).tokens
    except Refused:
        return False
    return common(rendered, tokens) >= placed[-1].end


def ranges(placed: Sequence[Said]) -> list[tuple[Said, int, int]]:
    """Each message with the token range that its line records: questions with the words around them."""
    found, before = [], 0
    for said, following in zip(placed, [*placed[1:], None], strict=True):
        end = said.end if said.role == "assistant" or following is None else following.start
        found.append((said, before, end))
        before = end
    return found
