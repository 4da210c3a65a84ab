"""A directory of ten thousand conversations: looking at it, finding the deepest match, opening one (slow mode).

The normal run does the same with five hundred, for what is counted; times are compared in slow mode alone.
"""

import io
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Strata
from directories import IDENTITY

from strata_cli.engine import Memory
from strata_cli.files import Files
from strata_cli.head import Head, SegmentRef, StateRef, encode_head
from strata_cli.identity import prefix_hashes
from strata_cli.log import Line, append_bytes
from strata_cli.match import boundaries
from strata_cli.names import automatic_name
from strata_cli.opened import open_named
from strata_cli.output import Output
from strata_cli.run_command import RunRequest, wanted_conversation
from strata_cli.segment import Draft, Kind, encode
from strata_cli.shelf import Shelf
from strata_cli.store import Store

ROOTS, ROOT_TOKENS, TURN_TOKENS, TURNS = 20, 30, 60, 3
KEY = b"k" * 32
ATTENTION = Memory(has_rows=True, has_parts=False, recurrent=False, window_tokens=0)


class OpenedFiles(Files):
    """Remembers what was opened and listed."""

    def __init__(self) -> None:
        self.opened: list[Path] = []

    def open(self, path: Path, append: bool = False) -> int:
        self.opened.append(path)
        return super().open(path, append)


def generate(root: Path, count: int) -> dict[str, list[int]]:
    """Conversations of three turns on twenty roots, written past the store: durability is not what is measured."""
    rng = random.Random(1)
    for name in ("conversations", "prefixes", "segments", "tmp", "quarantine", "counters"):
        (root / name).mkdir(parents=True, mode=0o700)
    (root / "key").write_bytes(KEY)
    (root / "lock").touch()
    made = {}
    for number in range(count):
        tokens = [number % ROOTS] * ROOT_TOKENS + [rng.randrange(30_000) for _ in range(TURNS * TURN_TOKENS)]
        name = automatic_name(f"{rng.getrandbits(64):016x}")
        write_conversation(root, name, tokens, number)
        made[name] = tokens
    return made


def write_conversation(root: Path, name: str, tokens: Sequence[int], number: int) -> None:
    ends = [0, *range(ROOT_TOKENS, len(tokens) + 1, TURN_TOKENS)]
    hashes = prefix_hashes(IDENTITY.digest, tokens, ends)
    refs = []
    for start, end in pairwise(ends):
        draft = Draft(Kind.ROWS, start, end, hashes[start], hashes[end], tokens[start:end], {})
        path = root / "segments" / draft.relative_path
        blocks, size = encode(draft, [b"rows"], KEY)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"".join(map(bytes, blocks)))
        refs.append(SegmentRef("seg", start, end, draft.relative_path, size))
    moment = f"2026-0{1 + number % 9}-{1 + number % 28:02}T10:00:00.{number:06}Z"
    head = Head(
        name,
        "auto",
        key=name[5:21],
        title="What is the meaning of all that was said about it before?",
        model={"path": "/models/model.gguf", "weights": IDENTITY.weights, "description": "llama 8B Q4_K"},
        engine={"ctx_size": 8192},
        created=moment,
        updated=moment,
        last_turn=moment,
        turns=TURNS,
        tokens=len(tokens),
        states={IDENTITY.digest.hex(): StateRef(IDENTITY.fields(), tuple(refs), (), len(tokens))},
    )
    (root / "conversations" / f"{name}.json").write_bytes(encode_head(head))
    words = "some words of text here " * 12
    lines = [
        Line(n, n - 1 or None, "message", moment, {"role": ("assistant", "user")[n % 2], "content": words}, (n,) * 40)
        for n in range(1, 2 * TURNS + 1)
    ]
    (root / "conversations" / f"{name}.jsonl").write_bytes(append_bytes(lines))


@pytest.fixture(scope="module", params=[500, pytest.param(10_000, marks=pytest.mark.slow)])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    root = tmp_path_factory.mktemp("many") / "data"
    return root, generate(root, request.param)


def opening(root: Path) -> tuple[Store, OpenedFiles]:
    files = OpenedFiles()
    return Store.open(root, files, lambda: datetime.now(UTC)), files


def test_the_deepest_match_opens_few_files(many: tuple[Path, dict[str, list[int]]]) -> None:
    root, made = many
    for tokens in list(made.values())[:: len(made) // 7]:
        for prompt in (tokens, [*tokens, 1, 2], tokens[:-5], [*tokens[:100], *[9] * 50]):
            store, files = opening(root)
            found = boundaries(Shelf.of_disk(store), IDENTITY.digest, prompt, ATTENTION, len(prompt) - 1)
            assert found[0].position == min(len(prompt) - 1, len(tokens)) or prompt[100:110] == [9] * 10
            assert found[0].position >= 90 and len(files.opened) <= 40


def test_opening_one_conversation_reads_no_other(many: tuple[Path, dict[str, list[int]]]) -> None:
    root, made = many
    name = next(iter(made))
    store, files = opening(root)
    opened = open_named(store, name, create=False, keep=True)
    assert {path.name for path in files.opened} == {f"{name}.json", f"{name}.jsonl"} and len(opened.branch) == 6
    opened.leave()
    opened.release()


def test_a_new_conversation_reads_no_other(many: tuple[Path, dict[str, list[int]]]) -> None:
    store, files = opening(many[0])
    told = io.StringIO()
    session = SimpleNamespace(store=store, out=Output("run", stdout=io.StringIO(), stderr=told))
    assert wanted_conversation(RunRequest(words=("hello",)), session) == (None, None)  # type: ignore[arg-type]
    assert files.opened == [] and "-c continues the last" in told.getvalue()


def child_s() -> float:
    """Processor time of all children so far: what else the machine does hardly changes it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def loads_s(root: Path) -> float:
    """The measure: read and parse the heads, nothing else."""
    begun = time.process_time()
    for path in (root / "conversations").iterdir():
        if path.name.endswith(".json"):
            json.loads(path.read_bytes())
    return time.process_time() - begun


@pytest.mark.parametrize("command", [["inspect", "--json"], ["prune", "-n", "--json"]])
def test_looking_at_all_of_them(
    many: tuple[Path, dict[str, list[int]]], strata: Strata, command: list[str], record_property: Callable[..., None]
) -> None:
    root, made = many
    env = strata.environment(STRATA_HOME=str(root.parent))

    def run_s() -> float:
        begun = child_s()
        done = subprocess.run([sys.executable, "-m", "strata_cli", *command], env=env, capture_output=True)
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)["data"]
        assert len(data.get("conversations", [*data.get("items", []), *data.get("kept", [])])) >= len(made)
        return child_s() - begun

    # In turns: what else the machine does slows both.
    times = [(run_s(), loads_s(root)) for _ in range(3)]
    took, measure = (min(column) for column in zip(*times, strict=True))
    record_property("ratio", took / measure)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{' '.join(command)}: {took:.2f} s, {took / measure:.1f} x {measure:.2f} s; load {load}")
    # The target is 4; held is a quarter more, for busy machines. Every plan of this prune has 9,988 items.
    assert len(made) < 10_000 or took <= 5 * measure
