"""`strata prefix`: adding, listing, showing, pinning the openings that conversations start from.

Owns what the options mean and how the results are printed. What a prefix is on disk is `prefix`; removing one is
`prune_command`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation import Chat
from .engine import Cancelled
from .errors import NoRoom, NotFound, Refused, UsageProblem
from .head import Head
from .log import Line
from .messages import SETTINGS
from .names import check_name, resolve, same_but_for_case
from .opened import GIVEN
from .output import Output
from .prefix import KIND, Opening, Stored, opening_of, read_opening, set_pinned, write_prefix
from .prompt import Entry, content_text
from .prune_plan import is_pinned
from .report import SPARE_OF_PREFIXES, prefix_rows, scan
from .session import Session
from .sizes import format_bytes
from .store import Store

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Addition:
    """What `strata prefix add` was asked: a system prompt or messages, and tools."""

    name: str
    system: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[Any, ...] | None = None


def check(wanted: Addition) -> None:
    """Raises UsageProblem, before anything is read or loaded."""
    check_name(wanted.name)
    if (wanted.system is None) == (wanted.messages is None):
        hint = "-s TEXT, --system-file FILE or --messages FILE"
        raise UsageProblem("a prefix is a system prompt or messages", hint=hint)


def add(wanted: Addition, session: Session) -> int:
    """Read an opening once and keep it, pinned. Raises NoRoom, Refused, UsageProblem where the name is taken."""
    store, out = session.store, session.out
    check_free(store, wanted.name)
    chat = session.chat_for(None)
    chat.check_length([wanted.system or "", *(content_text(each) for each in wanted.messages or ())])
    opening = opening_from(wanted, chat)
    tokens = shared_tokens(opening, chat)
    store.prepare()
    with session.stop.deferring(), store.shared(), out.progress("reading", len(tokens), "tokens") as update:
        try:
            state, parked, known = read_opening(
                chat.engine, store, tokens, progress=lambda done, _: update(done), cancelled=session.stop.cancelled
            )
        except Cancelled:
            session.stop.check()
            raise
        identity = chat.engine.identity
        stored = Stored(identity.digest.hex(), state, chat.remembered_model, chat.remembered_options)
        written = write_prefix(store, wanted.name, opening, stored, pinned=True)
    session.housekeeper.count_prefix(parked, written, known, len(tokens) - known)
    out.note(f"{wanted.name}: {len(tokens):,} tokens, {known:,} known, {format_bytes(parked.bytes_written)} written")
    out.ids([wanted.name])
    data = {
        "name": wanted.name,
        "tokens": len(tokens),
        "reused": known,
        "evaluated": len(tokens) - known,
        "segments": len(state.segments) + len(state.parts),
        "bytes_written": parked.bytes_written + written,
        "pinned": True,
    }
    return out.finish(data)


def check_free(store: Store, name: str) -> None:
    """Raises UsageProblem where a prefix of this name exists."""
    names = store.names(KIND)
    if name in names or same_but_for_case(name, names):
        taken = name if name in names else same_but_for_case(name, names)
        raise UsageProblem(f"there is a prefix {taken} already", hint=f"strata prefix rm {taken}, or another name")


def opening_from(wanted: Addition, chat: Chat) -> Opening:
    """The settings and lines of a prefix that is to be."""
    given = list(wanted.messages or ())
    system = wanted.system
    while given and given[0]["role"] in SETTINGS:
        text = content_text(given.pop(0))
        system = text if system is None else f"{system}\n\n{text}"
    settings: dict[str, Any] = {"date": chat.day.isoformat(), "template": chat.engine.template.origin}
    settings |= {"system": system} if system else {}
    settings |= {"tools": list(wanted.tools)} if wanted.tools else {}
    lines = tuple(Line(0, None, "message", chat.store.clock(), message=dict(each), marks=(GIVEN,)) for each in given)
    return Opening(settings, lines)


def shared_tokens(opening: Opening, chat: Chat) -> tuple[int, ...]:
    """What every conversation that starts from here begins with. Raises NoRoom, Refused."""
    system = opening.settings.get("system")
    entries = [Entry({"role": "system", "content": system})] if system else []
    entries += [Entry(line.message or {}) for line in opening.lines]
    tokens = chat.prompter.opening_tokens(entries, tools=opening.settings.get("tools"), day=chat.day)
    if not tokens:
        raise Refused("no token of it is the same for every conversation", reason="template")
    if len(tokens) >= chat.engine.context_tokens:
        room = chat.engine.context_tokens
        raise NoRoom(f"{len(tokens):,} tokens, and the context has {room:,}", hint=f"--ctx-size {len(tokens) + 1024}")
    return tokens


def list_all(store: Store, out: Output) -> int:
    """One row for each prefix, as `inspect` shows them."""
    facts = scan(store, now_iso=store.clock())
    rows, titles = prefix_rows(facts)
    if rows:
        out.table(titles, rows, right={1, 2, 3, 4}, spare=SPARE_OF_PREFIXES)
    else:
        out.note("no prefix yet: `strata prefix add NAME --system-file FILE` reads one")
    out.ids([each.name for each in facts.prefixes])
    return out.finish({"prefixes": [each.as_json() for each in facts.prefixes]})


def show(wanted: str, store: Store, out: Output) -> int:
    """What one prefix says, and where its state lies. Raises NotFound."""
    head = head_of(store, wanted)
    opening, _ = opening_of(store, head.name)
    messages = [dict(line.message or {}) for line in opening.lines]
    tools = opening.settings.get("tools") or []
    out.show(f"{head.name}: {head.tokens:,} tokens, {'pinned' if is_pinned(head) else 'not pinned'}")
    if opening.settings.get("system"):
        out.show(f"system: {opening.settings['system']}")
    if tools:
        out.show(f"{len(tools)} tools")
    for message in messages:
        out.show(f"{message.get('role')}: {content_text(message)}")
    files = [ref for state in head.states.values() for ref in (*state.segments, *state.parts)]
    return out.finish(
        {
            "name": head.name,
            "pinned": is_pinned(head),
            "tokens": head.tokens,
            "created": head.created,
            "updated": head.updated,
            "model": str(head.model.get("path", "")),
            "system": opening.settings.get("system"),
            "tools": tools,
            "messages": messages,
            "segments": [ref._asdict() for ref in files],
        }
    )


def head_of(store: Store, wanted: str) -> Head:
    """The prefix that a name or its beginning means. Raises NotFound, UsageProblem."""
    try:
        name = resolve(wanted, store.names(KIND))
    except NotFound as error:
        raise NotFound(error.message, hint="`strata prefix list` shows them") from None
    return store.read_head(name, KIND)


def pin(names: Sequence[str], pinned: bool, store: Store, out: Output) -> int:
    """Pin, or unpin. Raises NotFound before any of them is changed."""
    found = [head_of(store, name).name for name in names]
    for name in found:
        set_pinned(store, name, pinned)
        out.note(f"{name} is {'pinned' if pinned else 'not pinned any more'}")
    return out.finish({"pinned": pinned, "names": found})
