"""Where strata's folders are: under STRATA_HOME, else where platformdirs says. Nothing is made by looking."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import UsageProblem

HOME_HINT = "set HOME, or STRATA_HOME to a folder that strata may use"


@dataclass(frozen=True)
class Places:
    """Four folders, none of which need exist.

    `config` has config.toml, `data` is the session directory, `state` has history and logs, `cache` what can
    be made again.
    """

    config: Path
    data: Path
    state: Path
    cache: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"


def find_places(environ: Mapping[str, str] = os.environ) -> Places:
    """The folders, by STRATA_HOME or platformdirs. Raises UsageProblem where none is the user's own."""
    if chosen := environ.get("STRATA_HOME", ""):
        root = _absolute(chosen)
        return Places(root, root / "data", root / "state", root / "cache")
    from platformdirs import PlatformDirs

    home = environ.get("HOME")
    # An empty or relative one would put folders into the root or the current folder.
    if home is not None and not os.path.isabs(home):
        raise UsageProblem(f"HOME is {home!r}, not an absolute path", hint=HOME_HINT)
    found = PlatformDirs("strata", appauthor=False)
    try:
        folders = (found.user_config_path, found.user_data_path, found.user_state_path, found.user_cache_path)
    except RuntimeError as error:
        raise UsageProblem("no home folder is known: HOME is not set", hint=HOME_HINT) from error
    for folder in folders:
        _check_own_place(folder)
    config, data, state, cache = folders
    # A folder of its own, since on macOS configuration and data are one folder.
    return Places(config, data / "sessions", state, cache)


def _absolute(home: str) -> Path:
    hint = "set STRATA_HOME to an absolute path"
    if home.startswith("$"):
        raise UsageProblem(f"STRATA_HOME is {home!r}: a variable that nobody replaced", hint=hint)
    try:
        return Path(home).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise UsageProblem(f"STRATA_HOME is {home!r}, which leads nowhere from here", hint=hint) from error


def _check_own_place(folder: Path) -> None:
    home = os.path.expanduser("~")
    if not folder.is_absolute() or "~" in folder.parts:
        raise UsageProblem("no home folder is known: HOME is not set", hint=HOME_HINT)
    if folder.is_relative_to(home) and not os.path.isdir(home):
        raise UsageProblem(f"the home folder {home!r} (HOME) does not exist", hint=HOME_HINT)
