"""The entry point. Owns one decision: completion is answered without loading the command line."""

import sys


def main() -> None:
    """Run a command and leave with its exit status."""
    from .complete import WORD, complete

    if sys.argv[1:2] == [WORD]:
        sys.exit(complete(sys.argv[2:]))
    from .cli import main as run

    run()
