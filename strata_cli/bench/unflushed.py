"""Files without flushing: for directories that are only made to be measured and that no power cut will hit."""

from pathlib import Path

from ..files import Files


class UnflushedFiles(Files):
    """Leaves flushing to the kernel."""

    def flush(self, target: int | Path) -> None:
        """Nothing."""
