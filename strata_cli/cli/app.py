"""The typer application, and what every command begins with.

Owns the app object and `Run`: output, signals, configuration and directory of one command on its way.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from .. import __version__
from ..output import Mode, Output

if TYPE_CHECKING:
    from ..session import Session, Wishes
    from ..store import Store

app = typer.Typer(
    name="strata",
    help="Keep the conversations of a local language model alive.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    # Typer's zsh script evaluates candidates; `strata completion` prints scripts that do not.
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Run:
    """One command on its way: output, signals, and the configuration when it is first needed."""

    def __init__(self, command: str, *, as_json: bool, quiet: bool, verbose: int) -> None:
        mode = Mode.JSON if as_json else Mode.QUIET if quiet else Mode.HUMAN
        self.out = Output(command, mode, verbose=verbose > 0, very_verbose=verbose > 1)
        from ..signals import Stop

        self.stop = Stop()
        self.stop.install()

    def store(self) -> "Store":
        from datetime import UTC, datetime

        from ..config import load_config
        from ..files import Files
        from ..store import Store

        self.config = load_config()
        for warning in self.config.warnings:
            self.out.warning(warning)
        settings = self.config.settings.store
        store = Store.open(
            self.config.places.data,
            Files(),
            lambda: datetime.now(UTC),
            state_dir=settings.state_dir,
            command=f"strata {self.out.command}",
        )
        store.leave_free(settings.min_free_disk_mib << 20)
        return store

    def session(self, wishes: "Wishes") -> "Session":
        import time
        from datetime import datetime

        from ..session import Session

        store = self.store()
        today = datetime.now().astimezone().date()
        return Session(self.config, store, self.out, self.stop, wishes, today=today, now_ns=time.time_ns)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Keep the conversations of a local language model alive."""
