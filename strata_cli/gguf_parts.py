"""Models that come as several files, `NAME-00001-of-00003.gguf`: how one is known, and the way out.

strata takes a model of one file: its identity is the digest of that file, and the first of several may hold no weights.
"""

import re
import shlex

from .errors import ModelUnavailable

_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)


def is_part(file: str) -> bool:
    """Whether this is one of several."""
    found = _PART.fullmatch(file)
    return found is not None and int(found[2]) > 1


def parts_refused(file: str, repo: str = "") -> ModelUnavailable:
    """The error for a file that `is_part`; `repo` on the hub, where it is not on this machine yet."""
    found = _PART.fullmatch(file)
    assert found is not None
    stem, count, ending = found.groups()
    first, all_parts = f"{stem}-00001-of-{count}{ending}", f"{stem}-*-of-{count}{ending}"
    target = shlex.quote(stem.rpartition("/")[2] + ending)
    fetch = f"hf download {repo} --local-dir . --include {shlex.quote(all_parts)}; " if repo else ""
    return ModelUnavailable(
        f"{file} is one of {int(count)} parts, and strata takes a model of one file",
        hint=f"join them: {fetch}llama-gguf-split --merge {shlex.quote(first)} {target}; then -m {target}",
    )
