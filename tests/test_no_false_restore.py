"""What a turn does when its state cannot be written or read, and whose state it may use.

Failures cost reading time, never the turn, never text, never a wrong reply. Rows A5, A6, B9, B11, B13, B16; cases C03,
C07, C14, C16, C23; nasty inputs N07, N08.
"""

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chats import Reference, Talk, cold
from conftest import Strata
from engine_tools import Engines, whole
from faulty_files import FaultAnywhere, tree
from turns import Turns

from strata_cli.engine import Engine, EngineFailed, Rebuild
from strata_cli.errors import NoRoom, StorageFailed
from strata_cli.files import Files
from strata_cli.turn import Policy
from strata_cli.verify import verify

NAME = "talk"
TEXTS = ["The first question.", "The second question.", "The third one."]


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    found = Engines(tiny)
    yield found
    found.close()


@pytest.fixture(params=["llama", "lfm2"])
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    return engines(request.param, threads=1)


@pytest.fixture
def llama(engines: Engines) -> Engine:
    return engines("llama", threads=1)


def talked(engine: Engine, root: Path, name: str = NAME) -> None:
    with Talk(engine, root).open(name) as talk:
        talk.say_all(TEXTS)


def sound(engine: Engine, root: Path) -> bool:
    found = verify(Talk(engine, root).store, None, lambda done, total: None)
    return found.bad == () and all("no head" in each.what for each in found.notes)


def state_files(root: Path) -> list[Path]:
    return [path for path in (root / "segments").glob("*/*") if path.suffix in (".seg", ".part")]


def rows(root: Path) -> dict[str, tuple[int, bytes]]:
    """The rows on disk; parts are thinned as a conversation goes on."""
    return {name: each for name, each in tree(root / "segments").items() if name.endswith(".seg")}


def stored_tokens(engine: Engine, root: Path) -> int:
    """How far a new process could restore the conversation."""
    with Talk(engine, root, policy=Policy(save=False, min_tokens=0)).open(NAME) as talk:
        return talk.chat.plan("Go on.")[1].position


class FullDisk(Files):
    """Takes `room` bytes of state and not one more; text is small enough to fit always."""

    def __init__(self, room: int, code: int = errno.ENOSPC) -> None:
        self.room, self.code = room, code

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        if reserve_bytes > max(4096, self.room):
            raise OSError(self.code, os.strerror(self.code))
        self.room -= reserve_bytes if reserve_bytes > 4096 else 0
        return super().create(path, reserve_bytes)


@pytest.mark.parametrize("room", [0, 20_000, 60_000])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_A6_B9_C07_N08_a_full_disk_costs_state_and_no_turn(
    engine: Engine, tmp_path: Path, room: int, code: int
) -> None:
    root = tmp_path / "s"
    talked(engine, root)
    before, stored = rows(root), stored_tokens(engine, root)
    with Talk(engine, root, files=FullDisk(room, code)).open(NAME) as talk:
        results = [talk.say(f"Question {i}.") for i in range(4)]
    assert all(len(result.reply_tokens) for result in results)
    # The writer works behind the chat: what became of a turn's state is known once the process ends.
    skipped = [result.parked.skipped for result in results if result.parked.skipped not in (None, "unchanged")]
    assert skipped and set(skipped) <= ({"failed"} if code == errno.EIO else {"no_room", "failed"})
    assert any("not saved" in warning or "space" in warning for warning in talk.warnings)
    assert before.items() <= rows(root).items() and sound(engine, root)
    assert stored_tokens(engine, root) >= stored, "what was stored is lost to a failed write"
    assert [path for path in (root / "tmp").iterdir() if path.suffix == ".tmp"] == []
    right = cold(engine, root, tmp_path / "cold", NAME, "Go on.")
    with Talk(engine, root).open(NAME) as talk:
        result = talk.say("Go on.")
    assert right.allows(engine, result.reply_tokens) and result.reused_tokens >= stored
    with Talk(engine, root).open(NAME) as talk:
        assert talk.say("Again.").not_reused is None


