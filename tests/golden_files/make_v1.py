"""How the sample files of version 1 were made, from the golden directory: `python tests/golden_files/make_v1.py`.

Only for the record. Samples of a released version are never made again: that they can still be read is their use.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]


def make() -> None:
    import json

    import tiny_models
    from chats import Talk

    from strata_cli.asked import absorb
    from strata_cli.engine import EngineOptions
    from strata_cli.llama_engine import load
    from strata_cli.slot_file import file_digest
    from strata_cli.slots import trailer_for
    from strata_cli.snapshot import execute_save, plan_save, read_conversation
    from strata_cli.turn import Watch

    target = HERE / "v1"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "home"
        shutil.copytree(HERE.parent / "golden" / "v1" / "tiny-llama", root)
        weights = json.loads((root / "expected.json").read_text())["weights"]
        engine = load(tiny_models.write(Path(made), "llama"), EngineOptions(ctx_size=512, threads=1), digest=weights)
        with Talk(engine, root).open("golden") as talk, (target / "golden.strata").open("wb") as out:
            execute_save(plan_save(talk.store, "golden"), talk.store, out.write, lambda _: None)
            absorb(talk.chat, Watch())
            path = target / "golden.bin"
            body = engine.save_file(path)
            with path.open("r+b") as file:
                digest = file_digest(file.fileno(), body)
                head, log = read_conversation(talk.store, "golden")
                file.seek(0, os.SEEK_END)
                file.write(trailer_for(talk.store, head, log, engine, body, digest))
        engine.close()


if __name__ == "__main__":
    make()
