"""Completion in the shells themselves: quick, with the names that there are, and never evaluating any (style.md 3)."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pexpect
import pytest
from conftest import Strata
from directories import add
from test_docs import commands
from turns import store_of

from strata_cli.complete import SAFE

ROOT = Path(__file__).parent.parent
SCRIPTS = {"bash": "strata.bash", "zsh": "_strata", "fish": "strata.fish"}
HEAVY = ("typer", "rich", "prompt_toolkit", "llama_cpp", "numpy", "jinja2", "huggingface_hub", "blake3")


def need(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"needs {shell}")
    return found


def generate() -> object:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_made_from_the_commands_is_up_to_date() -> None:
    made: dict[Path, str] = generate().made()  # type: ignore[attr-defined]
    stale = [str(path.relative_to(ROOT)) for path, text in made.items() if path.read_text() != text]
    assert stale == [], "run: python docs/generate.py"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_are_scripts(shell: str) -> None:
    subprocess.run([need(shell), "-n", ROOT / "completions" / SCRIPTS[shell]], check=True)


def test_the_command_prints_the_same_scripts(strata: Strata) -> None:
    for shell, file in SCRIPTS.items():
        assert strata("completion", shell, code=0).stdout == (ROOT / "completions" / file).read_text()
    strata("completion", "tcsh", code=2)


# What a directory and a configuration may hold


@pytest.fixture
def full(strata: Strata, tmp_path: Path) -> dict[str, str]:
    """A directory with names, with titles and strange files that are commands for a shell; the environment for it."""
    store = store_of(strata.home)
    bait = "$(touch PWNED)`touch PWNED`\\$(touch PWNED)\\`touch PWNED\\`"
    for name in ("trip", "trial", "auto-0123456789abcdef"):
        add(store, name)
    for folder in ("conversations", "prefixes"):
        (strata.home / "data" / folder).mkdir(exist_ok=True)
        for n, name in enumerate((bait, "-rf", "a b", "tr$(touch PWNED)", "tr\\$(touch PWNED)", "x;touch PWNED", "ü")):
            (strata.home / "data" / folder / f"{name}.json").write_text(json.dumps({"title": bait, "n": n}))
    (strata.home / "data" / "prefixes" / "coder.json").write_text(json.dumps({"title": bait}))
    (strata.home / "config.toml").write_text('[models.small]\npath = "$(touch PWNED).gguf"\n')
    path = commands(tmp_path / "bin")
    return strata.environment(PATH=f"{path}:/usr/bin:/bin", TERM="xterm")


def asked(strata: Strata, kind: str) -> list[str]:
    return strata("_complete", kind, code=0).stdout.split()


def test_only_safe_names_are_offered(strata: Strata, full: dict[str, str]) -> None:
    assert asked(strata, "conversations") == ["auto-0123456789abcdef", "trial", "trip"]
    assert asked(strata, "prefixes") == ["coder"] and asked(strata, "models") == ["small"]
    keys = asked(strata, "keys")
    assert "store.max_size" in keys and "models.small.path" in keys and all(map(SAFE.fullmatch, keys))


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["conversations"], ["models"]])
def test_it_never_fails_and_makes_nothing(strata: Strata, arguments: list[str]) -> None:
    result = strata("_complete", *arguments, env={"STRATA_HOME": "$NOWHERE", "HOME": "relative"}, code=0)
    assert (result.stdout, result.stderr) == ("", "")
    assert not strata.home.exists() and not list(strata.folder.iterdir())
    strata.home.mkdir()
    (strata.home / "config.toml").write_text("= broken")
    assert strata("_complete", *arguments, code=0).stderr == ""


@pytest.mark.parametrize("kind", ["conversations", "prefixes", "keys", "models"])
def test_C52_nothing_heavy_is_imported(strata: Strata, full: dict[str, str], kind: str) -> None:
    code = (
        f"import json, sys\nsys.argv = ['strata', '_complete', {kind!r}]\nfrom strata_cli.start import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=strata.env, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "strata_cli.complete" in loaded and [name for name in HEAVY if name in loaded] == []
    if kind in ("conversations", "prefixes"):
        assert [name for name in loaded if name.startswith("strata_cli.")] == [
            "strata_cli.complete", "strata_cli.errors", "strata_cli.places", "strata_cli.start",
        ]  # fmt: skip


def test_its_time_is_reported(strata: Strata, full: dict[str, str], record_property: Callable[..., None]) -> None:
    def best_ms(command: list[str]) -> float:
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            subprocess.run(command, capture_output=True, env=strata.env, check=True)
            times.append(time.perf_counter() - begun)
        return min(times) * 1000

    bare, ours = best_ms([sys.executable, "-c", "pass"]), best_ms(strata.command("_complete", "conversations"))
    record_property("completion_ms", round(ours, 1))
    print(f"completion: {ours:.0f} ms, {ours / bare:.1f} x an empty interpreter")


# The shells


def in_bash(full: dict[str, str], folder: Path, *words: str) -> list[str]:
    script = (
        f'source {ROOT}/completions/strata.bash; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _strata; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [need("bash"), "--norc", "-c", script, "bash", *words], capture_output=True, text=True, env=full, cwd=folder
    )
    assert done.stderr == "", done.stderr
    return sorted(filter(None, done.stdout.splitlines()))


def in_fish(full: dict[str, str], folder: Path, *words: str) -> list[str]:
    line = " ".join(words)
    script = f"source {ROOT}/completions/strata.fish; complete -C {line!r}"
    done = subprocess.run([need("fish"), "-N", "-c", script], capture_output=True, text=True, env=full, cwd=folder)
    assert done.stderr == "", done.stderr
    return sorted(line.split("\t")[0] for line in done.stdout.splitlines())


CASES = [
    (("strata", "pre"), ["prefix"]),
    (("strata", "run", "-C", "tr"), ["trial", "trip"]),
    (("strata", "run", "--conversation", "trip"), ["trip"]),
    (("strata", "run", "--greedy", "-m", "sm"), ["small"]),
    (("strata", "run", "--gree"), ["--greedy"]),
    (("strata", "save", "tri"), ["trial", "trip"]),
    (("strata", "prune", "auto"), ["auto-0123456789abcdef"]),
    (("strata", "prefix", "s"), ["show"]),
    (("strata", "prefix", "pin", ""), ["coder"]),
    (("strata", "config", "get", "store.max"), ["store.max_size"]),
    (("strata", "completion", "z"), ["zsh"]),
    (("strata", "run", "-n", ""), []),
    (("strata", "restore", "my"), ["my notes.strata"]),
]


@pytest.mark.parametrize("complete", [in_bash, in_fish])
@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda value: " ".join(value) if value else "nothing")
def test_what_is_offered(
    full: dict[str, str],
    strata: Strata,
    complete: Callable[..., list[str]],
    words: tuple[str, ...],
    expected: list[str],
) -> None:
    (strata.folder / "my notes.strata").write_text("")
    found = [each.replace("\\ ", " ").strip("'") for each in complete(full, strata.folder, *words)]
    assert found == expected


def test_every_option_is_offered(full: dict[str, str], strata: Strata) -> None:
    found = in_bash(full, strata.folder, "strata", "run", "-")
    for option in ("--ctx-size", "-C", "--no-save", "--no-history", "--json", "--help"):
        assert option in found


class Shell:
    """An interactive shell on a pseudo-terminal, with the completion script in it."""

    START: ClassVar = {
        "bash": (["--norc", "--noprofile", "-i"], "PS1='READY> '; source {script}"),
        "zsh": (
            ["-f", "-i"],
            "PS1='READY> '; autoload -U compinit; compinit -u -D; zstyle ':completion:*' list-prompt ''; "
            "LISTMAX=0; source {script}",
        ),
    }

    def __init__(self, name: str, full: dict[str, str], folder: Path) -> None:
        arguments, setup = self.START[name]
        self.process = pexpect.spawn(
            need(name), arguments, env=full, cwd=str(folder), encoding="utf-8", dimensions=(40, 200), timeout=30
        )
        self.process.sendline(setup.format(script=ROOT / "completions" / SCRIPTS[name]))
        self.process.sendline("echo sta''rted")
        self.process.expect("started\r+\n")
        self.process.expect("READY> ")

    def tab(self, text: str, expected: str) -> None:
        self.process.send(text + "\t")
        time.sleep(0.5)
        self.process.send("\t")
        self.process.expect(expected, timeout=60)

    def close(self) -> None:
        self.process.close(force=True)


@pytest.mark.parametrize("name", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "expected"),
    [("strata run -C tri", "trial.{1,30}trip"), ("strata prefix show ", "coder"),
     ("strata inspect tri", "trial.{1,30}trip"), ("strata config get store.max", "store.max_size"),
     ("strata run --", "--conversation")],
)  # fmt: skip
def test_SECURITY_a_tab_in_a_real_shell_runs_nothing(
    full: dict[str, str], strata: Strata, name: str, typed: str, expected: str
) -> None:
    shell = Shell(name, full, strata.folder)
    try:
        shell.tab(typed, expected)
        time.sleep(0.5)
    finally:
        shell.close()
    for folder in (strata.folder, strata.home, strata.home / "data", Path.cwd(), Path(strata.env["HOME"])):
        assert not (folder / "PWNED").exists()
