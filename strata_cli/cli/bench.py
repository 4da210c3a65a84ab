"""`strata bench`, as options."""

import time
from pathlib import Path
from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_BENCH = (
    "Exit status: 0 done, also where a target is missed, 1 failed, 2 usage, 14 no model, 15 no room, 130 interrupted,"
    " 143 ended."
)


@app.command(epilog=EXIT_BENCH)
def bench(
    only: Annotated[str | None, typer.Option(metavar="W4,W8", help="These workloads; D: the directory itself.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="W3 and W6 to W10, small, three runs: under a minute.")
    ] = False,
    scale: Annotated[float | None, typer.Option(metavar="F", help="Token counts times F; 1 is all of it.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs of each; default 5.")] = None,
    llama_server: Annotated[Path | None, typer.Option(metavar="PATH", help="A llama-server to compare with.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    model: o.Model = None,
    threads: o.Threads = None,
    gpu_layers: o.GpuLayers = None,
    batch_size: o.BatchSize = None,
    cache_type_k: o.CacheTypeK = None,
    cache_type_v: o.CacheTypeV = None,
    flash_attn: o.FlashAttn = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Measure saving and restoring here, against what people use.

    Example: strata bench --only W8,W9
    """
    from ..bench_command import Bench, BenchRequest, check
    from ..bench_command import bench as run_bench
    from ..engine import EngineOptions
    from ..models import choose_model

    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    request = BenchRequest(names, quick, scale, runs, as_csv, llama_server)
    command = Run("bench", as_json=as_json, quiet=quiet, verbose=verbose)
    wanted = check(request)
    command.store()
    options = EngineOptions(
        threads=threads,
        gpu_layers=gpu_layers,
        batch_size=batch_size,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        flash_attn=flash_attn,
    )
    settings, cache = command.config.settings, command.config.places.cache
    run = Bench(
        request,
        lambda: choose_model(model, None, settings),
        options,
        cache,
        command.out,
        command.stop,
        time.time_ns,
    )
    return run_bench(request, run, wanted, command.out)
