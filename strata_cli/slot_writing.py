"""Writing what an engine holds as llama.cpp's sequence file: for `strata save --format llama`, and for the service.

Owns the room, the temporary and the trailer's place. What a trailer says is `slots`.
"""

import os
from pathlib import Path

from .engine import Engine
from .errors import DiskFull
from .file_transfer import replacing
from .files import storage_errors
from .head import Head
from .log import Log
from .slot_file import file_digest
from .slots import trailer_for
from .store import Store


def write_slot_file(
    path: Path,
    engine: Engine,
    store: Store,
    said: tuple[Head, Log] | None,
    wanted_bytes: int,
    *,
    follow: bool = True,
) -> int:
    """Write it, with a trailer where the conversation is known; returns its bytes.

    Raises DiskFull before it begins, StorageFailed, EngineFailed; an older file of that name stays then.
    """
    with replacing(path, 0, follow=follow) as (fd, temporary):
        _check_room(path, wanted_bytes)
        body = engine.save_file(temporary)
        if said is None:
            return body
        trailer = trailer_for(store, *said, engine, body, _digest(temporary, body))
        with storage_errors(path, "write to"):
            os.pwrite(fd, trailer, body)
    return body + len(trailer)


def _check_room(path: Path, wanted_bytes: int) -> None:
    facts = os.statvfs(Path(os.path.realpath(path)).parent)
    free = facts.f_bavail * facts.f_frsize
    if wanted_bytes > free:
        raise DiskFull(f"{path} takes about {wanted_bytes:,} bytes and {free:,} are free", hint="free some space")


def _digest(path: Path, body_bytes: int) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return file_digest(fd, body_bytes)
    finally:
        os.close(fd)
