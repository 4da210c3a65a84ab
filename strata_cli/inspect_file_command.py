"""`strata inspect FILE`: what a strata file or a sequence file of llama.cpp holds, with every byte checked.

Owns how they are printed. Loads no model and needs no session directory.
"""

from pathlib import Path
from typing import Any

from .file_transfer import inspect_archive, is_archive
from .head import Head
from .identity import flat_fields
from .log import Log, parse_log
from .output import Output
from .prompt import content_text
from .sizes import format_bytes
from .slot_file import SlotFile
from .transfer import deepest


def inspect_file(source: str, out: Output, *, transcript: bool) -> int:
    """One file; exit status 12 where anything in it is bad. Raises Bad, Refused, NotFound."""
    data = _archive(source, out) if is_archive(source) else _slot(source, out)
    log: Log = data.pop("log")
    said = [dict(line.message or {}) for line in log.branch()]
    data["messages"] = said if transcript else None
    if transcript:
        for message in said:
            out.show(f"{message.get('role')}: {content_text(message)}")
    data |= {"checked_files": 1, "checked_bytes": data["bytes"], "bad": []}
    return out.finish(data)


def _archive(source: str, out: Output) -> dict[str, Any]:
    manifest, head, log = inspect_archive(source)
    state, carried = deepest(head), set(manifest.carried)
    size = manifest.total_bytes
    branches = "with its alternatives" if manifest.branches == "all" else "the current branch"
    out.show(f"{source}: strata file, {format_bytes(size)}, every byte checked: {head.name}, {branches}")
    out.show(f"{head.turns} turns, {head.tokens:,} tokens: {head.title}")
    rows = _segments(head, carried)
    out.table(
        ["tokens from-to", "bytes", "what", "in this file"],
        [[f"{r['start']:,}-{r['end']:,}", f"{r['bytes']:,}", r["what"], "yes" if r["carried"] else "no"] for r in rows],
        right={1},
    )
    return {
        "file": source,
        "format": "strata",
        "name": head.name,
        "title": head.title,
        "turns": head.turns,
        "tokens": head.tokens,
        "bytes": size,
        "branches": manifest.branches,
        "since": manifest.since or None,
        "identity": state[0][:16] if state else None,
        "identities": {digest: flat_fields(each.identity) for digest, each in head.states.items()},
        "segments": rows,
        "model": head.model.get("path"),
        "log": log,
    }


def _segments(head: Head, carried: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "what": "rows" if ref.kind == "seg" else "part",
            "start": ref.start,
            "end": ref.end,
            "bytes": ref.bytes,
            "file": ref.file,
            "carried": ref.file in carried,
        }
        for state in head.states.values()
        for ref in (*state.segments, *state.parts)
    ]


def _slot(source: str, out: Output) -> dict[str, Any]:
    with SlotFile(Path(source)) as file:
        trailer, size, tokens = file.trailer(), file.size, len(file.tokens)
    value = trailer.value if trailer else {}
    log = parse_log(str(value.get("log", "")).encode())
    proof = "every byte checked" if trailer else "no digest in it: its K/V and whose weights made it cannot be checked"
    out.show(f"{source}: sequence file of llama.cpp, {format_bytes(size)}, {tokens:,} tokens; {proof}")
    identity = value.get("identity")
    return {
        "file": source,
        "format": "llama",
        "name": value.get("name"),
        "turns": sum((line.message or {}).get("role") == "user" for line in log.branch()) if trailer else None,
        "tokens": tokens,
        "bytes": size,
        "proved": trailer is not None,
        "identities": {"trailer": flat_fields(identity)} if isinstance(identity, dict) else {},
        "segments": [],
        "log": log,
    }
