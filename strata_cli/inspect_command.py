"""`strata inspect`: the directory for people and for programs.

Owns how the facts of `report` are printed.
"""

from typing import Any

from .config import Config
from .output import Output, bar
from .report import DirectoryFacts, conversation_rows, scan
from .sizes import format_bytes
from .store import Store

SHOWN_ON_TTY = 20


def inspect_directory(store: Store, config: Config, out: Output, *, show_all: bool) -> int:
    """The whole directory: a bar against its budget, then a row for each conversation."""
    facts = scan(store, now_iso=store.clock())
    budget = config.settings.store.max_size_bytes
    used = f"{format_bytes(facts.total_bytes)} of {format_bytes(budget)}"
    out.show(f"{bar(facts.total_bytes, budget)} {used} in {store.root}")
    limit = None if show_all or not out.is_tty else SHOWN_ON_TTY
    rows, titles = conversation_rows(facts, limit)
    if rows:
        out.table(titles, rows, right={1, 2, 3, 4, 5})
    hidden = len(facts.conversations) - len(rows)
    if hidden > 0:
        out.note(f"{hidden} older ones are not shown; --all shows them")
    out.ids([each.name for each in facts.conversations])
    return out.finish(directory_data(facts, budget))


def directory_data(facts: DirectoryFacts, budget_bytes: int) -> dict[str, Any]:
    """`data` of the envelope; `inspect NAME` and `--verify` add to it."""
    return {
        "conversations": [each.as_json() for each in facts.conversations],
        "prefixes": [each.as_json() for each in facts.prefixes],
        "by_kind": facts.by_kind,
        "total_bytes": facts.total_bytes,
        "budget_bytes": budget_bytes,
        "counters": {},
    }
