"""`/slots`: what the engine holds as a file that llama-server restores, and such a file taken in.

Owns the names of files, the folder that they lie in, and what becomes of the conversation that is open. The file's
bytes are `slot_file`, what is checked of one is `slots`. All but the names runs on the engine's thread.
"""

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

from ..asked import absorb, adopt
from ..conversation import Chat
from ..engine import Rebuild
from ..errors import NotFound, Refused, StrataError, UsageProblem
from ..foreign import Foreign
from ..graft import same_text
from ..log import Log
from ..names import automatic_name, key_of
from ..opened import role
from ..prompt import content_text
from ..session import Session
from ..slot_file import SlotFile
from ..slot_writing import write_slot_file
from ..slots import Slot, examine
from ..snapshot import head_from_text, write_conversation
from ..transfer import state_bytes
from ..turn import Watch

SLOT = "slot 0"  # whose the state is that belongs to no conversation: no name, since it has a space
NAME_BYTES = 255


class NotOffered(StrataError):
    """The service was started without what this takes."""

    code = "not_offered"


@dataclass(frozen=True)
class SlotAnswer:
    """What was done: `words` are the fields of llama-server's answer that differ by action."""

    filename: str | None
    words: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        named = {} if self.filename is None else {"filename": self.filename}
        return {"id_slot": 0, **named, **self.words}


def slot_path(folder: Path | None, name: object) -> Path:
    """Where the file of this name lies. Raises NotOffered without a folder, UsageProblem for what is no name."""
    if folder is None:
        raise NotOffered("no folder for slot files is set", hint="strata serve --slot-dir DIR, or serve.slot_dir")
    if not isinstance(name, str) or not name:
        raise UsageProblem("`filename` must be the name of a file")
    if name.startswith(".") or not name.isprintable() or any(mark in name for mark in "/\\"):
        raise UsageProblem("`filename` has no folder, no leading dot and no control characters")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise UsageProblem(f"`filename` has more than {NAME_BYTES} bytes")
    path = Path(os.path.realpath(folder)) / name
    _check_regular(path)
    return path


def _check_regular(path: Path) -> None:
    """Raises UsageProblem for a link, which could lead out of the folder, and for what is no file."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise UsageProblem(f"{path.name}: not a regular file")


def save(session: Session, path: Path, watch: Watch) -> SlotAnswer:
    """Write what the engine holds; a conversation is read to its end first, and goes into the file as text, too.

    Raises UsageProblem where it holds nothing, DiskFull, StorageFailed, Cancelled.
    """
    begun, chat = time.perf_counter(), _chat(session)
    opened, wanted_bytes, said = chat.opened, 0, None
    if opened is not None and opened.keeps and opened.answered:
        absorb(chat, watch)
        if opened.head is not None:
            said, wanted_bytes = (opened.head, opened.log), state_bytes(opened.head)
    if not chat.engine.tokens:
        raise UsageProblem("the slot is empty: there is nothing to save")
    written = write_slot_file(path, chat.engine, session.store, said, wanted_bytes, follow=False)
    session.out.note(f"saved {len(chat.engine.tokens):,} tokens of {chat.name or SLOT} to {path.name}")
    return SlotAnswer(
        path.name,
        {"n_saved": len(chat.engine.tokens), "n_written": written, "timings": {"save_ms": _ms(begun)}},
    )


def restore(session: Session, path: Path, day: date) -> SlotAnswer:
    """Take a file in: as the conversation that it says, or, where it says none, for what /v1/completions asks next.

    Raises NotFound, Bad, Refused, NoRoom, Locked, with what was held still there; StorageFailed, EngineFailed.
    """
    begun, chat = time.perf_counter(), _chat(session)
    with _slot_file(path) as file:
        slot = examine(file, chat, session.store, day, talk=False)
        if slot.differs:
            raise Refused(f"{path.name}: made under another identity: {'; '.join(slot.differs)}", reason="identity")
        leave(chat)
        state = file.prefixed_state(slot.state_bytes)
        try:
            if slot.log.branch():
                _open_as(session, chat, slot)
                adopt(chat, slot.tokens, state, own=slot.own)
            else:
                chat.engine.rebuild(Rebuild(slot.tokens, 0, rows=[state]))
                chat.keeper.stands_on_nothing(foreign_for=SLOT)
        finally:
            state.release()
        size_bytes = file.size
    session.out.note(f"restored {len(slot.tokens):,} tokens from {path.name} as {chat.name or SLOT}")
    return SlotAnswer(
        path.name,
        {"n_restored": len(slot.tokens), "n_read": size_bytes, "timings": {"restore_ms": _ms(begun)}},
    )


def erase(session: Session) -> SlotAnswer:
    """Empty the engine. What it held is parked first: no conversation is lost."""
    chat = _chat(session)
    leave(chat)
    held = len(chat.engine.tokens)
    chat.engine.clear()
    chat.keeper.stands_on_nothing(foreign_for=None)
    return SlotAnswer(None, {"n_erased": held})


def shown(session: Session, *, busy: bool) -> list[dict[str, Any]]:
    """The one slot, as GET /slots lists it: counts and a name, no text. Safe from another thread."""
    chat = _chat(session)
    return [
        {
            "id": 0,
            "n_ctx": chat.engine.context_tokens,
            "is_processing": busy,
            "n_past": len(chat.engine.tokens),
            "conversation": chat.name,
        }
    ]


def leave(chat: Chat) -> None:
    """Let go of what is open, parked. Raises NoRoom, once, where its state can be kept nowhere (A5)."""
    chat.check_leave()
    chat.leave_conversation()


def _chat(session: Session) -> Chat:
    chat = session.chat
    assert chat is not None, "the model is loaded before the port is opened"
    return chat


def _slot_file(path: Path) -> SlotFile:
    try:
        return SlotFile(path, follow=False)
    except NotFound:
        raise NotFound(f"no slot file is called {path.name!r}") from None


def _open_as(session: Session, chat: Chat, slot: Slot) -> None:
    """Open the conversation that says what the file says; where there is none, it is written first."""
    store = session.store
    # The conversation that was just left gives its lock back behind what is being written.
    chat.keeper.wait()
    name, exists = next(_free(session, slot))
    if not exists:
        head = head_from_text(name, slot.log, store.clock())
        mark = Foreign() if slot.own else Foreign(((1, slot.log.next_id - 1),))
        write_conversation(store, name, head, slot.log, mark, replace_it=False, wait_s=0.0)
    chat.open(name)


def _free(session: Session, slot: Slot) -> Iterator[tuple[str, bool]]:
    """Names that this text may have, and whether it stands there already: its own one, then automatic ones."""
    taken = set(session.store.names())
    for name in _names(slot):
        if name not in taken:
            yield name, False
        elif same_text(session.store.read_log(name), slot.log):
            yield name, True


def _names(slot: Slot) -> Iterator[str]:
    if slot.name is not None:
        yield slot.name
    key = key_of(_first_text(slot.log))
    for number in count(1):
        yield automatic_name(key, number)


def _first_text(log: Log) -> str:
    return next((content_text(line.message or {}) for line in log.branch() if role(line) == "user"), "")


def _ms(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1000, 3)
