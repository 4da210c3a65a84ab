"""What a command needs to chat: the configuration, the directory, the loaded model, and the chat on top of them.

Owns opening them in the right order and closing them. What a turn does is `conversation`, what is printed `output`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from .config import Config
from .conversation import Chat
from .engine import Engine, EngineOptions
from .errors import Locked, ModelUnavailable, NotFound, StrataError, Told
from .files import Files
from .fingerprint import file_digest
from .handover import Ticket
from .head import Head
from .housekeeping import Housekeeper
from .hub import cached, fetch, look
from .models import NO_MODEL_HINT, ModelChoice, choose_model, engine_options, options_to_json
from .names import nearest
from .opened import Opened
from .output import Output
from .signals import Stop
from .sizes import format_bytes
from .store import Store
from .turn import MIB, Notice, Policy, TurnResult


@dataclass(frozen=True)
class Wishes:
    """What the command line asks of the engine and of storing."""

    model: str | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    save: bool = True
    yes: bool = False  # download what `hf:` names without asking


class Session:
    """One process's chat. `chat` loads the model when it is first needed."""

    def __init__(
        self,
        config: Config,
        store: Store,
        out: Output,
        stop: Stop,
        wishes: Wishes,
        *,
        today: date,
        now_ns: Callable[[], int],
    ) -> None:
        self.config, self.store, self.out, self.stop, self.wishes = config, store, out, stop, wishes
        self._today, self._now_ns = today, now_ns
        self.housekeeper = Housekeeper(store, config, out)
        self._chat: Chat | None = None
        self._over: list[tuple[Chat, TurnResult, bool]] = []
        self.on_parked: Callable[[Ticket, Opened], None] | None = None
        self.on_saved: Callable[[str], None] | None = None
        self.at_question: Callable[[], AbstractContextManager[None]] = nullcontext
        self._loaded: tuple[ModelChoice, EngineOptions] | None = None
        self.load_ms = 0.0

    @property
    def policy(self) -> Policy:
        auto, memory = self.config.settings.auto_sessions, self.config.settings.memory
        return Policy(
            save=self.wishes.save,
            automatic=auto.enabled,
            min_tokens=auto.min_tokens,
            root_min_tokens=auto.root_min_tokens,
            ram_bytes=memory.ram_mib * MIB,
            ram_conversations=memory.ram_conversations,
            min_free_ram_bytes=memory.min_free_ram_mib * MIB,
            write_early=memory.write_policy == "park",
            leave_s=memory.leave_s,
            n_min_tokens=self.config.settings.store.n_min_tokens,
            similarity=self.config.settings.store.similarity,
        )

    def say(self, notice: Notice) -> None:
        """A chat's notice, where it belongs: a warning, a note, or a detail."""
        if notice.code == "saved" and self.on_saved is not None:
            self.on_saved(notice.text)
        elif notice.warning:
            self.out.warning(notice.text)
        elif notice.code in ("restored", "saved", "conversation", "template"):
            self.out.note(notice.text)
        else:
            self.out.detail(notice.text)

    # -- which conversation

    def head_of(self, name: str) -> Head | None:
        """The head of a conversation, None where it has none or a bad one. Raises NotFound."""
        if name not in self.store.names():
            raise NotFound(f"there is no conversation {name}", hint=nearest(name, self.store.names()))
        try:
            return self.store.read_head(name)
        except StrataError:
            return None

    def newest(self) -> Head:
        """The conversation of the last completed turn. Raises NotFound, or Locked with the next candidate."""
        heads = sorted(
            (head for head in self.store.heads() if isinstance(head, Head)),
            key=lambda head: head.last_turn,
            reverse=True,
        )
        if not heads:
            raise NotFound("there is no conversation to continue", hint="strata run PROMPT begins one")
        holder = self.store.holder(heads[0].name)
        if holder is not None:
            following = f"the one before it: -C {heads[1].name}" if len(heads) > 1 else "strata run begins a new one"
            raise Locked(f"{heads[0].name}, the last conversation, is held by {holder}", hint=following)
        return heads[0]

    # -- the chat

    def chat_for(self, head: Head | None) -> Chat:
        """The chat with the model that this conversation needs; another one is loaded where it differs."""
        settings = self.config.settings
        choice = self._here(choose_model(self.wishes.model, head, settings))
        configured = frozenset(key for key in ("threads", "gpu_layers", "ctx_size") if self.config.is_set(key))
        options = engine_options(self.wishes.engine, head, choice, settings, configured=configured)
        if self._chat is not None and self._fits((choice, options)):
            return self._chat
        before, left = self._loaded, self._chat
        name = left.name if left is not None else None
        self._check_files(choice.path, options)
        self.close_chat()
        try:
            self._chat = self._open_chat(choice, options)
        except Told:
            if before is not None and left is not None:
                self._go_back(before, left, name)
            raise
        self._loaded = (choice, options)
        return self._chat

    @property
    def chat(self) -> Chat | None:
        """The chat that is loaded now."""
        return self._chat

    def _go_back(self, before: tuple[ModelChoice, EngineOptions], left: Chat, name: str | None) -> None:
        """Another model did not load: the one that had to make room is loaded again, with its conversation."""
        try:
            self._chat = self._open_chat(*before)
            if name is not None and name in self.store.names():
                self._chat.open(name)
            self._chat.set_system(left.system, left.tools)
        except StrataError as error:
            self.out.warning(f"the model that was loaded before did not come back: {error.message}")

    @staticmethod
    def _check_files(path: Path, options: EngineOptions) -> None:
        """Raises ModelUnavailable for what is no model file, before anything is let go."""
        from .llama_engine import check_gguf

        check_gguf(path)
        for adapter, _ in options.loras or ():
            check_gguf(Path(adapter))

    def _here(self, choice: ModelChoice) -> ModelChoice:
        """The choice with its file on this machine: what the hub's cache lacks is downloaded, if the user agrees."""
        if choice.hub is None:
            return choice
        path = cached(choice.hub)
        if path is None:
            remote = look(choice.hub)
            size = format_bytes(remote.size_bytes)
            with self.at_question():
                agreed = self.out.confirm(f"Download {remote.file} ({size}) of {remote.repo}?", yes=self.wishes.yes)
            if not agreed:
                raise ModelUnavailable(f"{choice.hub} is not on this machine", hint=NO_MODEL_HINT)
            with self.out.progress(f"downloading {remote.file}", remote.size_bytes, "bytes") as update:
                path = fetch(remote, update)
        return replace(choice, path=path)

    def _fits(self, wanted: tuple[ModelChoice, EngineOptions]) -> bool:
        """Whether the loaded engine serves: the same model and options, and a context that is large enough."""
        assert self._loaded is not None and self._chat is not None
        (choice, options), (loaded_choice, loaded_options) = wanted, self._loaded
        room = options.ctx_size is None or options.ctx_size <= self._chat.engine.context_tokens
        plain = (options.cache_type_k, options.cache_type_v, options.flash_attn, options.loras, options.rope_freq_base)
        loaded = (
            loaded_options.cache_type_k,
            loaded_options.cache_type_v,
            loaded_options.flash_attn,
            loaded_options.loras,
            loaded_options.rope_freq_base,
        )
        return choice.path == loaded_choice.path and plain == loaded and room

    def _open_chat(self, choice: ModelChoice, options: EngineOptions) -> Chat:
        begun = time.perf_counter()
        if choice.origin != "flag" and choice.origin != "conversation":
            self.out.note(f"model: {choice.path.name} ({choice.origin})")
        engine, digest = self._load(choice.path, options)
        self.load_ms = (time.perf_counter() - begun) * 1000
        for note in engine.model.notes:
            self.out.warning(note)
        if engine.template.origin != "model":
            self.out.warning(engine.template.origin)
        chat = Chat(
            engine,
            self.store,
            self.policy,
            day=self._today,
            say=self.say,
            remembered_model={
                "path": str(choice.path),
                "weights": digest,
                "description": engine.model.description,
            },
            remembered_options=options_to_json(options, engine.context_tokens),
        )
        self.housekeeper.attach(chat)
        chat.keeper.parked = self.parked
        return chat

    def _load(self, path: Path, options: EngineOptions) -> tuple[Engine, str]:
        from .llama_engine import load

        with self.stop.deferring():
            digest = self._digest(path)
            adapters = [self._digest(Path(adapter)) for adapter, _ in options.loras or ()]
            with self.out.progress(f"loading {path.name}", 1000, "") as update:
                engine = load(
                    path,
                    options,
                    digest=digest,
                    adapter_digests=adapters,
                    log_path=self.config.places.state / "engine.log",
                    progress=lambda share: update(int(share * 1000)),
                    cancelled=self.stop.cancelled,
                    echo=self.out.very_verbose,
                )
        if self.stop.cancelled():
            engine.close()
            self.stop.check()
        return engine, digest

    def _digest(self, path: Path) -> str:
        """The file's digest, with a bar while it is hashed for the first time."""
        with self.out.progress(f"reading {path.name} once, to know it again", path.stat().st_size, "bytes") as update:

            def progress(done: int, _: int) -> None:
                self.stop.check()
                update(done)

            return file_digest(path, self.config.places.cache, Files(), progress=progress, now_ns=self._now_ns())

    # -- after a turn

    def parked(self, ticket: Ticket, opened: Opened) -> None:
        """A park reached the disk; told at once unless somebody collects. Runs on the writer's thread."""
        if self.on_parked is not None:
            self.on_parked(ticket, opened)

    def turn_over(self, chat: Chat, result: TurnResult, *, had_state: bool) -> None:
        """Remember a turn whose chores wait for its park to reach the disk."""
        self._over.append((chat, result, had_state))

    def chores(self) -> None:
        """What follows a turn, for those whose park has ended: counters, roots, budgets. Never raises."""
        waiting, self._over = self._over, []
        for chat, result, had_state in waiting:
            if not result.ticket.done.is_set():
                self._over.append((chat, result, had_state))
                continue
            extra_bytes = self.housekeeper.after_turn(chat, result, had_state=had_state)
            parked = result.ticket.parked
            result.ticket.parked = replace(parked, bytes_written=parked.bytes_written + extra_bytes)
        if waiting:
            self.housekeeper.stay_within(waiting[-1][0])

    def settle(self) -> None:
        """Wait for the writer, as long as the policy allows, and do the chores that are left."""
        if self._chat is not None:
            self._chat.keeper.wait(self.policy.leave_s, self.stop.hurried)
        self.chores()
        self._over.clear()

    def close_chat(self) -> None:
        """Leave the chat and free its engine; what is only in memory goes to the disk first."""
        if self._chat is not None:
            self.settle()
            chat, self._chat = self._chat, None
            chat.close(self.stop.hurried)
