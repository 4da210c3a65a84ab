"""Samples of every released format version stay readable, for good (row B15). How each was made stands beside it."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chats import Talk, cold

from strata_cli.engine import EngineOptions
from strata_cli.files import Files
from strata_cli.llama_engine import load
from strata_cli.store import Store
from strata_cli.verify import verify

SAMPLES = sorted((Path(__file__).parent / "golden").glob("v*/*"))
NAME = "golden"


def copied(sample: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A copy that may be written to, and what the sample is expected to hold."""
    root = folder / "sample"
    shutil.copytree(sample, root)
    return root, json.loads((root / "expected.json").read_text())


def test_there_are_samples_of_version_1() -> None:
    assert [f"{path.parent.name}/{path.name}" for path in SAMPLES if path.parent.name == "v1"] == [
        "v1/tiny-lfm2",
        "v1/tiny-llama",
    ]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_B15_every_file_of_a_sample_is_read_and_verifies(sample: Path, tmp_path: Path) -> None:
    root, expected = copied(sample, tmp_path)
    store = Store.open(root, Files(), lambda: datetime.now(UTC))
    found = verify(store, None, lambda done, total: None)
    assert found.bad == found.notes == () and found.checked_files >= 4
    lines = store.read_log(NAME).branch()
    assert [(line.message or {})["content"] for line in lines[::2]] == expected["texts"]
    assert [list(line.tokens) for line in lines[1::2]] == expected["replies"]
    head = store.read_head(NAME)
    assert (head.turns, len(head.states)) == (2, 1)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_B15_a_sample_restores_where_the_engine_still_reads_its_state(
    sample: Path, tmp_path: Path, tiny: Callable[..., Path]
) -> None:
    root, expected = copied(sample, tmp_path)
    # The weights are named by their sample: the model's file may be written differently by another gguf package.
    model = tiny(sample.name.removeprefix("tiny-"))
    engine = load(model, EngineOptions(ctx_size=512, threads=1), digest=expected["weights"])
    try:
        if engine.identity.state_format != expected["state_format"]:
            pytest.skip(f"this engine writes state format {engine.identity.state_format}")
        right = cold(engine, root, tmp_path / "cold", NAME, "Go on.")
        with Talk(engine, root).open(NAME) as talk:
            result = talk.say("Go on.")
        assert (result.source, result.not_reused, talk.warnings) == ("disk", None, [])
        assert right.allows(engine, result.reply_tokens)
    finally:
        engine.close()
