"""Messages to tokens.

Owns how a conversation is rendered through the model's template, which parts of the result are text and which are
the template's own markers, and where the boundaries of a turn lie. It reads no files and runs no engine: the
template and the vocabulary are passed in.

Contents never pass through the tokenizer's special tokens: the template is rendered with placeholders, and what a
user typed is put in as text. A reply keeps the very tokens that were sampled.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from .engine import Message, Template, Vocabulary
from .errors import Refused

ROOT_PROBES = ("a", "\n\nB", " 1", "<")  # texts whose common beginning is what no user text changes
CACHED_TEXTS, CACHED_ROOTS = 4096, 64
TOOLS = -1  # the "message" of a slot that stands in the description of a tool


@dataclass(frozen=True)
class Entry:
    """One message, and for a reply the tokens that were sampled (None: text only)."""

    message: Message
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Prompt:
    """What the engine has to hold before it answers.

    `boundary`: the end of the prompt without the generation prompt, at most one less than all tokens. `root`: the end
    of what stays equal when only the user's text changes. `starts[i]`: where message i's content begins. `rewritten`:
    the first message whose content the template changed, None when all stand as they were said.
    """

    tokens: tuple[int, ...]
    boundary: int
    root: int
    starts: tuple[int, ...]
    rewritten: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered prompt: the template's own text, or the content of slot `slot` as it was rendered."""

    text: str
    slot: int | None = None


@dataclass(frozen=True)
class Slot:
    """One string that came from outside: content of message `message`, with its sampled tokens where it has them."""

    message: int
    text: str
    tokens: tuple[int, ...] | None = None


