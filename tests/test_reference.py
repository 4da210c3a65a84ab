"""docs/reference/ against the program: every key of every envelope, every setting, every exit status."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from turns import Forked, Turns, fork_server, forked  # noqa: F401

from strata_cli import errors
from strata_cli.cli.pages import EXITS
from strata_cli.cli.tree import command_tree
from strata_cli.config import OTHER_VARIABLES
from strata_cli.settings import KEYS, MODEL_KEYS
from strata_cli.slash import COMMANDS

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PAGE = (REFERENCE / "json.md").read_text()
OPEN = re.compile(r"identities\..*|counters\.refusals\..*|engine\..*|machine\..*|message\..*|rope\..*")


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:  # noqa: F811
    return Turns(forked, tiny("llama"))


def sections() -> dict[str, str]:
    """The page's sections by each command that their title names."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return {title: text for titles, text in zip(parts[1::2], parts[2::2], strict=True) for title in titles.split(", ")}


def keys(value: Any, within: str = "") -> Iterator[str]:
    """Every key with those above it, lists marked: `plan[].what`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{within}{key}"
            yield from keys(inner, f"{within}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, f"{within.rstrip('.')}[].")


def missing(data: dict[str, Any], text: str) -> list[str]:
    """Keys whose last word stands nowhere in the section."""
    words = {part for found in re.findall(r"`([^`]+)`", text) for part in re.split(r"[.,\s]|\[\]", found)}
    return sorted(
        {key for key in keys(data) if not OPEN.match(key) and key.rpartition(".")[2].rstrip("[]") not in words}
    )


def test_the_envelope_and_every_command_have_a_section() -> None:
    titles = sections()
    for command in command_tree().leaves():
        assert command.name.split()[0] in titles or command.name in titles, command.name
    for slash in COMMANDS:
        assert f"`{slash.word}`" in PAGE, slash.word


def test_every_key_of_every_command_is_on_the_page(turns: Turns) -> None:
    strata, env = turns.strata, {"STRATA_MODEL": str(turns.model), **turns.env}
    (strata.folder / "prompt.txt").write_text("Something else.")
    commands = [
        ["run", "-C", "a", *turns.flags, "Hello"],
        ["run", "-C", "a", "--plan", "More"],
        ["save", "a", "-o", "a.strata"],
        ["restore", "a.strata", "--as", "b"],
        ["restore", "a.strata", "--as", "c", "--plan"],
        ["inspect"],
        ["inspect", "a", "--transcript"],
        ["inspect", "a.strata"],
        ["inspect", "--verify"],
        ["inspect", "a", "--why", "prompt.txt"],
        ["prune", "b", "-n"],
        ["prune", "b", "--yes"],
        ["prefix", "add", "p", "-s", "You are brief."],
        ["prefix", "list"],
        ["prefix", "show", "p"],
        ["prefix", "pin", "p"],
        ["prefix", "rm", "p", "--yes"],
        ["config", "list"],
        ["config", "get", "model"],
        ["config", "path"],
        ["config", "set", "threads", "1"],
        ["completion", "bash"],
    ]
    page, wrong = sections(), {}
    for arguments in commands:
        result = strata(*arguments, "--json", env=env, code=0)
        assert result.stderr == "", (arguments, result.stderr)
        envelope = result.envelope
        assert set(envelope) == {"strata", "command", "ok", "exit_code", "data", "error", "warnings"}
        name = " ".join(arguments[:2])
        text = page.get(name) or page[arguments[0]]
        text += page["inspect"] if name == "prefix list" else ""
        text += page["plan"] if "plan" in envelope["data"] else ""
        if absent := missing(envelope["data"], text):
            wrong[" ".join(arguments)] = absent
    assert wrong == {}


def test_every_key_of_the_loop_is_on_the_page(turns: Turns) -> None:
    (turns.strata.folder / "notes.txt").write_text("Notes.")
    items: list[dict[str, Any]] = [{"prompt": "One."}, {"prompt": "Two."}]
    for line in (
        "/help", "/list", "/tokens", "/retry", "/history 1", "/set temp 0.5", "/system Be brief.", "/pin", "/prefix",
        "/read notes.txt", "/undo", "/edit One!", "/fork other", "/save", "/save -o x.strata", "/new", "/switch other",
        "/exit",
    ):  # fmt: skip
        items.append({"command": line.split()[0], "args": line.split()[1:]})
    result = turns.run("--repl", "jsonl", "-C", "talk", stdin="\n".join(map(json.dumps, items)), code=0)
    page, wrong, seen = sections(), {}, set()
    for line in result.lines:
        if "event" in line:
            text, data = page["Events"], {key: value for key, value in line.items() if key != "event"}
            assert f"`{line['event']}`" in text
        else:
            assert line["ok"], line
            seen.add(line["command"])
            data, text = line["data"], page["The loop"]
            text += page["run"] if line["command"] in ("run", "/retry", "/edit") else ""
            text += page["inspect"] if line["command"] in ("/list", "/prefix") else ""
            text += page["save"] + page["plan"] if line["command"] == "/save" else ""
            text += page["run"] if line["command"] == "/tokens" else ""
            if line["command"] == "/set":
                continue
        if absent := missing(data, text):
            wrong[str(line.get("command", line.get("event")))] = absent
    assert wrong == {}
    assert {slash.word for slash in COMMANDS} - seen == {"/restore"}


def test_a_failure_is_an_envelope_too(turns: Turns) -> None:
    envelope = turns.strata("prune", "nobody", "--yes", "--json", code=10).envelope
    assert set(envelope["error"]) == {"code", "message", "hint"} and envelope["data"] == {}
    for key in ("code", "message", "hint", *envelope):
        assert f"`{key}`" in PAGE


def test_every_setting_is_explained_with_its_default() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", page, re.MULTILINE))
    said = {
        key.full_name: "none" if key.written_default is None else str(key.written_default).lower()
        if isinstance(key.written_default, bool) else str(key.written_default)
        for key in KEYS
    }  # fmt: skip
    assert rows == said
    for name in (*(key.name for key in MODEL_KEYS), *OTHER_VARIABLES):
        assert f"`{name}`" in page, name


def test_every_exit_status_is_explained() -> None:
    page = (REFERENCE / "exit-codes.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| ([^|]*)\|", page, re.MULTILINE))
    assert list(rows) == [code for code, _ in EXITS]
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.StrataError)]
    for kind in kinds:
        assert f"`{kind.code}`" in rows[str(kind.exit_code)], kind


def test_every_command_says_which_statuses_it_can_return() -> None:
    known = {code for code, _ in EXITS}
    for command in command_tree().leaves():
        assert command.epilog.startswith("Exit status: 0 done"), command.name
        assert set(re.findall(r"(?:^|, |: )(\d+) ", command.epilog)) <= known, command.name
        assert re.search(r"^Example: .*strata ", command.help, re.MULTILINE), command.name
