"""Two writers, a sweeper and a reader over one directory, a failure at any call of the seam: the invariants hold.

A stateful property test on the real engine and the real chat. After every step the reader finds: every head parses
and names only whole, verified files; the text has every answered turn that was told as stored; nothing short lies
under a final name. The sweeper takes any state that is not in use, and may fail anywhere, too. At the end every reply
is the one of a run without faults. Row B9, cases C07, C09, C25, C40, N08, N10.
"""

import contextlib
import errno
import itertools
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chats import Reference, Talk
from directories import dangling
from engine_tools import Engines
from faulty_files import FaultAnywhere, UnflushedFiles
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from strata_cli.errors import Locked, NoRoom, NotFound, StorageFailed
from strata_cli.files import Files
from strata_cli.inventory import take_inventory
from strata_cli.prune import Policy, plan_prune
from strata_cli.store import Store
from strata_cli.sweep import sweep
from strata_cli.verify import verify

NAMES = ("one", "two", "three")
WRITERS = ("a", "b")
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[dict[str, Engines]]:
    """An engine for each writer and one for the reader: what a process has for itself."""
    found = {name: Engines(tiny) for name in (*WRITERS, "reader")}
    yield found
    for each in found.values():
        each.close()


FAULTS = st.one_of(st.none(), st.tuples(st.integers(0, 28), st.sampled_from(CODES)))


