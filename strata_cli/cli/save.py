"""`strata save`, as options. What it needs is imported when it runs: other commands must start fast."""

from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_SAVE = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation or file, 11 held by another process, 12 bad,"
    " 13 refused, 14 no model, 15 no room, 130 interrupted, 143 ended."
)


@app.command(epilog=EXIT_SAVE)
def save(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the last conversation.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE|-", help="Write one file; `-`: standard output.")
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", metavar="strata|llama", help="llama: the file that llama-server restores.")
    ] = "strata",
    as_name: Annotated[str | None, typer.Option("--as", metavar="NEW", help="A named copy in the directory.")] = None,
    messages: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read a JSON list of messages and keep them as NAME.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="BASE", help="Leave out the segments that this strata file has.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With the alternative branches.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace NEW; it stays as an alternative branch.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be written.")] = False,
    wait: o.Wait = 60.0,
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
    """Write a conversation to one file, or keep a copy of it.

    Example: strata save notes -o notes.strata
    """
    from ..engine import EngineOptions
    from ..session import Wishes
    from ..slot_command import save_llama
    from ..snapshot_command import SaveRequest, check, save_messages
    from ..snapshot_command import save as save_request

    command = Run("save", as_json=as_json, quiet=quiet, verbose=verbose)
    request = SaveRequest(
        name, output, as_name, messages, file_format, since, everything, replace=replace, plan=plan, wait_s=wait
    )
    check(request, command.out)
    if request.messages is None and request.format == "strata":
        return save_request(request, command.store(), command.out, command.stop)
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
    session = command.session(Wishes(model, engine))
    try:
        return save_messages(request, session) if request.messages is not None else save_llama(request, session)
    finally:
        session.close_chat()
