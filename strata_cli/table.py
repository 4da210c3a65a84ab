"""Rows under titles on a terminal of some width: what is left out, folded or cut where not all of it fits.

Owns that choice, and rich's table. Pipes get whole cells, which is output.py's doing.
"""

from collections.abc import Collection, Sequence
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP_CHARS = 2
WHOLE_CHARS = 26  # a cell up to here stays in one line: automatic names have 21 characters, and up to 5 more
LEAST_CHARS = 12  # how narrow a longer one may be made


def drawn(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    stream: TextIO | None,
    *,
    colour: bool,
    right: Collection[int] = (),
    spare: Sequence[int] = (),
) -> str:
    """The table as text. Columns of `spare` go, in that order, where the terminal is too narrow for all of them."""
    console = Console(file=stream, no_color=not colour, highlight=False)
    sizes = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    shown = fitting(sizes, spare, console.width)
    cut = (
        sizes[-1] if not spare else max(LEAST_CHARS, console.width - _taken([sizes[n] for n in shown[:-1]]) - GAP_CHARS)
    )
    table = Table(box=None, padding=(0, GAP_CHARS, 0, 0), pad_edge=False, header_style="bold" if colour else "")
    for number in shown:
        justify: Literal["right", "left"] = "right" if number in right else "left"
        last = bool(spare) and number == shown[-1]
        table.add_column(
            Text(titles[number]),
            justify=justify,
            overflow="ellipsis" if last else "fold",
            no_wrap=last or sizes[number] <= WHOLE_CHARS,
            max_width=cut if last else None,
        )
    for row in rows:
        table.add_row(*(Text(row[number]) for number in shown))
    with console.capture() as printed:
        console.print(table)
    return printed.get()


def fitting(sizes: Sequence[int], spare: Sequence[int], width: int) -> list[int]:
    """The numbers of the columns that are shown: all of them, or without as many of `spare` as it takes."""
    shown = list(range(len(sizes)))
    # What may go is rather left out than folded.
    least = [size if size <= WHOLE_CHARS or n in spare else LEAST_CHARS for n, size in enumerate(sizes)]
    if spare:
        least[-1] = min(least[-1], LEAST_CHARS)
    for number in spare:
        if _taken([least[each] for each in shown]) <= width:
            break
        shown.remove(number)
    return shown


def _taken(sizes: Sequence[int]) -> int:
    return sum(sizes) + GAP_CHARS * max(0, len(sizes) - 1)
