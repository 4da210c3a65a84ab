"""Beginning a conversation where a prefix ends, and pinning where one stands: `run --prefix`, `/prefix`, `/pin`.

Owns what a session does for it. What a prefix is on disk is `prefix`.
"""

from typing import Any

from .asked import pin as pin_here
from .conversation import Chat
from .errors import NotFound, StorageFailed
from .names import resolve
from .prefix import KIND, Opening, Stored, name_of, opening_of, set_pinned, write_prefix
from .session import Session
from .turn import Watch


def begin_at_prefix(session: Session, wanted: str, name: str | None) -> tuple[Chat, str]:
    """A new conversation, called `name` if that is given, that goes on from a prefix. Raises NotFound, Locked, Bad."""
    prefix = full_name(session, wanted)
    head = session.store.read_head(prefix, KIND)
    opening, log = opening_of(session.store, prefix)
    chat = session.chat_for(head)
    chat.start(name)
    chat.begin(opening.settings, log)
    session.out.note(f"from the prefix {prefix}, {head.tokens:,} tokens")
    return chat, prefix


def full_name(session: Session, wanted: str) -> str:
    """The prefix that a name or its beginning means. Raises NotFound, UsageProblem."""
    try:
        return resolve(wanted, session.store.names(KIND))
    except NotFound as error:
        raise NotFound(error.message, hint="`strata prefix list` shows them") from None


def pin(session: Session, chat: Chat) -> dict[str, Any]:
    """Keep where the conversation stands as a pinned prefix. Raises StorageFailed, UsageProblem, NoRoom."""
    watch = Watch(cancelled=session.stop.cancelled)
    with session.stop.deferring():
        prompt, state = pin_here(chat, watch)
    if state is None or chat.opened is None:
        raise StorageFailed("the state up to here is not stored, so it cannot be pinned")
    identity = chat.engine.identity
    name = name_of("pin", identity.digest, prompt.tokens)
    stored = Stored(identity.digest.hex(), state, chat.remembered_model, chat.remembered_options)
    opening = Opening(chat.opened.setup, chat.opened.branch)
    if not write_prefix(session.store, name, opening, stored, pinned=True):
        set_pinned(session.store, name, True)
    session.out.note(f"pinned {state.tokens:,} tokens as {name}")
    return {"prefix": name, "tokens": state.tokens}