def content_text(message: Message) -> str:
    """A message's content as one string. Raises Refused for content that is not text."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise Refused("a message's content is neither text nor a list of parts", reason="content")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in ("text", None) or "text" not in part:
            raise Refused("the conversation contains images or other media: strata keeps text", reason="media")
        texts.append(str(part["text"]))
    return "\n".join(texts)


class Prompter:
    """Renders conversations for one model."""

    def __init__(self, vocabulary: Vocabulary, template: Template) -> None:
        self.vocabulary, self.template = vocabulary, template
        self._split = re.compile("|".join(re.escape(text) for text in vocabulary.specials) or r"(?!)")
        markers = [text for text in vocabulary.specials if text.strip() and text in template.text]
        self._markers = re.compile("|".join(re.escape(text) for text in markers) or r"(?!)")
        self._ids = lru_cache(CACHED_TEXTS)(self._tokenize)
        self._roots: dict[bytes, tuple[int, ...]] = {}

    def build(self, entries: Sequence[Entry], *, tools: Sequence[Any] | None = None, day: date) -> Prompt:
        """The prompt that asks for the reply after `entries`. Raises Refused where the template cannot say it."""
        messages, notes = self._speakable([entry.message for entry in entries], tools, day)
        folded = with_tokens(messages, [entry.tokens for entry in entries])
        asked = self._render(folded, tools, day, generation=True)
        tokens, starts, rewritten = self._assemble(asked, folded)
        closed, _, _ = self._assemble(self._render(folded, tools, day, generation=False), folded)
        boundary = max(0, min(common(tokens, closed), len(tokens) - 1))
        root = min(common(tokens, self._root(folded, tools, day)), boundary)
        shift = len(entries) - len(messages)
        starts = (0,) * shift + starts[max(0, -shift) :]
        return Prompt(
            tokens=tuple(tokens),
            boundary=boundary,
            root=root,
            starts=starts,
            rewritten=None if rewritten is None or rewritten + shift < 0 else rewritten + shift,
            notes=notes,
        )

    def opening_tokens(self, entries: Sequence[Entry], *, tools: Sequence[Any] | None, day: date) -> tuple[int, ...]:
        """The tokens that every conversation which goes on after `entries` begins with, whatever is said next."""
        asked = bool(entries) and entries[-1].message.get("role") in ("user", "tool")
        probe = {"role": "assistant" if asked else "user", "content": "a"}
        messages, _ = self._speakable([*(e.message for e in entries), probe], tools, day)
        folded = with_tokens(messages, [*(e.tokens for e in entries), None])
        return self._root(folded, tools, day, at=len(folded) - 1)

    # -- templates that lack something

    def _speakable(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, day: date
    ) -> tuple[list[Message], tuple[str, ...]]:
        """Messages that this template renders, with the fallbacks that this took.

        A template without a system role gets the system text at the beginning of the first user message; one without
        tools gets their description there or in the system text.
        """
        said, notes = [dict(m, content=content_text(m)) for m in messages], list[str]()
        if tools and not self._shows_tools(said, tools, day):
            said = self._with_tools_as_text(said, tools)
            notes.append("the template has no place for tools: they are described in the system text")
        if said and said[0]["role"] == "system" and not self._shows_system(said, day):
            said = fold_system(said)
            notes.append("the template has no system role: the system text opens the first user message")
        return list(said), tuple(notes)

    def _shows_system(self, messages: Sequence[Message], day: date) -> bool:
        mark = "strata-system-mark"
        probe = [{"role": "system", "content": mark}, {"role": "user", "content": "a"}]
        try:
            return mark in self.template.render(probe, tools=None, generation=True, day=day)
        except Refused:
            return False

    def _shows_tools(self, messages: Sequence[Message], tools: Sequence[Any], day: date) -> bool:
        probe = [{"role": "user", "content": "a"}]
        try:
            shown = self.template.render(probe, tools=tools, generation=True, day=day)
        except Refused:
            return False
        return shown != self.template.render(probe, tools=None, generation=True, day=day)

    def _with_tools_as_text(self, messages: list[dict[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
        text = "You can call these functions:\n" + json.dumps(list(tools), ensure_ascii=False, sort_keys=True)
        if messages and messages[0]["role"] == "system":
            first = dict(messages[0], content=f"{messages[0]['content']}\n\n{text}")
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    # -- rendering

    def _render(
        self, entries: Sequence[Entry], tools: Sequence[Any] | None, day: date, *, generation: bool
    ) -> list[tuple[Piece, Slot | None]]:
        """The rendered prompt as pieces: template text, and contents as the template shows them."""
        slots: list[Slot] = []
        nonce = unused_nonce([content_text(e.message) for e in entries])
        marked = [self._mark(i, entry, slots, nonce) for i, entry in enumerate(entries)]
        marked_tools = self._guard(list(tools), TOOLS, slots, nonce) if tools else tools
        skeleton = self.template.render(marked, tools=marked_tools, generation=generation, day=day)
        pieces = split_at_marks(skeleton, nonce)
        real = self.template.render([e.message for e in entries], tools=tools, generation=generation, day=day)
        contents = align(real, pieces, slots)
        shown = iter(contents if contents is not None else [slots[p.slot].text for p in pieces if p.slot is not None])
        return [(p, None) if p.slot is None else (Piece(next(shown), p.slot), slots[p.slot]) for p in pieces]

    def _mark(self, index: int, entry: Entry, slots: list[Slot], nonce: str) -> Message:
        """The message with its content, and every other string that spells a special token, behind placeholders."""
        kept = ("role", "content", "folded")
        message = {k: v if k in kept else self._guard(v, index, slots, nonce) for k, v in entry.message.items()}
        if content := content_text(entry.message):
            message["content"] = _place(Slot(index, content, entry.tokens), slots, nonce)
        return message

    def _guard(self, value: Any, index: int, slots: list[Slot], nonce: str) -> Any:
        """The value with each string that spells a special token behind a placeholder."""
        if isinstance(value, str):
            return _place(Slot(index, value), slots, nonce) if self._split.search(value) else value
        if isinstance(value, Mapping):
            return {key: self._guard(item, index, slots, nonce) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._guard(item, index, slots, nonce) for item in value]
        return value

    # -- tokens

    def _assemble(
        self, rendered: Sequence[tuple[Piece, Slot | None]], entries: Sequence[Entry]
    ) -> tuple[list[int], tuple[int, ...], int | None]:
        """Token ids, where each message's content begins, and the first message that the template rewrote."""
        tokens: list[int] = []
        starts: dict[int, int] = {}
        rewritten: int | None = None
        run = ""  # text that is tokenised together: the tokenizer may merge the template's words with the user's
        for piece, slot in rendered:
            if slot is None:
                for text, special in split_specials(self._split, piece.text):
                    if special:
                        tokens += self._ids(run, False)
                        tokens += self._ids(text, True)
                        run = ""
                    else:
                        run += text
                continue
            if slot.tokens is not None and piece.text.strip() == slot.text.strip():
                tokens += self._ids(run, False)
                starts.setdefault(slot.message, len(tokens))
                tokens += slot.tokens
                run = ""
                continue
            starts.setdefault(slot.message, len(tokens))
            if piece.text.strip() != slot.text.strip() and rewritten is None and slot.message != TOOLS:
                rewritten = slot.message
            run += piece.text
        tokens += self._ids(run, False)
        if self.vocabulary.add_bos and tokens[:1] != [self.vocabulary.bos]:
            tokens.insert(0, self.vocabulary.bos)
        return tokens, tuple(starts.get(i, 0) for i in range(len(entries))), rewritten

    def _tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        if special or not self._markers.search(text):
            return tuple(self.vocabulary.tokenize(text, special=special))
        # "User-defined" markers are parsed even where special tokens are not: break them after their first character.
        ids: list[int] = []
        at = 0
        for match in self._markers.finditer(text):
            ids += self.vocabulary.tokenize(text[at : match.start() + 1], special=False)
            at = match.start() + 1
        return tuple(ids + self.vocabulary.tokenize(text[at:], special=False))

    def _root(
        self, entries: Sequence[Entry], tools: Sequence[Any] | None, day: date, at: int | None = None
    ) -> tuple[int, ...]:
        """The tokens before message `at`, by default the first of the user, that do not depend on what it says."""
        first = next((i for i, e in enumerate(entries) if e.message["role"] == "user"), None) if at is None else at
        if first is None:
            return ()
        opening = [(entry.message, entry.tokens) for entry in entries[:first]]
        folded, role = entries[first].message.get("folded", ""), entries[first].message["role"]
        key = json.dumps([opening, folded, role, tools, day.isoformat()], sort_keys=True, default=str).encode()
        found = self._roots.get(key)
        if found is None:
            probes = [
                self._assemble(
                    self._render(
                        [*entries[:first], Entry({"role": role, "content": folded + probe})],
                        tools,
                        day,
                        generation=False,
                    ),
                    entries[: first + 1],
                )[0]
                for probe in ROOT_PROBES
            ]
            length = min(common(probes[0], probe) for probe in probes[1:])
            found = tuple(probes[0][:length])
            # Openings that differ each time, by the hour in a system prompt, must not pile up.
            self._roots = {**dict(list(self._roots.items())[1 - CACHED_ROOTS :]), key: found}
        return found


