"""A shell script with `strata`, `cp` and `kill` alone: snapshots of an agent's session, and the way back."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import made_up
from conftest import Strata
from test_docs import commands

SNAPSHOT_EVERY_TURN = """
say() { strata run -C agent --greedy -n 12 --json "$1"; }
say "Step one: list the files." > 1.json
strata save agent -q -o snap.strata && cp snap.strata 1.strata
say "Step two: read the first." > 2.json
strata save agent -q -o snap.strata && cp snap.strata 2.strata
strata run -C agent --greedy -n 4000 "Step three: think for long." > killed.txt &
AGENT=$!
while [ ! -s killed.txt ]; do :; done
kill -9 $AGENT
wait $AGENT || true
strata restore 1.strata --replace
say "Step two: read the first." > 2-again.json
strata restore 2.strata --replace
say "Step three: be brief." > 3.json
strata save agent -q --as kept
say "Step four." > 4.json
strata save kept -q --as agent --replace
say "Step four." > 4-again.json
"""


def test_a_script_snapshots_kills_restores_and_goes_on(
    strata: Strata, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    env = strata.environment(
        PATH=f"{commands(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}",
        STRATA_MODEL=str(tiny("llama")),
        STRATA_THREADS="1",
        STRATA_AUTO_SESSIONS_MIN_TOKENS="0",
    )
    (tmp_path / "script.sh").write_text(f"set -eu\n{SNAPSHOT_EVERY_TURN}")
    done = subprocess.run(
        ["bash", tmp_path / "script.sh"], capture_output=True, cwd=strata.folder, env=env, timeout=200
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    said = {path.stem: last(path) for path in strata.folder.glob("*.json")}
    assert said["2-again"]["reply_tokens"] == said["2"]["reply_tokens"]
    assert said["4-again"]["reply_tokens"] == said["4"]["reply_tokens"]
    for again, before in (("2-again", "1"), ("3", "2"), ("4-again", "3")):
        tokens, earlier = said[again]["tokens"], said[before]["tokens"]
        assert said[again]["restore"]["not_reused"] is None, again
        assert tokens["reused"] >= earlier["prompt"] + earlier["generated"] - 1, again
    store = made_up.open_store(strata.home / "data")
    texts = made_up.said(store, "agent")
    asked = ["Step one: list the files.", "Step two: read the first.", "Step three: be brief.", "Step four."]
    assert texts[0::2] == asked
    assert len(store.read_log("agent").alternatives()) >= 2, "what was replaced stays"
    checked = strata("inspect", "--verify", "--json", code=0).envelope["data"]
    assert checked["bad"] == []


def last(path: Path) -> dict:  # type: ignore[type-arg]
    import json

    found: dict = json.loads(path.read_text().splitlines()[-1])["data"]  # type: ignore[type-arg]
    return found