class TwoWriters(RuleBasedStateMachine):
    engines: dict[str, Engines]
    family = "llama"
    faults_that_hit = 0
    swept = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "s"
        self.talks: dict[str, Talk] = {}
        self.stored: dict[str, list[tuple[str, tuple[int, ...]]]] = {name: [] for name in NAMES}
        self.number = itertools.count()

    def engine(self, who: str):  # type: ignore[no-untyped-def]
        return self.engines[who](self.family, threads=1)

    @initialize()
    def begin(self) -> None:
        for writer, name in zip(WRITERS, NAMES, strict=False):
            self._start(writer)
            self.talks[writer].open(name)

    def _start(self, writer: str) -> None:
        self.talks[writer] = Talk(self.engine(writer), self.root, files=FaultAnywhere())

    def _arm(self, talk: Talk, fault: tuple[int, int] | None) -> FaultAnywhere:
        files = talk.store.directory.files
        assert isinstance(files, FaultAnywhere)
        files.arm(*(fault or (None, 0)))
        return files

    @rule(writer=st.sampled_from(WRITERS), name=st.sampled_from(NAMES), fault=FAULTS)
    def open(self, writer: str, name: str, fault: tuple[int, int] | None) -> None:
        talk, holder = self.talks[writer], self._holder(name)
        if holder == writer:
            return
        files = self._arm(talk, fault)
        try:
            talk.open(name)
        except Locked:
            assert holder is not None, "refused, and nobody else has it"
        except StorageFailed:
            assert files.fired
        else:
            assert holder is None, "two writers have one conversation"
        finally:
            files.arm(None, 0)

    def _holder(self, name: str) -> str | None:
        return next((writer for writer, talk in self.talks.items() if talk.chat.name == name), None)

    @rule(writer=st.sampled_from(WRITERS), fault=FAULTS)
    def say(self, writer: str, fault: tuple[int, int] | None) -> None:
        talk = self.talks[writer]
        if talk.chat.name is None:
            return
        text = f"Message {next(self.number)}"
        files = self._arm(talk, fault)
        try:
            result = talk.say(text, 4)
        except StorageFailed:
            assert files.fired, "the turn failed without a fault"
        except NoRoom:
            pass  # a long conversation: the context is full
        else:
            opened = talk.chat.opened
            assert opened is not None
            if not opened.unwritten:
                self.stored[talk.chat.name].append((text, result.reply_tokens))
            else:
                assert files.fired
        finally:
            talk.chat.keeper.wait(10)  # a fault may hit the writer behind the chat, too
            TwoWriters.faults_that_hit += files.fired
            files.arm(None, 0)

    @rule(keep=st.sampled_from([0, 0, 1]), max_bytes=st.sampled_from([None, 0, 20_000]), fault=FAULTS)
    def prune(self, keep: int, max_bytes: int | None, fault: tuple[int, int] | None) -> None:
        """What `strata prune --named` does: plan and sweep under the directory's lock, and carry on where one fails."""
        if not self.root.exists():
            return
        files = FaultAnywhere()
        store = Store.open(self.root, files, lambda: datetime.now(UTC))
        policy = Policy(keep=keep, max_bytes=max_bytes, named=True, spare_oversized=False, quarantine_age_s=0)
        try:
            with store.exclusive():
                if fault is not None:
                    files.arm(*fault)
                seen = take_inventory(store)
                made = plan_prune(seen, policy, datetime.now(UTC).timestamp())
                swept = sweep(store, seen, made)
        except (StorageFailed, NotFound):
            assert files.fired
        else:
            assert files.fired or not swept.failed
            assert not {item.name for item in swept.items} & {self.talks[each].chat.name for each in WRITERS}
            TwoWriters.swept += len(swept.items)
        finally:
            files.arm(None, 0)
        # A lock file may be left behind by a fault; nothing that a head names is missing.
        assert dangling(Store.open(self.root, Files(), lambda: datetime.now(UTC))) == []

    @rule(writer=st.sampled_from(WRITERS), killed=st.booleans(), reopens=st.booleans())
    def restart(self, writer: str, killed: bool, reopens: bool) -> None:
        talk = self.talks[writer]
        name = talk.chat.name
        if killed:
            files = talk.store.directory.files
            assert isinstance(files, FaultAnywhere)
            files.dead = True
            with contextlib.suppress(StorageFailed):
                talk.close()
        else:
            talk.close()
        self._start(writer)
        if name is not None and reopens:
            self.talks[writer].open(name)

    @invariant()
    def a_reader_finds_everything_whole(self) -> None:
        if not self.root.exists():
            return
        reader = Talk(self.engine("reader"), self.root)
        found = verify(reader.store, None, lambda done, total: None)
        assert found.bad == () and all("no head" in each.what for each in found.notes), found
        for name in NAMES:
            pairs = spoken(reader, name)
            assert [each for each in self.stored[name] if each not in pairs] == []

    @invariant()
    def everything_is_private(self) -> None:
        for path in self.root.rglob("*"):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # a lock that was let go behind a write, since the folder was listed
            assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path

    def teardown(self) -> None:
        try:
            for talk in self.talks.values():
                talk.close()
            for name in NAMES:
                self._replay(name)
        finally:
            shutil.rmtree(self.folder)

    def _replay(self, name: str) -> None:
        """Every stored reply is the one that a run without faults gives."""
        engine = self.engine("reader")
        written = Talk(engine, self.root)
        pairs, setup = spoken(written, name), written.store.read_log(name).setup()
        with Talk(engine, self.folder / f"replay-{name}", files=UnflushedFiles()).open(name) as talk:
            # A fault at the very beginning leaves a conversation without the system prompt that it was to have.
            talk.chat.set_system(setup.get("system"))
            for text, tokens in pairs:
                prompt = tuple(talk.chat.prompt_for(text).tokens)
                reply = talk.say(text, 4).reply_tokens
                if reply != tokens:
                    assert Reference(prompt, (reply,)).allows(engine, tokens)
                    break


def spoken(talk: Talk, name: str) -> list[tuple[str, tuple[int, ...]]]:
    lines = talk.store.read_log(name).branch()
    return [
        (str((one.message or {})["content"]), two.tokens)
        for one, two in itertools.pairwise(lines)
        if ((one.message or {})["role"], (two.message or {})["role"]) == ("user", "assistant")
    ]


def run(engines: dict[str, Engines], family: str, examples: int, steps: int) -> None:
    machine = type("Machine", (TwoWriters,), {"engines": engines, "family": family})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_B9_C07_C09_C25_C40_N08_N10_writers_sweeper_reader(engines: dict[str, Engines], family: str) -> None:
    before, swept_before = TwoWriters.faults_that_hit, TwoWriters.swept
    run(engines, family, examples=14, steps=30)
    assert TwoWriters.faults_that_hit > before + 10 and TwoWriters.swept > swept_before + 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", ["llama", "lfm2", "gemma3", "mamba"])
def test_B9_C07_C09_C25_C40_N08_N10_the_same_at_length(engines: dict[str, Engines], family: str) -> None:
    run(engines, family, examples=150, steps=40)
