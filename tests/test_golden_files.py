"""Files of every released version stay readable, for good (row B15): strata files, and llama files with a trailer."""

import json
from pathlib import Path

import made_up
import pytest
from test_archive import reader_of

from strata_cli.log import parse_log
from strata_cli.reception import Wish, look, receive
from strata_cli.slot_file import SlotFile
from strata_cli.verify import verify

TESTS = Path(__file__).parent
VERSIONS = sorted((TESTS / "golden_files").glob("v*"))


def expected(version: Path) -> dict:  # type: ignore[type-arg]
    found: dict = json.loads((TESTS / "golden" / version.name / "tiny-llama" / "expected.json").read_text())  # type: ignore[type-arg]
    return found


def test_there_are_samples() -> None:
    assert [path.name for path in VERSIONS] == ["v1"]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_B15_a_strata_file_is_restored(version: Path, tmp_path: Path) -> None:
    data = (version / "golden.strata").read_bytes()
    manifest, head, log = look(reader_of(data))
    assert (manifest.name, head.turns, manifest.total_bytes) == ("golden", 2, len(data))
    store = made_up.open_store(tmp_path / "home")
    done = receive(store, reader_of(data), Wish(trust=True))
    assert (done.turns, done.segments) == (2, len(manifest.carried)) and done.segments >= 2
    assert made_up.said(store, "golden")[::2] == expected(version)["texts"]
    assert [list(line.tokens) for line in log.branch()[1::2]] == expected(version)["replies"]
    assert verify(store, None, lambda done, total: None).bad == ()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_B15_the_trailer_of_a_llama_file_is_read(version: Path) -> None:
    with SlotFile(version / "golden.bin") as file:
        trailer = file.trailer()
        assert trailer is not None
        log = parse_log(trailer.value["log"].encode())
        assert [(line.message or {})["content"] for line in log.branch()[::2]] == expected(version)["texts"]
        assert tuple(file.tokens)[: len(log.tokens())] == log.tokens()
