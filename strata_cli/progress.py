"""A progress bar on a terminal, made by rich. When one is wanted is output.py's to decide."""

from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class Bar:
    """Appears with the first `show` and leaves no trace after `close`."""

    def __init__(self, stream: TextIO | None, label: str, total: int, unit: str, *, colour: bool) -> None:
        count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            count,
            TextColumn(unit if unit != "bytes" else "", markup=False),
            TimeRemainingColumn(),
        )
        # The streams stay as they are: answers are written to them directly.
        self._progress = Progress(
            *columns,
            console=Console(file=stream, no_color=not colour, highlight=False),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(label, total=total)
        self._shown = False

    def show(self, done: int) -> None:
        """`done` of the total; a bar that has not been seen yet appears."""
        self._progress.update(self._task, completed=done)
        if not self._shown:
            self._shown = True
            self._progress.start()

    def close(self) -> None:
        """Remove the bar, if it was shown."""
        if self._shown:
            self._progress.stop()
