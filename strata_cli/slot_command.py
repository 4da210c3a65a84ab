"""`strata save --format llama`, and `strata restore` of a file that llama-server wrote.

Owns the order of things and what is printed. Both load a model: llama.cpp's file is one whole state, and nothing in
it but shapes says whose. What is checked is `slots`.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path

from .asked import absorb, adopt
from .engine import EngineOptions
from .errors import Bad, Refused, UsageProblem
from .file_transfer import first_bytes
from .foreign import Foreign
from .names import check_name
from .reception import Wish
from .session import Session
from .sizes import format_bytes
from .slot_file import SlotFile, is_slot_file
from .slot_writing import write_slot_file
from .slots import Slot, examine
from .snapshot import check_replaceable, head_from_text, read_conversation, write_conversation
from .snapshot_command import SaveRequest, finish, source_name
from .tier import available_bytes
from .transfer import Needs, Row, Transfer
from .turn import Watch

GROWTH_TOKENS = 1024


def save_llama(request: SaveRequest, session: Session) -> int:
    """Write one whole state as llama.cpp's file, with strata's trailer behind it; returns the exit status."""
    store, out, stop = session.store, session.out, session.stop
    name = source_name(store, request.name)
    head, log = read_conversation(store, name)
    if not log.branch():
        raise UsageProblem(f"{name} is empty: there is no state to write")
    # It is read as of its last durable turn, and another process may hold it.
    session.wishes = replace(session.wishes, save=False)
    chat = session.chat_for(head)
    chat.open(name)
    path = Path(str(request.output))
    with stop.deferring(), out.progress("reading", 1, "tokens") as update:
        prompt, plan, _ = absorb(chat, Watch(progress=update, cancelled=stop.cancelled))
        stop.check()
        wanted_bytes = sum(each.size_bytes for each in plan.steps)
        written = write_slot_file(path, chat.engine, store, (head, log), wanted_bytes)
    identity = chat.engine.identity.short
    session.close_chat()
    rows = tuple(Row(s.action, s.tokens, s.size_bytes, s.source, s.reason, s.start, s.end) for s in plan.steps)
    done = Transfer(
        name, request.output, len(prompt.tokens), head.turns, 1, written, written, identity, True, None, rows
    )
    out.note(f"saved {done.tokens:,} tokens ({format_bytes(written)}) of {name} to {path} for llama-server")
    return finish(done, out, plan=False)


def restore_slot(source: str, wish: Wish, session: Session, day: date) -> int:
    """Take in a sequence file; returns the exit status. Raises as `slots.examine` does."""
    if not is_slot_file(first_bytes(source)):
        raise Bad(f"{source}: neither a strata file nor a sequence file of llama.cpp")
    if session.wishes.model is None:
        raise UsageProblem(
            f"{source}: a file of llama.cpp says nothing of the model that made it",
            hint="name the GGUF file with -m, and be sure that it is the one",
        )
    store, out = session.store, session.out
    with SlotFile(Path(source)) as file:
        session.wishes = replace(session.wishes, engine=_roomy(session.wishes.engine, len(file.tokens)))
        chat = session.chat_for(None)
        slot = examine(file, chat, store, day)
        name = check_name(wish.as_name or slot.name or _name_of(source))
        if not slot.proved:
            out.warning(f"{source}: nothing in it proves its K/V or whose weights made it; -m is taken at its word")
        if slot.differs:
            raise Refused(f"{source}: made under another identity: {'; '.join(slot.differs)}", reason="identity")
        exists = name in store.names()
        check_replaceable(name, store.read_log(name), slot.log, exists=exists, replace_it=wish.replace)
        done = _as_transfer(name, source, slot, file, session, 0)
        if wish.plan:
            session.close_chat()
            return finish(done, out, plan=True)
        own = slot.own or wish.trust
        mark = Foreign() if own else Foreign(((1, slot.log.next_id - 1),))
        head = head_from_text(name, slot.log, store.clock())
        with session.stop.deferring():
            _, text = write_conversation(store, name, head, slot.log, mark, replace_it=wish.replace, wait_s=wish.wait_s)
            chat.open(name)
            parked = adopt(chat, slot.tokens, file.prefixed_state(slot.state_bytes), own=own)
    stored = store.read_head(name)
    session.close_chat()
    done = replace(
        done,
        turns=stored.turns,
        segments=parked.segments,
        bytes_written=parked.bytes_written + text,
        usable=parked.segments > 0,
        why=None if parked.segments else "its state could not be stored",
    )
    out.note(f"restored {done.tokens:,} tokens as {name}: {format_bytes(done.bytes_written)} written")
    return finish(done, out, plan=False)


def _roomy(options: EngineOptions, tokens: int) -> EngineOptions:
    """A context that takes the file and some more, where none was asked for."""
    if options.ctx_size is not None:
        return options
    return replace(options, ctx_size=max(8192, tokens + GROWTH_TOKENS))


def _name_of(source: str) -> str:
    stem = Path(source).name.split(".")[0]
    try:
        return check_name(stem)
    except UsageProblem:
        raise UsageProblem(f"{source}: what is it to be called?", hint="--as NAME") from None


def _as_transfer(name: str, source: str, slot: Slot, file: SlotFile, session: Session, written: int) -> Transfer:
    engine = session.chat_for(None).engine
    what = "state, sealed here" if slot.own else "state with a digest" if slot.proved else "state, not provable"
    rows = (
        Row("text", len(slot.tokens), 0, "trailer" if slot.proved else "tokens", f"{len(slot.log.branch())} messages"),
        Row("state", len(slot.tokens), slot.state_bytes, "file", what, 0, len(slot.tokens)),
    )
    turns = sum((line.message or {}).get("role") == "user" for line in slot.log.branch())
    needs = Needs(
        disk_bytes=slot.state_bytes,
        disk_free_bytes=session.store.free_bytes(),
        context_tokens=len(slot.tokens),
        memory_bytes=slot.state_bytes,
        memory_free_bytes=available_bytes(),
        model=engine.model.path.name,
    )
    return Transfer(
        name, source, len(slot.tokens), turns, 1, file.size, written, engine.identity.short, True, None, rows, needs
    )
