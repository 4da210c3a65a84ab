"""One file of the hub into its cache, going on where an earlier process stopped.

huggingface_hub itself begins anew in each process: since 1.18 it writes to a name of its own for every attempt, and
removes that on failure. So the bytes are collected here, beside the cache's blobs and under a name that holds their
digest, checked as a whole, and put among the blobs; huggingface_hub then finds them and makes the links. Which file is
wanted, and what its errors mean to the user, is `hub`.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from .errors import Locked, ModelUnavailable, NoRoom
from .locks import FileLock
from .sizes import format_bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(hub: Any, repo: str, file: str, bar: type[Any]) -> Path:
    """The file's path in the cache. `hub` is huggingface_hub; `bar` is made and told as tqdm would be.

    Raises Locked, NoRoom, ModelUnavailable, and whatever `hub` and `bar` raise; what has come by then stays.
    """
    facts = hub.get_hf_file_metadata(hub.hf_hub_url(repo, file))
    blobs = Path(hub.constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "blobs"
    if not _can_go_on(hub, facts):
        _check_room(blobs, facts.size or 0, file)
    else:
        # Of one commit: two halves are then of one file.
        url = hub.hf_hub_url(repo, file, revision=facts.commit_hash)
        _collect(hub, url, blobs, file, facts, bar)
    return Path(hub.hf_hub_download(repo, file, tqdm_class=bar))


def _can_go_on(hub: Any, facts: Any) -> bool:
    """Large files are known by their SHA-256; others are small. The hub gives more than 50 GB in another way only."""
    known = facts.commit_hash and _SHA256.fullmatch(facts.etag or "") and facts.size
    return bool(known) and facts.size <= hub.constants.MAX_HTTP_DOWNLOAD_SIZE


def _collect(hub: Any, url: str, blobs: Path, file: str, facts: Any, bar: type[Any]) -> None:
    blob = blobs / facts.etag
    key = f"strata-{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    # `hf cache prune` takes what ends in .incomplete for what it is.
    part = blobs / f"{facts.etag}.{key}.incomplete"
    blobs.mkdir(parents=True, exist_ok=True)
    with _alone(blobs / f"{key}.lock", file):
        if blob.exists():
            return
        for old in blobs.glob(f"*.{key}.incomplete"):
            if old != part:  # of what this file was before
                old.unlink()
        _check_room(blobs, facts.size - (part.stat().st_size if part.exists() else 0), file)
        _append(hub, url, part, facts.size, bar)
        if _sha256(part) != facts.etag:
            part.unlink()
            raise ModelUnavailable(
                f"{file} is not what the hub says it is: its SHA-256 is another",
                hint="it was removed; the next run downloads it from the beginning",
            )
        part.rename(blob)


def _alone(lock: Path, file: str) -> FileLock:
    try:
        return FileLock.acquire(lock, exclusive=True, remove=True)
    except Locked as error:
        raise Locked(f"another process is downloading {file}", hint="try again when it is done") from error


def _check_room(folder: Path, left_bytes: int, file: str) -> None:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < left_bytes:
        raise NoRoom(
            f"{file} takes {format_bytes(left_bytes)}, and {format_bytes(free)} are free in {folder}",
            hint="HF_HOME moves the cache",
        )


def _append(hub: Any, url: str, part: Path, size_bytes: int, bar: type[Any]) -> None:
    """Fetch what `part` lacks. A server that gives no ranges sends all of it, and http_get begins `part` anew."""
    with part.open("ab") as file:
        if file.tell() > size_bytes:
            file.truncate(0)
            file.seek(0)
        # Ranges are of the file as it is, and not of what a server would make of it on the way.
        headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
        hub.file_download.http_get(
            url, file, resume_size=file.tell(), headers=headers, expected_size=size_bytes, tqdm_class=bar
        )
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
