"""How the samples of format version 1 were made: `python tests/golden/make_v1.py`, with `tests` on the path.

Only for the record. Samples of a released version are never made again: that they can still be read is their use.
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

TEXTS = ["Hi.", "And?"]
NAME = "golden"


def make(family: str, models: Path) -> None:
    import tiny_models
    from blake3 import blake3
    from chats import Talk

    from strata_cli.engine import EngineOptions
    from strata_cli.llama_engine import load

    path = tiny_models.write(models, family)
    digest = "b3:" + blake3(path.read_bytes()).hexdigest()
    engine = load(path, EngineOptions(ctx_size=512, threads=1), digest=digest)
    root = HERE / "v1" / f"tiny-{family}"
    shutil.rmtree(root, ignore_errors=True)
    with Talk(engine, root) as talk:
        talk.chat.remembered_model = {"path": f"tiny-{family}.gguf", "weights": digest}
        talk.open(NAME)
        replies = talk.say_all(TEXTS)
    for folder in ("tmp", "quarantine", "prefixes"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for left in [*root.rglob("*.lock"), root / "lock"]:
        left.unlink(missing_ok=True)
    expected = {"texts": TEXTS, "replies": replies, "state_format": engine.identity.state_format, "weights": digest}
    (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    engine.close()


if __name__ == "__main__":
    for family in ("llama", "lfm2"):
        make(family, Path(sys.argv[1]))
