"""What a turn writes, as the kernel counts it: the new range once, and next to nothing besides (C48).

On `tiny-fat` a token's state takes 128 KiB, so text, heads and log lines have to stay small beside it. The kernel
counts pages that a process dirtied on a real disk; on a tmpfs it counts none, and the tests are skipped.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Strata
from turns import SMALL, Turns, answer_of, store_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/PID/io")
TOKEN_BYTES = 131072


def on_real_disk(path: Path) -> bool:
    """Whether the kernel counts what is written there."""
    code = (
        "import os,sys; f=os.open(sys.argv[1],os.O_CREAT|os.O_WRONLY|os.O_EXCL); os.write(f,bytes(1<<20)); os.fsync(f);"
        "print(open('/proc/self/io').read())"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path / "probe")], capture_output=True, text=True).stdout
    (path / "probe").unlink(missing_ok=True)
    return any(line.startswith("write_bytes:") and int(line.split()[1]) >= 1 << 20 for line in out.splitlines())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system whose writes are counted."""
    for place in (tmp_path, Path("/var/tmp"), Path(__file__).parent.parent):
        if place.is_dir() and os.access(place, os.W_OK):
            with tempfile.TemporaryDirectory(dir=place, prefix="strata-test-") as folder:
                if on_real_disk(Path(folder)):
                    yield Path(folder)
                    return
    pytest.skip("every folder here lies on a file system whose writes the kernel does not count")


class Loop:
    """One `strata run --repl jsonl` that is asked line by line, with its account of written bytes."""

    def __init__(self, turns: Turns, name: str, *flags: str) -> None:
        self.process = turns.strata.start(*turns.arguments("--repl", "jsonl", "-C", name, *flags), env=turns.env)

    def ask(self, text: str) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"prompt": text}).encode() + b"\n")
        self.process.stdin.flush()
        answer = answer_of(self.process.stdout)
        assert answer["ok"], answer
        self._settle()
        return dict(answer["data"])

    def _settle(self) -> None:
        """Wait until the background writer has nothing left: the count stands still for half a second."""
        before, quiet = -1, 0
        while quiet < 5:
            time.sleep(0.1)
            now = self.written()
            quiet = quiet + 1 if now == before else 0
            before = now

    def written(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        raise AssertionError("no write_bytes")

    def end(self) -> None:
        assert self.process.stdin
        with self.process:
            self.process.stdin.close()
            code = self.process.wait(60)
            assert self.process.stderr
            told = self.process.stderr.read().decode()
        assert code == 0, told


def fat(strata: Strata, tiny: Callable[..., Path], disk: Path) -> Turns:
    home = disk / "home"
    here = Strata(home, strata.folder, {**strata.env, "STRATA_HOME": str(home)})
    return Turns(here, tiny("fat"), ("--greedy", "--threads", "1"), SMALL)


def payload_bytes(home: Path, name: str) -> dict[int, int]:
    """The engine's bytes of each stored range, by its end."""
    store, found = store_of(home), {}
    for state in store.read_head(name).states.values():
        for ref in state.segments:
            with store.open_segment(store.segment_path(ref.file)) as segment:
                found[ref.end] = segment.header.payload_bytes
    return found


def test_C48_each_of_20_turns_writes_its_own_range_once(strata: Strata, tiny: Callable[..., Path], disk: Path) -> None:
    turns = fat(strata, tiny, disk)
    loop = Loop(turns, "kept", "-n", "10")
    ratios, told, ends = [], [], []
    try:
        loop.ask("A first turn, which also makes the folders.")
        before = loop.written()
        for number in range(20):
            data = loop.ask(f"Turn {number}: " + "and so on")
            now = loop.written()
            tokens = data["tokens"]
            ends.append(tokens["prompt"] + tokens["generated"] - (data["finish_reason"] == "length"))
            told.append(now - before)
            before = now
    finally:
        loop.end()
    engine = payload_bytes(turns.strata.home, "kept")
    for end, kernel in zip(ends, told, strict=True):
        assert engine[end] >= 40 * TOKEN_BYTES
        ratios.append(kernel / engine[end])
    print("kernel / engine:", [round(ratio, 4) for ratio in ratios])
    assert all(1.00 <= ratio <= 1.02 for ratio in ratios), ratios


# The whole size takes most of a minute; the small one keeps the proportions.
@pytest.mark.parametrize(("held", "new"), [(1000, 50), pytest.param(4000, 200, marks=pytest.mark.slow)])
def test_C48_a_short_turn_writes_a_twentieth_of_a_long_conversation(
    strata: Strata, tiny: Callable[..., Path], disk: Path, held: int, new: int
) -> None:
    turns = fat(strata, tiny, disk)
    loop = Loop(turns, "kept", "-n", "2")
    try:
        first = loop.ask("x" * (held - 20))
        before = loop.written()
        second = loop.ask("y" * (new - 23))
        written = loop.written() - before
    finally:
        loop.end()
    assert held - 2 <= first["tokens"]["prompt"] <= held + 20
    assert abs(second["park"]["tokens"] - new) <= 3
    whole = sum(payload_bytes(turns.strata.home, "kept").values())
    print(f"{second['park']['tokens']} tokens on {held}: {written / whole:.4f} of the whole")
    assert written / whole <= 0.055