def with_tokens(messages: Sequence[Message], tokens: Sequence[tuple[int, ...] | None]) -> list[Entry]:
    """Messages as entries, each with its own tokens: a system text may have gone, or come, at the front."""
    missing = len(messages) - len(tokens)
    kept = [*[None] * missing, *tokens] if missing > 0 else tokens[-missing:]
    return [Entry(message, own) for message, own in zip(messages, kept, strict=True)]


def fold_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system text moved to the beginning of the first user message, which remembers it as `folded`."""
    system, rest = messages[0]["content"], list(messages[1:])
    for i, message in enumerate(rest):
        if message["role"] == "user":
            opening = f"{system}\n\n"
            rest[i] = dict(message, content=opening + message["content"], folded=opening)
            return rest
    raise Refused("a system text without a user message, and the template has no system role", reason="template")


def unused_nonce(texts: Sequence[str]) -> str:
    """A placeholder's opening that occurs in none of the texts."""
    number = 0
    while any(f"\ue000{number}:" in text for text in texts):
        number += 1
    return f"\ue000{number}:"


def _place(slot: Slot, slots: list[Slot], nonce: str) -> str:
    """Remember a slot; its placeholder."""
    slots.append(slot)
    return f"{nonce}{len(slots) - 1}\ue001"


def split_at_marks(skeleton: str, nonce: str) -> list[Piece]:
    """A skeleton's literal pieces and its placeholders, in order."""
    pieces: list[Piece] = []
    for i, part in enumerate(re.split(re.escape(nonce) + "([0-9]+)\ue001", skeleton)):
        if i % 2:
            pieces.append(Piece("", int(part)))
        elif part:
            pieces.append(Piece(part))
    return pieces


def split_specials(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            yield text[at : match.start()], False
        yield match.group(), True
        at = match.end()
    if at < len(text):
        yield text[at:], False


def align(real: str, pieces: Sequence[Piece], slots: Sequence[Slot]) -> list[str] | None:
    """What the template made of each placeholder's content, read off the real rendering.

    Each content stands between the same literal pieces as its placeholder did. As it was said, or trimmed, is tried
    first; else everything up to the next literal. None where the literals are not found: then the template chooses
    its words by the contents, and they are taken as they were said.
    """
    found: list[str] = []
    at = 0
    for i, piece in enumerate(pieces):
        if piece.slot is None:
            if not real.startswith(piece.text, at):
                return None
            at += len(piece.text)
            continue
        follower = next((p.text for p in pieces[i + 1 : i + 2] if p.slot is None), "")
        shown = shown_content(real, at, slots[piece.slot].text, follower, last=i == len(pieces) - 1)
        if shown is None:
            return None
        found.append(shown)
        at += len(shown)
    return found if at == len(real) else None


def shown_content(real: str, at: int, text: str, follower: str, *, last: bool) -> str | None:
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for candidate in (text, text.strip(), text.lstrip(), text.rstrip(), escaped):
        end = at + len(candidate)
        if real.startswith(candidate, at) and real.startswith(follower, end) and (not last or end == len(real)):
            return candidate
    if last:
        return real[at:]
    end = real.find(follower, at) if follower else -1
    return real[at:end] if end >= 0 else None


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share from their beginning."""
    limit = min(len(a), len(b))
    if list(a[:limit]) == list(b[:limit]):
        return limit
    low, high = 0, limit  # equal below low, different somewhere below high
    while high - low > 1:
        middle = (low + high) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle
    return low
