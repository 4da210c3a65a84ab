"""`strata restore`, as options. What it needs is imported when it runs: other commands must start fast."""

from datetime import datetime
from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_RESTORE = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no such file, 11 held by another process, 12 bad, 13 refused,"
    " 14 no model, 15 no room, 130 interrupted, 143 ended."
)


@app.command(epilog=EXIT_RESTORE)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A strata file, or a slot file of llama-server.")],
    as_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Under another name.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Onto an existing one, which stays as an alternative branch.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Take its state for as good as made here.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would happen; change nothing.")] = False,
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
    """Verify a file and take its conversation into the directory.

    Example: ssh far strata save notes -o - | strata restore -
    """
    from ..engine import EngineOptions
    from ..file_transfer import is_archive
    from ..names import check_name
    from ..reception import Wish
    from ..session import Wishes
    from ..slot_command import restore_slot
    from ..snapshot_command import restore as restore_archive

    command = Run("restore", as_json=as_json, quiet=quiet, verbose=verbose)
    if as_name is not None:
        check_name(as_name)
    wish = Wish(as_name, replace, trust, plan, wait)
    if is_archive(file):
        return restore_archive(file, wish, command.store(), command.out, command.stop)
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
        return restore_slot(file, wish, session, datetime.now().astimezone().date())
    finally:
        session.close_chat()