def test_A6_B9_C07_any_one_failing_call_costs_at_most_state(llama: Engine, tmp_path: Path) -> None:
    """Each call of a turn fails once; the old version stays whole, and the next turn answers rightly."""
    talked(llama, tmp_path / "start")
    at, hit = 0, True
    while hit and at < 80:
        root = tmp_path / f"s{at}"
        shutil.copytree(tmp_path / "start", root)
        files = FaultAnywhere()
        files.arm(at, errno.ENOSPC if at % 2 else errno.EIO)
        talk = Talk(llama, root, files=files)
        try:
            talk.open(NAME)
            talk.say("Go on.")
        except StorageFailed as error:
            assert error.exit_code in (1, 15)
        finally:
            hit = files.fired
            files.arm(None, 0)
            talk.close()
        assert sound(llama, root), at
        with Talk(llama, root).open(NAME) as talk:
            assert talk.say("And on.").source == "disk", at
        shutil.rmtree(root)
        at += 1
    assert at > 15


def test_C07_N08_a_limit_on_file_size_is_an_error_and_no_signal(
    strata: Strata, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    turns = Turns(strata, tiny("llama"), ("--greedy", "-n", "6", "--threads", "1"))
    turns.say(NAME, "One.")
    limited = subprocess.run(
        turns.strata.command(*turns.arguments("-C", NAME, "Two. " * 60)),
        env=strata.environment(**turns.env),
        cwd=strata.folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
        timeout=60,
    )
    assert limited.returncode == 0, limited
    assert b'"skipped": "no_room"' in limited.stdout and b"not saved" in limited.stdout
    assert strata("inspect", "--verify", "--json", code=0).data["bad"] == []
    assert turns.say(NAME, "Three.")["tokens"]["reused"] > 0
    assert turns.say(NAME, "Four.")["restore"]["not_reused"] is None


@pytest.mark.parametrize("code, reason", [(errno.EACCES, "permission"), (errno.EIO, "io")])
def test_B13_C16_a_file_that_cannot_be_read_now_is_kept_and_restores_later(
    engine: Engine, tmp_path: Path, code: int, reason: str
) -> None:
    class Unreadable(Files):
        def open(self, path: Path, append: bool = False) -> int:
            if path.suffix in (".seg", ".part"):
                raise OSError(code, os.strerror(code))
            return super().open(path, append)

    root = tmp_path / "s"
    talked(engine, root)
    before = rows(root)
    right = cold(engine, root, tmp_path / "cold", NAME, "Go on.")
    with Talk(engine, root, files=Unreadable()).open(NAME) as talk:
        result = talk.say("Go on.")
    assert right.allows(engine, result.reply_tokens) and result.reused_tokens == 0
    assert result.not_reused is not None and result.not_reused.code == reason and talk.warnings
    assert before.items() <= rows(root).items() and not list((root / "quarantine").iterdir())
    with Talk(engine, root).open(NAME) as talk:
        assert talk.say("And on.").source == "disk"


def test_B11_C03_a_failed_restore_leaves_the_live_conversation_as_it_was(engine: Engine, tmp_path: Path) -> None:
    """A bad file is met in the verifying pass: the engine still answers what it held, without reading it again."""
    root, other = tmp_path / "s", tmp_path / "other"
    talked(engine, root)
    talked(engine, root, "victim")
    for path in state_files(root):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    shutil.copytree(root, other)
    with Talk(engine, tmp_path / "fresh").open(NAME) as talk:
        talk.say_all(TEXTS)
        held = whole(engine)  # type: ignore[arg-type]
        plan = talk.chat.plan("Go on.")[1]
        assert plan.position > 0
        assert held == whole(engine)  # type: ignore[arg-type]
        result = talk.say("Go on.")
        assert result.source == "live" and result.not_reused is None
    right = Reference((), (result.reply_tokens,))
    with Talk(engine, other).open(NAME) as talk:
        again = talk.say("Go on.")
    assert again.reused_tokens == 0 and again.not_reused is not None and again.not_reused.code == "bad"
    assert again.reply_tokens in right.replies or again.reply_tokens


def test_B11_C03_an_engine_that_fails_while_applying_is_emptied_and_the_turn_is_read(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    talked(engine, root)
    right = cold(engine, root, tmp_path / "cold", NAME, "Go on.")
    real = engine.rebuild

    def failing(plan: Rebuild) -> None:
        real(plan)
        engine.clear()
        raise EngineFailed("llama.cpp took 7 of 8 bytes")

    with Talk(engine, root).open(NAME) as talk:
        monkeypatch.setattr(engine, "rebuild", failing)
        result = talk.say("Go on.")
    assert result.reused_tokens == 0 and right.allows(engine, result.reply_tokens)
    assert result.not_reused is not None and talk.warnings


def test_C14_every_conversation_gets_its_own_state(engine: Engine, tmp_path: Path) -> None:
    """Five conversations with the same system prompt and first message, each with its own word, interleaved."""
    words = ["amber", "birch", "cedar", "delta", "ember"]
    alone: dict[str, list[tuple[int, ...]]] = {}
    for word in words:
        with Talk(engine, tmp_path / word).open(word) as talk:
            alone[word] = talk.say_all(["Hello.", f"The word is {word}.", "Which word?", "Once more?"])
    for i, text in enumerate(["Hello.", "The word is {}.", "Which word?", "Once more?"]):
        for word in words if i % 2 else reversed(words):
            with Talk(engine, tmp_path / "all").open(word) as talk:
                result = talk.say(text.format(word))
            assert result.reply_tokens == alone[word][i], (word, i)
            assert i == 0 or result.source == "disk"
    assert len({tuple(each) for each in alone.values()}) > 1 and sound(engine, tmp_path / "all")


# B16: whose state it is


def test_B16_state_from_another_directory_is_never_matched(engine: Engine, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    talked(engine, theirs)
    with Talk(engine, mine).open("other") as talk:
        talk.say("Hello.")
    shutil.copytree(theirs / "segments", mine / "segments", dirs_exist_ok=True)
    before = tree(theirs / "segments")
    with Talk(engine, mine).open(NAME) as talk:
        results = [talk.say(text) for text in TEXTS]
    # They said the same, so every file stood ready under its name, and none of theirs was used.
    assert all(result.source in ("none", "live") for result in results)
    assert tree(theirs / "segments") == before
    store = Talk(engine, mine).store
    for path in state_files(mine):
        with store.verified(path) as segment:
            assert segment.own, "read again here, and sealed here"
    with Talk(engine, mine).open(NAME) as talk:
        assert talk.say("Go on.").source == "disk"


def test_B16_a_copied_directory_with_its_key_is_one_directory(engine: Engine, tmp_path: Path) -> None:
    talked(engine, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with Talk(engine, tmp_path / "two").open(NAME) as talk:
        assert talk.say("Go on.").source == "disk"


# C23 and N07: context sizes


@pytest.fixture(scope="module")
def long_talk(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A conversation of some 600 tokens, and how many it has with the next question."""
    root = tmp_path_factory.mktemp("long") / "s"
    with Talk(engines("llama", threads=1), root).open(NAME) as talk:
        talk.say_all(["word " * 50, "more " * 50, "and on"])
        needed = len(talk.chat.prompt_for("Next.").tokens)
    assert needed > 600
    return root, needed


@pytest.mark.parametrize("less", [None, -300, 1, 0, -1, 200, 500])
def test_C23_N07_a_context_that_is_too_small_is_refused_with_the_size_it_needs(
    long_talk: tuple[Path, int], tiny: Callable[..., Path], engines: Engines, tmp_path: Path, less: int | None
) -> None:
    root, needed = tmp_path / "s", long_talk[1]
    shutil.copytree(long_talk[0], root)
    size = 4096 if less is None else needed - less
    engine = engines("llama", threads=1, ctx_size=size)
    before = tree(root)
    with Talk(engine, root).open(NAME) as talk:
        if size > needed:
            result = talk.say("Next.", 0 if size < needed + 5 else 4)
            assert result.source == "disk" and result.reply_tokens and result.not_reused is None
            assert len(result.reply_tokens) <= size - needed + 1
            return
        with pytest.raises(NoRoom) as caught:
            talk.say("Next.")
    assert f"{needed:,}" in caught.value.message and "--ctx-size" in caught.value.hint
    assert tree(root) == before
    with Talk(engines("llama", threads=1, ctx_size=2048), root).open(NAME) as talk:
        assert talk.say("Next.").not_reused is None
