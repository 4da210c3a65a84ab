"""What the figures were made on: the header that makes results comparable."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..llama_engine import rivals
from ..llama_engine.live import LlamaEngine
from ..tier import available_bytes


def machine_facts(*, scale: float, quick: bool, runs: int, folder: Path) -> dict[str, Any]:
    """Machine and build, without a model. Sizes in bytes."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_available_bytes": available_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "strata": __version__,
        "gpu": rivals.offloads(),
        "backend": rivals.backend(),
        "load": round(os.getloadavg()[0], 2),
        "file_system": _file_system(folder),
        "page_cache": "warm: files are restored right after they were written, and nothing is dropped",
        "scale": scale,
        "quick": quick,
        "runs": runs,
    }


def model_facts(engine: LlamaEngine) -> Mapping[str, Any]:
    """One loaded model and how it was loaded."""
    return {
        "description": engine.model.description,
        "file": engine.model.path.name,
        "build": engine.model.build,
        "state_format": engine.model.state_format,
        "memory": engine.memory.kind,
        "cache_type_k": engine.identity.cache_type_k,
        "cache_type_v": engine.identity.cache_type_v,
        "flash_attention": not engine.identity.v_transposed,
        "context_tokens": engine.context_tokens,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that the directories of the measurement lie on, where the system tells."""
    if sys.platform != "linux":
        return "unknown"
    best = ("", "unknown")
    try:
        for line in Path("/proc/mounts").read_text().splitlines():
            _, place, kind = line.split()[:3]
            if str(folder).startswith(place.rstrip("/") + "/") and len(place) > len(best[0]):
                best = (place, kind)
    except (OSError, ValueError):
        pass
    return best[1]
