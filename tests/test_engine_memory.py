"""B12 on the engine: peak anonymous memory while state goes out and comes back, by the kernel's own account.

2,048 tokens of the model with the K/V geometry of an 8B one are 256 MiB of state, four arenas.
"""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_BYTES = (64 + 32) << 20
MEASURE = textwrap.dedent(
    """
    import json, sys, threading, time
    from pathlib import Path
    sys.path[:0] = {paths!r}
    import made_up
    from engine_tools import text_tokens
    from strata_cli.engine import EngineOptions, Rebuild
    from strata_cli.identity import prefix_hashes
    from strata_cli.llama_engine import load
    from strata_cli.match import boundaries
    from strata_cli.restore import Live, execute, plan_restore
    from strata_cli.segment import Draft, Kind
    from strata_cli.shelf import Shelf
    from strata_cli.slot_file import SlotFile

    def anonymous():
        for line in open("/proc/self/smaps_rollup"):
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024

    peak, running = 0, True

    def watch():
        global peak
        while running:
            peak = max(peak, anonymous())
            time.sleep(0.002)

    engine = load(Path(sys.argv[1]), EngineOptions(ctx_size=2304, threads=2), digest="b3:" + "0" * 64)
    store = made_up.open_store(Path(sys.argv[2]))
    tokens = text_tokens(2048)
    engine.read(tokens)
    engine.capture(0, 64).release()  # what the allocator keeps for itself is no part of the measure
    threading.Thread(target=watch, daemon=True).start()
    found = {{}}

    def measured(name, action):
        global peak
        before = peak = anonymous()
        action()
        time.sleep(0.01)
        found[name] = max(peak, anonymous()) - before

    def save():
        for start, end in engine.chunks(0, len(tokens)):
            hashes = prefix_hashes(engine.identity.digest, tokens, (start, end))
            metadata = {{"identity": engine.identity.digest.hex()}}
            draft = Draft(Kind.ROWS, start, end, hashes[start], hashes[end], tuple(tokens[start:end]), metadata)
            captured = engine.capture(start, end)
            store.write_segment(draft, [captured.rows])
            captured.release()

    def restore():
        shelf = Shelf.of_disk(store)
        stored = boundaries(shelf, engine.identity.digest, tokens, engine.memory, len(tokens))
        plan = plan_restore(tokens, Live(0, 0), stored, engine.memory)
        assert plan.position == len(tokens), plan
        execute(plan, engine, shelf)

    path = Path(sys.argv[2]) / "slot.bin"

    def adopt():
        with SlotFile(path) as file:
            with file.state as state:
                size = engine.check_state(state, 0, len(tokens), whole=True)
            engine.rebuild(Rebuild(tokens, 0, rows=[file.prefixed_state(size)]))

    measured("save", save)
    engine.clear()
    measured("restore", restore)
    measured("save llama file", lambda: engine.save_file(path))
    engine.clear()
    measured("restore llama file", adopt)
    found["state"] = path.stat().st_size
    running = False
    print(json.dumps(found))
    """
)


@pytest.mark.slow
def test_B12_on_the_engine(tiny: Callable[..., Path], tmp_path: Path) -> None:
    import json

    script = tmp_path / "measure.py"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    script.write_text(MEASURE.format(paths=paths))
    done = subprocess.run(
        [sys.executable, script, tiny("fat"), tmp_path / "home"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found.pop("state") > 256 << 20
    assert {name: size for name, size in found.items() if size > LIMIT_BYTES} == {}
