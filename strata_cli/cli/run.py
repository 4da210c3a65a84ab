"""`strata run`, as options."""

from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_RUN = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation, 11 held by another process, 12 bad, 13 refused,"
    " 14 no model, 15 no room, 130 interrupted, 143 ended."
)


@app.command(epilog=EXIT_RUN)
def run(
    words: Annotated[list[str] | None, typer.Argument(metavar="[-] [PROMPT]", help="`-` reads standard input.")] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", "-C", metavar="NAME", help="Continue it, or create it.")
    ] = None,
    continue_last: Annotated[bool, typer.Option("--continue", "-c", help="Continue the last conversation.")] = False,
    existing: Annotated[bool, typer.Option("--existing", help="Do not create the conversation.")] = False,
    messages: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="The whole history as a JSON list of messages.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --messages and -C: what NAME says stays as a branch.")
    ] = False,
    prefix: Annotated[str | None, typer.Option(metavar="NAME", help="Begin a conversation at a prefix.")] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", metavar="TEXT", help="The system prompt.")] = None,
    system_file: Annotated[str | None, typer.Option(metavar="FILE", help="The system prompt from a file.")] = None,
    tools: Annotated[str | None, typer.Option(metavar="FILE", help="A JSON list of tools for the template.")] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=0, metavar="N", help="0: what the context has left.")
    ] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End the reply here; repeatable.")] = None,
    temp: Annotated[float, typer.Option(min=0, metavar="F", help="Temperature.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, metavar="N", help="0: off.")] = 40,
    top_p: Annotated[float, typer.Option(min=0, max=1, metavar="F", help="1: off.")] = 0.95,
    min_p: Annotated[float, typer.Option(min=0, max=1, metavar="F", help="0: off.")] = 0.05,
    repeat_penalty: Annotated[float, typer.Option(min=0, metavar="F", help="1: off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed, the same reply.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the most likely token.")] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Write nothing: no text, no state, no history.")] = False,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no history of what is typed.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where stored state cannot be used.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be kept, applied and read.")] = False,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME[@TURN]", help="A new conversation from there; -C NEW names it.")
    ] = None,
    on_full: Annotated[str, typer.Option(metavar="CHOICE", help="A full context: stop, grow or drop-oldest.")] = "stop",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download what hf: names without asking.")] = False,
    repl: Annotated[str | None, typer.Option(metavar="text|jsonl", help="The loop, from standard input.")] = None,
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
    """Chat: one turn with PROMPT, or the interactive prompt.

    Example: strata run -C notes "And what follows from that?"
    """
    from ..engine import EngineOptions, Sampling
    from ..errors import UsageProblem
    from ..full_context import CHOICES
    from ..reply import ReplyOptions
    from ..run_command import RunRequest, check, read_tools, read_whole, wants_loop
    from ..run_command import run as run_request
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
    if on_full not in CHOICES:
        raise UsageProblem(f"--on-full {on_full}: not one of {', '.join(CHOICES)}")
    if repl not in (None, "text", "jsonl"):
        raise UsageProblem(f"--repl {repl}: text or jsonl")
    if system is not None and system_file is not None:
        raise UsageProblem("--system and --system-file are two different wishes")
    sampling = Sampling(greedy, temp, top_k, top_p, min_p, repeat_penalty, seed)
    request = RunRequest(
        words=tuple(words or ()),
        conversation=conversation,
        continue_last=continue_last,
        existing=existing,
        system=read_whole(system_file, "--system-file") if system_file is not None else system,
        tools=read_tools(tools) if tools is not None else None,
        reply=ReplyOptions(sampling, max_tokens, tuple(stop or ()), on_full),
        strict=strict,
        plan=plan,
        repl=repl,
        fork=fork,
        messages=messages,
        prefix=prefix,
        history=not no_history,
        replace=replace,
    )
    command = Run("run", as_json=as_json, quiet=quiet, verbose=verbose)
    session = command.session(Wishes(model, engine, save=not (no_save or plan), yes=yes))
    check(request)
    try:
        if wants_loop(request):
            from ..repl import loop

            return loop(request, session)
        return run_request(request, session)
    finally:
        session.close_chat()
