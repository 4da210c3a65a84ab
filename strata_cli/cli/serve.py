"""`strata serve`, as options."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_SERVE = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no key file, 13 refused, 14 no model, 15 no room, 130 interrupted,"
    " 143 ended by SIGTERM."
)
NEEDED = ("starlette", "uvicorn")


@app.command(epilog=EXIT_SERVE)
def serve(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Listen here; loopback is the default.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, metavar="N", help="0: a free one, told.")] = None,
    api_key_file: Annotated[str | None, typer.Option(metavar="FILE", help="Ask for the key in this file.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="N", help="How many requests may wait.")] = None,
    slot_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Where /slots keeps its files.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download what hf: names without asking.")] = False,
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
    """Serve OpenAI's clients; their conversations survive restarts.

    Example: strata serve -m ~/models/qwen.gguf --ctx-size 32768
    """
    from ..engine import EngineOptions
    from ..errors import UsageProblem
    from ..session import Wishes

    if not all(find_spec(name) for name in NEEDED):
        raise UsageProblem("`strata serve` needs an extra", hint="pip install 'strata-cli[serve]'")
    from ..serve.service import ServeRequest
    from ..serve.service import serve as serve_until_ended

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
    command = Run("serve", as_json=as_json, quiet=quiet, verbose=verbose)
    command.out.tells_events = True
    session = command.session(Wishes(model, engine, yes=yes))
    settings = command.config.settings.serve
    request = ServeRequest(
        host if host is not None else settings.host,
        port if port is not None else settings.port,
        queue if queue is not None else settings.queue,
        Path(api_key_file) if api_key_file is not None else settings.api_key_file,
        Path(slot_dir) if slot_dir is not None else settings.slot_dir,
    )
    try:
        return serve_until_ended(request, session)
    finally:
        session.close_chat()
