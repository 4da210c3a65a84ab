"""`strata prefix`, as options."""

import sys
import time
from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT = "Exit status: 0 done, 1 failed, 2 usage or not confirmed, 10 no such prefix, 11 held by another process"
prefix_app = typer.Typer(
    help="Openings that conversations start from: read once, kept.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(prefix_app, name="prefix")

Name = Annotated[str, typer.Argument(metavar="NAME")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...")]


@prefix_app.command("add", epilog=EXIT + ", 13 refused, 14 no model, 15 no room.")
def add(
    name: Name,
    system: Annotated[str | None, typer.Option("--system", "-s", metavar="TEXT", help="The system prompt.")] = None,
    system_file: Annotated[str | None, typer.Option(metavar="FILE", help="The system prompt from a file.")] = None,
    messages: Annotated[str | None, typer.Option(metavar="FILE|-", help="A JSON list of messages.")] = None,
    tools: Annotated[str | None, typer.Option(metavar="FILE", help="A JSON list of tools.")] = None,
    model: o.Model = None,
    ctx_size: o.CtxSize = None,
    gpu_layers: o.GpuLayers = None,
    split_mode: o.SplitMode = None,
    tensor_split: o.TensorSplit = None,
    main_gpu: o.MainGpu = None,
    threads: o.Threads = None,
    batch_size: o.BatchSize = None,
    cache_type_k: o.CacheTypeK = None,
    cache_type_v: o.CacheTypeV = None,
    flash_attn: o.FlashAttn = None,
    lora: o.Lora = None,
    rope_freq_base: o.RopeFreqBase = None,
    rope_freq_scale: o.RopeFreqScale = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Read a system prompt or messages once, and keep what was read, pinned.

    Example: strata prefix add agent --system-file agent.txt --tools tools.json
    """
    from .. import prefix_command as prefix
    from ..engine import EngineOptions
    from ..errors import UsageProblem
    from ..messages import read_messages
    from ..run_command import read_all, read_tools, read_whole
    from ..session import Wishes

    engine = EngineOptions(
        ctx_size,
        gpu_layers,
        split_mode,
        o.tensor_split(tensor_split),
        main_gpu,
        threads,
        batch_size,
        cache_type_k,
        cache_type_v,
        flash_attn,
        o.loras(lora),
        rope_freq_base,
        rope_freq_scale,
    )
    if system is not None and system_file is not None:
        raise UsageProblem("-s and --system-file are two different wishes", hint="one of them")
    text = read_all(sys.stdin) if messages == "-" else read_whole(messages, "--messages") if messages else None
    wanted = prefix.Addition(
        name,
        read_whole(system_file, "--system-file") if system_file is not None else system,
        read_messages(text, "--messages") if text is not None else None,
        read_tools(tools) if tools is not None else None,
    )
    prefix.check(wanted)
    session = Run("prefix add", as_json=as_json, quiet=quiet, verbose=verbose).session(Wishes(model, engine))
    try:
        return prefix.add(wanted, session)
    finally:
        session.close_chat()


@prefix_app.command("list", epilog=EXIT + ".")
def list_all(as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """Every prefix, newest first.

    Example: strata prefix list
    """
    from .. import prefix_command as prefix

    command = Run("prefix list", as_json=as_json, quiet=quiet, verbose=verbose)
    return prefix.list_all(command.store(), command.out)


@prefix_app.command("show", epilog=EXIT + ".")
def show(name: Name, as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """What a prefix says, and where its state lies.

    Example: strata prefix show agent
    """
    from .. import prefix_command as prefix

    command = Run("prefix show", as_json=as_json, quiet=quiet, verbose=verbose)
    return prefix.show(name, command.store(), command.out)


@prefix_app.command("pin", epilog=EXIT + ".")
def pin(names: Names, as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """Never let a prefix go by itself.

    Example: strata prefix pin root-1f0c3a52
    """
    from .. import prefix_command as prefix

    command = Run("prefix pin", as_json=as_json, quiet=quiet, verbose=verbose)
    return prefix.pin(names, True, command.store(), command.out)


@prefix_app.command("unpin", epilog=EXIT + ".")
def unpin(names: Names, as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = 0) -> int:
    """Let a prefix go when nobody uses it.

    Example: strata prefix unpin agent
    """
    from .. import prefix_command as prefix

    command = Run("prefix unpin", as_json=as_json, quiet=quiet, verbose=verbose)
    return prefix.pin(names, False, command.store(), command.out)


@prefix_app.command("rm", epilog=EXIT + ".")
def rm(
    names: Names,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would go; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: o.Wait = 60.0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Remove prefixes, by their full names; conversations that started from them keep what they need.

    Example: strata prefix rm agent -y
    """
    from ..prune_command import PruneRequest, prune
    from ..prune_command import check as check_prune

    command = Run("prefix rm", as_json=as_json, quiet=quiet, verbose=verbose)
    request = PruneRequest(prefixes=tuple(names), dry_run=dry_run, yes=yes, wait_s=wait)
    check_prune(request)
    store = command.store()
    return prune(request, store, command.config, command.out, command.stop, time.time)
