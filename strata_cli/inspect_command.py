"""`strata inspect`: the directory for people and for programs.

Owns how the facts of `report` are printed.
"""

from typing import Any

from .config import Config
from .counters import Counts, read_counts
from .installed import installed_state_format
from .output import Mode, Output, bar
from .report import (
    SPARE_OF_CONVERSATIONS,
    SPARE_OF_PREFIXES,
    DirectoryFacts,
    conversation_rows,
    prefix_rows,
    scan,
)
from .sizes import format_bytes
from .store import Store

SHOWN_ON_TTY = 20


def inspect_directory(store: Store, config: Config, out: Output, *, show_all: bool) -> int:
    """The whole directory: a bar against its budget, then a row for each conversation."""
    facts = scan(store, now_iso=store.clock(), state_format=installed_state_format(config.places.cache))
    counts = read_counts(store)
    budget = config.settings.store.max_size_bytes
    used = f"{format_bytes(facts.total_bytes)} of {format_bytes(budget)}"
    out.show(f"{bar(facts.total_bytes, budget)} {used} in {store.root}")
    limit = None if show_all or not out.is_tty else SHOWN_ON_TTY
    if facts.conversations and out.mode is Mode.HUMAN:
        rows, titles = conversation_rows(facts, limit)
        out.table(titles, rows, right={1, 2, 3, 4, 5}, spare=SPARE_OF_CONVERSATIONS)
    if facts.prefixes:
        shown, titles = prefix_rows(facts)
        out.table(titles, shown, right={1, 2, 3, 4}, spare=SPARE_OF_PREFIXES)
    if not facts.conversations:
        out.note("no conversation yet: `strata run` begins one")
    for line in counts_in_words(counts, facts):
        out.show(line)
    hidden = len(facts.conversations) - len(facts.conversations[:limit])
    if hidden > 0:
        out.note(f"{hidden} older ones are not shown; --all shows them")
    out.ids([each.name for each in facts.conversations])
    return out.finish(directory_data(facts, budget, counts))


def counts_in_words(counts: Counts, facts: DirectoryFacts) -> list[str]:
    """What was counted, in two or three lines; none where nothing was."""
    if not counts.since:
        return []
    today = facts.now[:10]
    written = f"{format_bytes(counts.today(today))} written today, {format_bytes(counts.bytes_written)} in all"
    lines = [
        f"since {counts.since[:10]}: parks {counts.parked:,}, restores {counts.restored:,}, prefixes made "
        f"{counts.prefixes:,}; {counts.tokens_reused:,} tokens reused, {counts.tokens_read:,} read; {written}"
    ]
    if counts.refusals:
        last = (counts.last_refusal or {}).get("message", "")
        lines.append(f"refusals {counts.refusals:,}, bad files {counts.bad_files:,}; the last: {last}")
    return lines


def directory_data(facts: DirectoryFacts, budget_bytes: int, counts: Counts | None = None) -> dict[str, Any]:
    """`data` of the envelope; `inspect NAME` and `--verify` add to it."""
    return {
        "conversations": [each.as_json() for each in facts.conversations],
        "prefixes": [each.as_json() for each in facts.prefixes],
        "by_kind": facts.by_kind,
        "total_bytes": facts.total_bytes,
        "budget_bytes": budget_bytes,
        "counters": (counts or Counts()).as_json(facts.now[:10]),
    }
