"""The ```sh blocks of the README and of docs/ are run, in order, a page in one folder.

A page under docs/ says with which model: `<!-- tested with: MODEL -->`. What installs strata is run by CI instead.
"""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Strata

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MARK = re.compile(r"<!-- tested with: (tiny|demo) -->")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages_to_run() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if MARK.search(path.read_text())]


def commands(folder: Path) -> Path:
    """`strata` as a command, and an `ssh` that is another home on this machine."""
    folder.mkdir()
    strata = f'#!/bin/sh\nexec "{sys.executable}" -m strata_cli "$@"\n'
    ssh = f'#!/bin/sh\nshift\nSTRATA_HOME="{folder}/far" exec "$@"\n'
    for name, text in (("strata", strata), ("ssh", ssh)):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    return folder


@pytest.mark.parametrize("page", pages_to_run(), ids=lambda path: str(path.relative_to(DOCS)))
def test_the_blocks_of_a_page_run(
    page: Path, strata: Strata, tiny: Callable[..., Path], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    text = page.read_text()
    mark = MARK.search(text)
    assert mark is not None
    model = tiny("llama") if mark[1] == "tiny" else request.getfixturevalue("demo_model")
    run_blocks(BLOCK.findall(text), model, strata, tmp_path)


def run_blocks(blocks: list[str], model: Path, strata: Strata, tmp_path: Path) -> None:
    assert blocks, "a page that says it is tested has something to run"
    env = strata.environment(
        PATH=f"{commands(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}",
        STRATA_MODEL=str(model),
        STRATA_THREADS="1",
        STRATA_AUTO_SESSIONS_MIN_TOKENS="0",
    )
    # `unset STRATA_HOME` on a page means: back to the home that the tests give.
    script = "\n".join(blocks).replace("unset STRATA_HOME", f'export STRATA_HOME="{strata.home}"')
    (tmp_path / "page.sh").write_text(f"set -eux\n{script}")
    done = subprocess.run(
        ["bash", tmp_path / "page.sh"], capture_output=True, cwd=strata.folder, env=env, timeout=250, text=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]


def test_the_blocks_of_the_readme_run(strata: Strata, tiny: Callable[..., Path], tmp_path: Path) -> None:
    blocks = [block for block in BLOCK.findall((ROOT / "README.md").read_text()) if "pip install" not in block]
    models = Path(strata.env["HOME"]) / "models"
    models.mkdir()
    for name in ("qwen.gguf", "big.gguf"):
        (models / name).symlink_to(tiny("llama"))
    short = [block.replace("-n 60", "-n 16") for block in blocks]
    # The tiny model knows nothing of 32,768 tokens.
    run_blocks([block.replace("ctx_size 32768", "ctx_size 2048") for block in short], tiny("llama"), strata, tmp_path)


def test_every_shell_block_belongs_to_a_page_that_is_run() -> None:
    untested = [
        path for path in DOCS.rglob("*.md") if BLOCK.search(path.read_text()) and not MARK.search(path.read_text())
    ]
    assert untested == []


def test_every_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not link.startswith("http") and not (page.parent / link).exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []


IMAGE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")


def images() -> set[Path]:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    return {(page.parent / link).resolve() for page in pages for link in IMAGE.findall(page.read_text())}


def test_every_picture_is_shown_somewhere() -> None:
    made = set(DOCS.rglob("*.svg"))
    assert made and images() == made


@pytest.mark.parametrize("image", sorted(images()), ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_tells_no_path_and_fetches_nothing(image: Path) -> None:
    tree = ElementTree.parse(image)
    said = "".join(tree.getroot().itertext()).replace("\xa0", " ")
    assert said.strip(), "it has text"
    assert re.findall(r"/(?:home|root|tmp|var|private|Users|usr|opt|srv|mnt|work)\b[^ ]*", said) == []
    addresses = set(re.findall(r"https?://[^\s\"')]+", image.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"} and "@font-face" not in said and "url(//" not in said
    assert set(re.findall(r"\d{4}-\d\d-\d\d", said)) <= {"2026-01-05"}, "dates are those of docs/screenshots.py"


def test_every_page_is_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text() + (DOCS / "reference" / "formats.md").read_text()
    assert [path.name for path in DOCS.rglob("*.md") if path.name not in text] == []
