"""Models from Hugging Face by name: `hf:OWNER/REPO[:FILE]`, through huggingface_hub and its cache.

Owns which file a name means; `download` has how it is fetched. Asks nobody and prints nothing: whether to download is
the caller's to decide, after `cached` found nothing and `look` said what it would take. Only this file imports
huggingface_hub, lazily.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .download import download
from .errors import DiskFull, ModelUnavailable, StrataError, UsageProblem
from .gguf_parts import is_part, parts_refused
from .sizes import format_bytes

PREFIX = "hf:"
# What is taken of several files when none is named, as llama.cpp does.
USUAL = "q4_k_m"
_NAME = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)(?::([\w./-]+))?", re.ASCII)
EXTRA_HINT = "pip install 'strata-cli[hf]'"


@dataclass(frozen=True)
class HubName:
    """A repository, and the file in it where one is named."""

    repo: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True)
class Remote:
    """A file that could be fetched. `size_bytes` as the hub tells it."""

    repo: str
    file: str
    size_bytes: int


def parse_hub_name(text: str) -> HubName:
    """`hf:OWNER/REPO[:FILE]`, with or without `hf:`. Raises UsageProblem."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in (found[2] or "").split("/"):
        raise UsageProblem(
            f"{text!r} is no name of a model on Hugging Face", hint="hf:OWNER/REPO or hf:OWNER/REPO:FILE"
        )
    return HubName(found[1], found[2])


def cached(name: HubName) -> Path | None:
    """The file in the hub's cache on this machine; asks nobody else. Raises ModelUnavailable without the package."""
    hub = _hub()
    if name.file is not None:
        found = hub.try_to_load_from_cache(name.repo, name.file)
        return Path(found) if isinstance(found, str) else None
    try:
        repos = hub.scan_cache_dir().repos
    except hub.CacheNotFound:
        return None
    files = {
        file.file_path.relative_to(revision.snapshot_path).as_posix(): file.file_path
        for repo in repos
        if repo.repo_id == name.repo and repo.repo_type == "model"
        for revision in repo.revisions
        if "main" in revision.refs
        for file in revision.files
    }
    wanted = [file for file in files if _is_model(file)]
    return files[_chosen(name, wanted)] if wanted else None


def look(name: HubName) -> Remote:
    """Which file would be fetched, and its size. Raises ModelUnavailable, UsageProblem listing the candidates."""
    hub = _hub()
    if hub.constants.HF_HUB_OFFLINE:
        raise ModelUnavailable(
            f"{name} is not on this machine, and HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE to download it"
        )
    with _faults(hub, name):
        listed = hub.HfApi().model_info(name.repo, files_metadata=True).siblings or []
    sizes = {each.rfilename: int(each.size or 0) for each in listed}
    if name.file is not None and name.file not in sizes:
        raise ModelUnavailable(f"{name.repo} has no file {name.file}", hint=_listed(sizes) or "look at its page")
    file = name.file or _chosen(name, [each for each in sizes if _is_model(each)], sizes)
    if is_part(file):
        raise parts_refused(file, name.repo)
    return Remote(name.repo, file, sizes[file])


def fetch(remote: Remote, progress: Callable[[int], None]) -> Path:
    """Download into the hub's cache; what an earlier run left is gone on with. `progress` gets bytes done.

    Raises ModelUnavailable, NoRoom, Locked, and whatever `progress` raises.
    """
    hub = _hub()
    with _faults(hub, HubName(remote.repo, remote.file)):
        return download(hub, remote.repo, remote.file, _told(hub, progress))


def _told(hub: Any, progress: Callable[[int], None]) -> type[Any]:
    """The hub's bar, as one that draws nothing and tells how far it is."""

    class Told(hub.utils.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._done = int(kwargs.get("initial") or 0)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            progress(self._done)

    return Told


def _is_model(file: str) -> bool:
    lower = file.lower()
    return lower.endswith(".gguf") and not lower.rpartition("/")[2].startswith("mmproj")


def _chosen(name: HubName, files: list[str], sizes: dict[str, int] | None = None) -> str:
    whole = [file for file in files if not is_part(file)]
    usual = [file for file in whole if USUAL in file.lower()]
    for found in (whole, usual):
        if len(found) == 1:
            return found[0]
    if whole:
        listed = _listed({file: (sizes or {}).get(file, 0) for file in whole})
        raise UsageProblem(
            f"{name.repo} has {len(whole)} GGUF files: which?", hint=f"hf:{name.repo}:FILE, FILE being one of {listed}"
        )
    if files:
        raise parts_refused(next((file for file in files if USUAL in file.lower()), files[0]), name.repo)
    raise ModelUnavailable(f"{name.repo} has no GGUF file", hint="its name on the hub often ends in -GGUF")


def _listed(sizes: dict[str, int]) -> str:
    files = sorted(file for file in sizes if _is_model(file))
    shown = [file + (f" ({format_bytes(sizes[file])})" if sizes[file] else "") for file in files[:12]]
    return ", ".join(shown) + (" ..." if len(files) > 12 else "")


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.file_download
        import huggingface_hub.utils
    except ImportError:
        raise ModelUnavailable("models from Hugging Face need the package huggingface_hub", hint=EXTRA_HINT) from None
    return huggingface_hub


@contextmanager
def _faults(hub: Any, name: HubName) -> Iterator[None]:
    try:
        yield
    except StrataError:
        raise
    except hub.errors.GatedRepoError as error:
        raise ModelUnavailable(
            f"{name.repo} wants you to accept its terms first", hint="on its page, then: hf auth login"
        ) from error
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelUnavailable(f"Hugging Face has no {name.repo}, or not for you", hint="hf auth login") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{name}: {error.strerror}", hint="free some space; what has arrived is kept") from error
        raise _unavailable(name, error) from error
    except Exception as error:
        # The library raises those of its HTTP client and of the operating system too.
        raise _unavailable(name, error) from error


def _unavailable(name: HubName, error: Exception) -> ModelUnavailable:
    reason = str(error).strip().splitlines()
    told = f"{name}: {reason[0] if reason else type(error).__name__}"
    return ModelUnavailable(told, hint="try again, or name a file with -m")
