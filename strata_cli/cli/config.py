"""`strata config`, as options."""

from typing import TYPE_CHECKING, Annotated

import typer

from .. import options as o
from .app import Run, app

if TYPE_CHECKING:
    from ..config import Config

EXIT = "Exit status: 0 done, 1 failed, 2 usage or no such setting."
config_app = typer.Typer(
    help="The settings: their values, and where each comes from.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(config_app, name="config")

Key = Annotated[str, typer.Argument(metavar="KEY")]


def _begin(command: str, as_json: bool, quiet: bool, verbose: int) -> "tuple[Run, Config]":
    from ..config import load_config

    run, config = Run(command, as_json=as_json, quiet=quiet, verbose=verbose), load_config(tolerant=True)
    for warning in config.warnings:
        run.out.warning(warning)
    return run, config


@config_app.command("list", epilog=EXIT)
def list_all(as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """Every setting with its value and where that comes from; secrets are masked.

    Example: strata config list
    """
    from ..config_command import show_all

    run, config = _begin("config list", as_json, quiet, verbose)
    return show_all(config, run.out)


@config_app.command("get", epilog=EXIT)
def get(key: Key, as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """One value.

    Example: strata config get store.max_size
    """
    from ..config_command import show_one

    run, config = _begin("config get", as_json, quiet, verbose)
    return show_one(config, key, run.out)


@config_app.command("set", epilog=EXIT)
def set_one(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="`none` takes an optional setting out.")],
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Write a setting into config.toml.

    Example: strata config set model ~/models/qwen.gguf
    """
    from ..config_command import write_one

    run, config = _begin("config set", as_json, quiet, verbose)
    return write_one(config, key, value, run.out)


@config_app.command("path", epilog=EXIT)
def path(as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """Where config.toml is, or would be; -v: also the other folders.

    Example: strata config path
    """
    from ..config_command import show_path

    run, config = _begin("config path", as_json, quiet, verbose)
    return show_path(config, run.out)
