"""What a newcomer types first, and what is said then. Each of these was a stumble of somebody who tried it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, Strata
from turns import SMALL, Forked, fork_server, forked  # noqa: F401


@pytest.fixture
def cli(forked: Forked) -> Strata:  # noqa: F811
    return forked


@pytest.fixture
def run(cli: Strata, tiny: Callable[..., Path]) -> Callable[..., Result]:
    """One turn as a person sees it."""

    def turn(*words: str, **how: Any) -> Result:
        return cli("run", "-m", tiny("llama"), "--greedy", "--threads", "1", *words, env=SMALL, **how)

    return turn


@pytest.mark.parametrize("words", [[], ["config"], ["prefix"]])
def test_a_command_that_needs_more_words_shows_its_help_as_it_stands(cli: Strata, words: list[str]) -> None:
    done = cli(*words, code=2)
    assert done.stdout == "" and "\nCommands:\n" in done.stderr
    assert done.stderr.startswith(f"Usage: {' '.join(['strata', *words])} [OPTIONS]")
    assert json.loads(cli(*words, "--json", code=2).stdout)["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "-n", "abc", "hi"], "'abc' is not a whole number"),
        (["run", "--temp", "warm", "hi"], "'warm' is not a number"),
        (["run", "--plna", "hi"], "No such option: --plna"),
        (["restore"], "Missing argument"),
    ],
)
def test_a_usage_error_speaks_plainly_and_names_the_commands_own_help(cli: Strata, words: list[str], told: str) -> None:
    line = cli(*words, code=2).stderr
    assert told in line and f"(strata {words[0]} --help)" in line and "range" not in line


def test_an_empty_home_says_how_to_begin(cli: Strata) -> None:
    assert "`strata run` begins one" in cli("inspect", code=0).stderr
    assert "strata prefix add" in cli("prefix", "list", code=0).stderr


def test_a_wrong_model_names_those_that_have_names(cli: Strata) -> None:
    cli("config", "set", "models.big.path", "/models/big.gguf", code=0)
    line = cli("run", "-m", "bigg", "hi", code=14).stderr
    assert "no such file, and no model of that name" in line and "names here: big" in line
    line = cli("run", "hi", env={"STRATA_MODEL": "/nowhere.gguf"}, code=14).stderr
    assert "/nowhere.gguf: no such file: it is what the setting `model` says" in line


def test_a_name_in_another_script_is_shown_and_the_rule_is_clear(cli: Strata) -> None:
    line = cli("run", "-C", "\u65c5\u884c", "hi", code=2).stderr
    assert "'\u65c5\u884c' cannot be a name" in line and "A-Z, a-z, 0-9" in line


def test_a_cut_off_answer_is_told(run: Callable[..., Result]) -> None:
    told = run("-n", "5", "-C", "a", "hello", code=0)
    assert "the answer was cut off: 5 tokens, as -n says" in told.stderr
    assert "cut off" not in run("-n", "5", "-q", "-C", "b", "hello", code=0).stderr


def test_empty_standard_input_is_told(run: Callable[..., Result]) -> None:
    told = run("-n", "3", "-", "Sum this up", stdin="", code=0)
    assert "standard input was empty" in told.stderr


def test_a_quiet_archive_is_an_archive(run: Callable[..., Result], cli: Strata, tmp_path: Path) -> None:
    """`-q` prints the name, but standard output is the archive here: what is appended makes it bad."""
    run("-n", "3", "-C", "trip", "hello", code=0)
    archive = tmp_path / "trip.strata"
    command = [sys.executable, "-m", "strata_cli", "save", "trip", "-q", "-o", "-"]
    with archive.open("wb") as file:
        subprocess.run(command, stdout=file, env=cli.environment(), check=True)
    assert cli("restore", archive, "--as", "again", "-q", code=0).stdout == "again\n"


def test_a_conversation_without_segments_is_not_usable(run: Callable[..., Result], cli: Strata) -> None:
    """A fork at the root names an identity and no files."""
    run("-n", "3", "-C", "trip", "hello", code=0)
    run("--fork", "trip@0", "-C", "other", "-n", "3", "--no-save", "hi")
    facts = {each["name"]: each for each in cli("inspect", "--json", code=0).data["conversations"]}
    for each in facts.values():
        assert each["usable"] == (each["own_bytes"] + each["shared_bytes"] > 0), each


def test_words_behind_two_dashes_are_a_command_all_the_same(cli: Strata) -> None:
    assert json.loads(cli("--", "inspect", "--json", code=0).stdout)["command"] == "inspect"
    assert "ctx_size" in cli("--", "config", "list", code=0).stdout


def test_a_configuration_that_is_no_file_can_be_found(cli: Strata) -> None:
    """A link to itself, a folder: the commands that mend it say where it is."""
    cli.home.mkdir()
    target = cli.home / "config.toml"
    target.symlink_to(target)
    assert "leads to itself" in cli("inspect", code=2).stderr
    assert cli("config", "path", code=0).stdout.strip() == str(target)
    target.unlink()
    target.mkdir()
    assert cli("config", "path", code=0).stdout.strip() == str(target)


def test_a_repeat_penalty_changes_the_reply(run: Callable[..., Result]) -> None:
    """On the real engine: its signature is the engine's, and it has an effect."""
    replies = {run("-q", "-n", "40", "--repeat-penalty", penalty, "hi", code=0).stdout for penalty in ("1.0", "5.0")}
    assert len(replies) == 2
