"""The loop: prompts and slash commands, one after another, from a terminal or from standard input.

Owns what each command does. Lines come from `terminal`, or from standard input as text or JSON; the table of commands
is `slash`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from .back_commands import edit, fork_here, retry, set_context, undo_turns
from .conversation import Chat
from .errors import Interrupted, NotFound, StrataError, Told, UsageProblem
from .files import Files
from .loop_files import restore, save
from .loop_input import Item, json_item, lines, text_item
from .loop_parks import Parks, Waits
from .loop_words import (
    KEPT,
    LEAVING,
    SETTABLE,
    SHOWN_TURNS,
    UNANSWERED,
    as_text,
    as_typed,
    counted,
    last_turns,
    said_so_far,
    settings_of,
    with_setting,
)
from .names import check_name, nearest, resolve
from .opened import Opened
from .output import Mode
from .prefix_start import begin_at_prefix, pin
from .quiet_terminal import QuietTerminal
from .report import SPARE_OF_CONVERSATIONS, SPARE_OF_PREFIXES, conversation_rows, prefix_rows, scan
from .run_command import RunRequest, open_conversation, read_whole, watched_turn
from .said import turn_data
from .session import Session
from .slash import COMMANDS, Command, Said
from .typed_history import FILE_NAME, TypedHistory, wanted


class Loop:
    """One interactive session. `step` returns False when it is over."""

    def __init__(self, request: RunRequest, session: Session) -> None:
        self.request, self.session, self.out = request, session, session.out
        self.read_texts: list[str] = []
        self.last: dict[str, Any] = {}  # the last turn, as JSON, and where it was said
        self._said_in: tuple[Opened, int | None] | None = None  # and the line that stood last behind it
        self._counted: tuple[Opened, int | None, int] | None = None  # a conversation's length, and up to which line
        self.typing = request.repl is None and sys.stdin.isatty()  # somebody sits at a prompt
        self._hinted = False
        self.parks = Parks(self.out, prompts=self.typing)
        session.on_parked = self.parks.tell
        if self.typing:
            session.on_saved = self.parks.later
        self.waits = Waits(self.out, session.stop)
        session.store.on_wait = self.waits.told
        self._actions: dict[str, Callable[[Command], dict[str, Any]]] = {
            "/help": self._help,
            "/new": self._new,
            "/switch": self._switch,
            "/list": self._list,
            "/tokens": self._tokens,
            "/prefix": self._prefix,
            "/pin": self._pin,
            "/retry": lambda _: retry(self.chat or self.open(), self._say),
            "/undo": lambda command: undo_turns(self.chat or self.open(), command, self.out),
            "/edit": lambda command: edit(self.chat or self.open(), command, self._say, session.at_question),
            "/fork": lambda command: fork_here(self.chat or self.open(), command, self.out),
            "/save": self._save,
            "/restore": self._restore,
            "/read": self._read,
            "/system": self._system,
            "/set": self._set,
            "/history": self._history,
        }

    @property
    def chat(self) -> Chat | None:
        """The chat as the session has it: another one once another model was loaded."""
        return self.session.chat

    def open(self) -> Chat:
        chat = open_conversation(self.request, self.session)
        self._recall(chat)
        return chat

    def step(self, item: Item) -> bool:
        """Answer one line. A failing line is told and the loop goes on. Raises Interrupted for Ctrl-C twice."""
        self.session.chores()
        self.waits.begin()
        with self.parks.after_the_line():
            goes_on = self._step(item)
        if self.typing and self.session.stop.twice:
            raise Interrupted("interrupted")
        self.session.stop.begin()
        return goes_on

    def _step(self, item: Item) -> bool:
        word = item.word if isinstance(item, Command) else "run"
        try:
            if isinstance(item, StrataError):
                raise item
            if word == "/exit":
                self.out.finish({}, command=word)
                return False
            with self.session.stop.raising():
                data = self._ask(item.text) if isinstance(item, Said) else self._actions[word](item)
            self.out.finish(data, command=word)
        except Told as error:
            self.out.fail(error, command=word)
        return not self.session.stop.ending and not self.out.reader_left

    def _ask(self, text: str) -> dict[str, Any]:
        """A prompt, after the files that were read for it."""
        if not text.strip():
            raise UsageProblem("the prompt is empty")
        if self.typing and not self._hinted and text.strip().lower() in LEAVING:
            self._hinted = True
            self.out.note(f"/exit leaves; {text.strip()} is sent to the model")
        data = self._say("\n\n".join([*self.read_texts, text]))
        self.read_texts.clear()
        return data

    def _say(self, text: str) -> dict[str, Any]:
        chat = self.chat or self.open()
        with self.session.stop.deferring():
            result = watched_turn(chat, text, self.request.reply, self.session, strict=self.request.strict)
        self.last = turn_data(result, self.session.load_ms)
        self._said_in = (chat.opened, chat.opened.log.tip) if chat.opened is not None else None
        if result.finish == "interrupted":
            self.out.note(KEPT if result.reply else UNANSWERED)
        return self.last

    def _help(self, _: Command) -> dict[str, Any]:
        rows = [[command.word, command.takes, command.help] for command in COMMANDS]
        self.out.table(["command", "", "what it does"], rows)
        self.out.note("Anything else is sent to the model; //x sends /x.")
        return {"commands": [{"command": c.word, "takes": c.takes, "help": c.help} for c in COMMANDS]}

    def _new(self, command: Command) -> dict[str, Any]:
        chat = self.chat or self.open()
        name = check_name(command.args[0]) if command.args else None
        if name is not None and name in self.session.store.names():
            raise UsageProblem(f"{name} exists already", hint=f"/switch {name}")
        chat.check_leave()
        chat.start(name)
        chat.set_system(self.request.system, self.request.tools)
        self.out.note(f"a new conversation{f', {name}' if name else ''}")
        return {"conversation": name}

    def _switch(self, command: Command) -> dict[str, Any]:
        if len(command.args) != 1:
            raise UsageProblem("/switch takes one name", hint="/list shows them")
        names = self.session.store.names()
        try:
            name = resolve(command.args[0], names)
        except NotFound as error:
            hint = nearest(command.args[0], names) if names else ""
            raise NotFound(error.message, hint=hint.replace("`strata inspect` lists", "/list shows")) from None
        return self._switch_to(name)

    def _switch_to(self, name: str) -> dict[str, Any]:
        head, before = self.session.head_of(name), self.chat
        if before is not None and before.name == name:
            return self._opened(before)
        if before is not None:
            before.check_leave()
        chat = self.session.chat_for(head)
        if before is not None and chat is not before:
            self.out.note(f"loaded {chat.engine.model.path.name}, the model of {name}")
        chat.open(name)
        self._recall(chat)
        return self._opened(chat)

    def _recall(self, chat: Chat) -> None:
        """The last two turns, for somebody who sits at a terminal."""
        messages = last_turns(said_so_far(chat), SHOWN_TURNS)
        if messages and self.request.repl is None:
            self.out.aside(as_text(messages, brief=True))

    def _opened(self, chat: Chat, told: str = "") -> dict[str, Any]:
        """What is open now, by its text: the head may still be on its way to the disk. `told` is said instead."""
        opened = chat.opened
        branch = opened.branch if opened is not None else ()
        turns = sum(1 for line in branch if (line.message or {}).get("role") == "user")
        tokens = len(opened.log.tokens()) if opened is not None else 0
        self.out.note(told or f"{chat.name}: {counted(turns, 'turn')}, {tokens:,} tokens")
        return {"conversation": chat.name, "turns": turns, "tokens": tokens}

    def _list(self, command: Command) -> dict[str, Any]:
        seen = scan(self.session.store, now_iso=self.session.store.clock())
        rows, titles = conversation_rows(seen, limit=None if "--all" in command.args else 20)
        self.out.table(titles, rows, right={1, 2, 3, 4, 5}, spare=SPARE_OF_CONVERSATIONS)
        return {"conversations": [each.as_json() for each in seen.conversations]}

    def _prefix(self, command: Command) -> dict[str, Any]:
        if not command.args:
            seen = scan(self.session.store, now_iso=self.session.store.clock())
            rows, titles = prefix_rows(seen)
            self.out.table(titles, rows, right={1, 2, 3, 4}, spare=SPARE_OF_PREFIXES)
            return {"prefixes": [each.as_json() for each in seen.prefixes]}
        if len(command.args) > 1:
            raise UsageProblem("/prefix takes one name", hint="/prefix shows them")
        chat, name = begin_at_prefix(self.session, command.args[0], None)
        return {"prefix": name, "conversation": chat.name}

    def _save(self, command: Command) -> dict[str, Any]:
        return save(self.session, self.chat, command.args)

    def _restore(self, command: Command) -> dict[str, Any]:
        name = restore(self.session, self.chat, command.rest)
        if name is not None:
            return self._switch_to(name)
        return self._opened(self.chat or self.open(), f"{command.rest}: nothing to do, it says the same")

    def _read(self, command: Command) -> dict[str, Any]:
        if not command.rest:
            raise UsageProblem("/read takes a file", hint="/read notes.txt")
        text = read_whole(str(Path(command.rest).expanduser()), "/read").rstrip("\n")
        if not text.strip():
            raise UsageProblem(f"/read {command.rest}: there is nothing in it")
        self.read_texts.append(text)
        self.out.note(f"{command.rest}: {len(text):,} characters, before your next prompt")
        return {"file": command.rest, "characters": len(text)}

    def _system(self, command: Command) -> dict[str, Any]:
        chat = self.chat or self.open()
        if command.rest:
            chat.set_system(command.rest, chat.tools)
            self.out.note("the system prompt of the turns to come; what was said is read again under it")
        else:
            self.out.show(chat.system or "(no system prompt)")
        return {"system": chat.system}

    def _set(self, command: Command) -> dict[str, Any]:
        key, _, value = command.rest.partition(" ")
        if key and not value:
            keys = ", ".join(["ctx-size", *SETTABLE])
            raise UsageProblem("/set takes a key and a value", hint=f"/set KEY VALUE; KEY is {keys}")
        if key == "ctx-size":
            return set_context(self.chat or self.open(), value.strip(), self.out)
        if key:
            self.request = replace(self.request, reply=with_setting(self.request.reply, key, value.strip()))
        found = settings_of(self.request.reply)
        self.out.table(["key", "value"], [[k, as_typed(v)] for k, v in found.items() if key in ("", k)])
        return found

    def _history(self, command: Command) -> dict[str, Any]:
        turns = command.args[0] if command.args else "0"
        if not turns.isdecimal() or len(command.args) > 1:
            raise UsageProblem("/history takes a number of turns", hint="/history 3")
        messages = said_so_far(self.chat)
        messages = last_turns(messages, int(turns)) if int(turns) else messages
        self.out.show(as_text(messages) or "(nothing was said yet)")
        return {"messages": messages}

    def _pin(self, _: Command) -> dict[str, Any]:
        return pin(self.session, self.chat or self.open())

    def status(self) -> str:
        """The line below the prompt: conversation, model, context, and what the last turn reused."""
        chat = self.chat
        if chat is None:
            return "a new conversation"
        counts = self._last_counts(chat)
        reused = f", {counts['reused'] / counts['prompt']:.0%} of the prompt reused" if counts else ""
        held, room = self._tokens_of(chat), chat.engine.context_tokens
        name, model = chat.name or "a new conversation", chat.engine.model.path.name
        return f"{name} | {model} | {held:,} of {room:,} tokens{reused}"

    def _last_counts(self, chat: Chat) -> dict[str, int]:
        """What the last turn read and reused; nothing before the first turn in the conversation that is open."""
        counts: dict[str, int] = self.last.get("tokens", {}) if self._stands_behind_it(chat) else {}
        return counts

    def _stands_behind_it(self, chat: Chat) -> bool:
        """Whether the open conversation is as the last turn left it: another may be open, or the turn undone."""
        opened, said = chat.opened, self._said_in
        return said is not None and opened is said[0] and said[0].log.tip == said[1]

    def _tokens_of(self, chat: Chat) -> int:
        """How long the open conversation is. What the engine holds is another's until a turn was said in this one."""
        opened = chat.opened
        if opened is None:
            return 0
        if self._stands_behind_it(chat):
            return len(chat.engine.tokens)
        # By its text: the head may still be on its way to the disk. Asked with each key that is typed, counted once.
        counted = self._counted
        if counted is None or counted[0] is not opened or counted[1] != opened.log.tip:
            counted = self._counted = (opened, opened.log.tip, len(opened.log.tokens()))
        return counted[2]

    def _tokens(self, _: Command) -> dict[str, Any]:
        chat = self.chat or self.open()
        held, room, counts = self._tokens_of(chat), chat.engine.context_tokens, self._last_counts(chat)
        reused = f"; the last turn reused {counts['reused']:,} of {counts['prompt']:,}" if counts else ""
        self.out.show(f"{held:,} of {room:,} tokens held{reused}")
        return {"held": held, "context": room, "last": counts}


