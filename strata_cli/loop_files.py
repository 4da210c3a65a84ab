"""What `/save` and `/restore` do in the loop.

Owns the order of things: the writer is waited for, and what is open stays open where something fails. How files are
written and received is `file_transfer`.
"""

from pathlib import Path
from typing import Any

from .asked import absorb
from .conversation import Chat
from .errors import Bad, Locked, NotFound, StorageFailed, UsageProblem
from .file_transfer import is_archive, receive_file, save_file, text_of_archive
from .graft import same_text
from .log import Log
from .loop_words import counted
from .names import check_name, is_automatic
from .opened import Opened
from .reception import Wish
from .removal import remove_record
from .session import Session
from .snapshot import copy_within
from .turn import Watch

WAIT_S = 5.0  # for another process to let go, while somebody looks at the screen
USAGE = "/save, /save NAME, /save -o FILE or /save NAME -o FILE"


def save(session: Session, chat: Chat | None, args: tuple[str, ...]) -> dict[str, Any]:
    """`/save [NAME] [-o FILE]`. Raises UsageProblem, Locked, StorageFailed."""
    name, file = _what(args)
    if chat is None or chat.opened is None or not chat.opened.branch:
        raise UsageProblem("nothing was said yet, so there is nothing to save")
    if not chat.opened.keeps or chat.name is None:
        raise UsageProblem("this conversation is not kept, so it cannot be saved", hint="it runs with --no-save")
    session.settle()
    if not chat.has_state:
        # What is asked for is kept whatever its length.
        with session.stop.deferring():
            absorb(chat, Watch(cancelled=session.stop.cancelled, hurried=session.stop.hurried))
    here, written = chat.name, 0
    if name is not None and name != here:
        written = _give_name(session, chat, here, name)
    if file is not None:
        done = save_file(str(Path(file).expanduser()), name or here, session.store, session.out, session.stop)
        return done.as_json()
    head = session.store.read_head(name or here)
    session.out.note(f"{head.name}: {counted(head.turns, 'turn')}, {head.tokens:,} tokens, on the disk")
    return {"name": head.name, "file": None, "turns": head.turns, "tokens": head.tokens, "bytes_written": written}


def _what(args: tuple[str, ...]) -> tuple[str | None, str | None]:
    """NAME and FILE; the rest of the line after `-o` is the file, blanks and all."""
    if "-o" in args:
        at = args.index("-o")
        before, file = args[:at], " ".join(args[at + 1 :])
        if not file or file == "-":
            raise UsageProblem("/save -o takes a file", hint=USAGE)
    else:
        before, file = args, None
    if len(before) > 1:
        raise UsageProblem("/save takes one name", hint=USAGE)
    return (check_name(before[0]) if before else None), file


def _give_name(session: Session, chat: Chat, here: str, name: str) -> int:
    """An automatic conversation becomes NAME; a named one gets a copy. Returns the bytes written."""
    store = session.store
    if name in store.names():
        raise UsageProblem(f"{name} exists already", hint="choose another name")
    done = copy_within(store, here, name, replace_it=False, wait_s=0)
    if not is_automatic(here):
        session.out.note(f"saved as {name}; this is still {here}")
        return done.bytes_written
    chat.open(name)
    session.settle()
    try:
        # All that it says and names is in NAME now.
        with store.exclusive(1.0), store.hold(here):
            remove_record(store, here, "conversations", ())
    except (Locked, StorageFailed) as error:
        session.out.warning(f"{here} stays beside {name}: {error.message}")
    session.out.note(f"{here} is called {name} now")
    return done.bytes_written


def restore(session: Session, chat: Chat | None, file: str) -> str | None:
    """`/restore FILE`: add its conversation to the directory; returns its name, None where it is open and says this.

    Raises UsageProblem where it is open and says something else, and what receiving raises.
    """
    if not file:
        raise UsageProblem("/restore takes a file", hint="/switch NAME continues a conversation")
    source = str(Path(file).expanduser())
    try:
        if not is_archive(source) or source == "-":
            raise Bad(f"{file} is no strata file", hint="llama-server's files: strata restore FILE -m MODEL")
    except NotFound as error:
        hint = f"/switch {file} continues the conversation" if file in session.store.names() else error.hint
        raise NotFound(error.message, hint=hint) from None
    name, log = text_of_archive(source)
    if chat is not None and chat.opened is not None and chat.name == name:
        _compare(chat.opened, log, file)
        return None
    session.settle()  # a conversation that was just left is held until it is written
    try:
        return receive_file(source, Wish(wait_s=WAIT_S), session.store, session.out, session.stop).name
    except Locked as error:
        raise Locked(error.message, hint="strata restore FILE --as NAME, in a shell, makes another one of it") from None


def _compare(opened: Opened, log: Log, file: str) -> None:
    if not same_text(opened.log, log):
        raise UsageProblem(
            f"{file} says something else than {opened.name}, which is open here and is not replaced",
            hint="/new or /switch first, or in a shell: strata restore FILE --as NAME",
        )
