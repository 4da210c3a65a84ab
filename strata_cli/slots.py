"""llama.cpp's own files as conversations: what is checked of one, and what is written into one.

Owns the way from a sequence file to lines and back. The file's bytes are `slot_file`, the engine's part is the chat's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from blake3 import blake3

from .conversation import Chat
from .engine import Engine
from .errors import Bad, ContextFull, Refused
from .foreign import strange_setting
from .graft import branch_lines
from .head import Head
from .identity import canonical_json, differences
from .log import Line, Log, append_bytes, parse_log
from .names import check_name
from .segment import seal_of
from .slot_file import SlotFile, Trailer, trailer_bytes
from .store import Store
from .unrender import ranges, unrender


@dataclass(frozen=True)
class Slot:
    """A sequence file that was checked against a model: what it holds, and what is not proved by it.

    `own`: this directory wrote it and nothing changed since. `differs`: what its trailer says about the identity and
    the loaded model does not.
    """

    name: str | None
    tokens: tuple[int, ...]
    log: Log
    state_bytes: int
    proved: bool
    own: bool
    differs: tuple[str, ...]


def examine(file: SlotFile, chat: Chat, store: Store, day: date, *, talk: bool = True) -> Slot:
    """Check all of a file that can be checked, before the engine sees a byte.

    Raises Bad for a malformed one, Refused where its state or its tokens are not this model's, NoRoom where the
    context is too small. `talk` false: tokens that say no conversation are taken, with an empty log.
    """
    engine, tokens = chat.engine, tuple(file.tokens)
    if max(tokens) >= len(engine.vocabulary):
        raise Bad(f"{file.path.name}: token {max(tokens)} is none of this model's {len(engine.vocabulary):,} tokens")
    if len(tokens) >= engine.context_tokens:
        raise ContextFull(
            f"{file.path.name}: {len(tokens):,} tokens, and the context has {engine.context_tokens:,}",
            hint=f"--ctx-size {len(tokens) + 1024}",
        )
    with file.state as state:
        state_bytes = engine.check_state(state, 0, len(tokens), whole=True)
    trailer = file.trailer(state_bytes)
    if trailer is None:
        return Slot(None, tokens, _said_in(tokens, chat, day, talk=talk), state_bytes, False, False, ())
    return _with_trailer(file, trailer, engine, store, tokens, state_bytes)


def _said_in(tokens: Sequence[int], chat: Chat, day: date, *, talk: bool) -> Log:
    try:
        return _from_tokens(tokens, chat, day)
    except Refused:
        if talk:
            raise
        return Log()


def _from_tokens(tokens: Sequence[int], chat: Chat, day: date) -> Log:
    """A log of the messages that the tokens say. Raises Refused where they say none."""
    system, placed = unrender(tokens, chat.prompter, day)
    settings: dict[str, Any] = {"date": day.isoformat(), "template": chat.engine.template.origin}
    settings |= {"system": system} if system is not None else {}
    lines = [Line(1, None, "setup", "", settings=settings)]
    digest = chat.engine.vocabulary.digest
    for said, start, end in ranges(placed):
        message = {"role": said.role, "content": said.text}
        parent = lines[-1].id if len(lines) > 1 else None
        ids = tuple(tokens[start:end])
        lines.append(Line(lines[-1].id + 1, parent, "message", "", message, ids, start, digest))
    return Log(tuple(lines), ())


def _with_trailer(
    file: SlotFile, trailer: Trailer, engine: Engine, store: Store, tokens: tuple[int, ...], state_bytes: int
) -> Slot:
    value = trailer.value
    text, identity, name = value.get("log"), value.get("identity"), value.get("name")
    if not isinstance(text, str) or not isinstance(identity, dict) or not isinstance(name, str):
        raise Bad(f"{file.path.name}: strata's trailer lacks a value")
    log = parse_log(text.encode())
    if log.bad:
        raise Bad(f"{file.path.name}: strata's trailer: line {log.bad[0].number}: {log.bad[0].why}")
    if strange := strange_setting(log):
        raise Bad(f"{file.path.name}: strata's trailer: the setting {strange} is of a wrong type")
    differs = tuple(str(each) for each in differences(identity, engine.identity.fields()))
    own = value.get("seal") == _seal(value, store)
    return Slot(check_name(name), tokens, log, state_bytes, True, own, differs)


def _seal(value: dict[str, Any], store: Store) -> str:
    """Shows to the directory that wrote the file that it did (hex)."""
    sealed = {name: value.get(name) for name in ("name", "identity", "log", "body_digest")}
    return seal_of(blake3(canonical_json(sealed)).digest(), store.key).hex()


def trailer_for(store: Store, head: Head, log: Log, engine: Engine, body_bytes: int, body_digest: str) -> bytes:
    """The block that strata adds to a file of this conversation."""
    value: dict[str, Any] = {
        "name": head.name,
        "identity": engine.identity.fields(),
        "engine": engine.model.build,
        "tokenizer": engine.vocabulary.digest,
        "log": append_bytes(branch_lines(log)).decode(),
    }
    value["seal"] = _seal({**value, "body_digest": body_digest}, store)
    return trailer_bytes(value, body_bytes, body_digest)