def loop(request: RunRequest, session: Session) -> int:
    """Run the loop to its end; returns the exit status."""
    runner, stop = Loop(request, session), session.stop
    session.out.streams_tokens = session.out.mode is not Mode.JSON
    # Where somebody types, a signal between two lines is a flag: what it means is known once the prompt is there.
    with stop.deferring() if runner.typing else nullcontext():
        left = _lines(request, session, runner)
        stop.begin()
        with stop.deferring():
            session.close_chat()
    runner.parks.flush()
    return stop.status.exit_code if stop.ending else left


def _lines(request: RunRequest, session: Session, runner: Loop) -> int:
    """One line after another; returns the exit status."""
    try:
        with quiet(session) if runner.typing and session.out.cursor_moves else nullcontext():
            if request.conversation is not None or request.continue_last:
                with session.stop.raising():
                    runner.open()
            for item in items(request, session, runner):
                if not runner.step(item):
                    break
    except Interrupted as error:  # Ctrl-C twice
        return error.exit_code
    return 0


@contextmanager
def quiet(session: Session) -> Iterator[None]:
    """Nothing is echoed but by the prompt, until an editor or a question needs the terminal."""
    from .terminal import screen

    terminal = QuietTerminal(sys.stdin, screen())
    session.at_question, session.stop.before_exit = terminal.lifted, terminal.restore
    with terminal.held():
        yield


def items(request: RunRequest, session: Session, runner: Loop) -> Iterator[Item]:
    """The lines to answer, from wherever they come."""
    if request.repl == "jsonl":
        return map(json_item, lines())
    if not runner.typing:
        return map(text_item, lines())
    from .terminal import desk_of, typed, typed_plainly

    if session.config.settings.repl.markdown:
        session.out.format_answers()
    desk = desk_of(session, runner.status, history_of(request, session), runner.parks.flush)
    return typed(desk) if session.out.cursor_moves else typed_plainly(desk)


def history_of(request: RunRequest, session: Session) -> TypedHistory | None:
    """The history of what is typed, unless a flag, STRATA_NO_HISTORY or the configuration says no."""
    settings, places = session.config.settings.repl, session.config.places
    keep = session.wishes.save and request.history
    if not wanted(os.environ, setting=settings.history, entries=settings.history_entries, save=keep):
        return None
    return TypedHistory(places.state / FILE_NAME, settings.history_entries, Files())
