"""The pages under docs/ that say `<!-- tested with: MODEL -->`: their ```sh blocks are run, in order, in one folder."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Strata

DOCS = Path(__file__).parent.parent / "docs"
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
    blocks = BLOCK.findall(text)
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
