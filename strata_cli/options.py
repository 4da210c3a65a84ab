"""The options that several commands share, as typer annotations.

Owns their names and help texts. What they mean is decided where they are used, and what decides it is imported there:
every `--help` reads this file.
"""

from typing import Annotated

import typer

ENGINE, SAMPLING, STORING = "Engine", "Sampling", "Storing"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on failure too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids or the answer alone.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Say why each step was taken; -vv: the engine's log.")
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", metavar="PATH|ALIAS|hf:...", help="A GGUF file, or hf:OWNER/REPO[:FILE].")
]
CtxSize = Annotated[int | None, typer.Option(min=0, metavar="N", help="Context in tokens; 0: the model's own.")]
GpuLayers = Annotated[int | None, typer.Option(min=-1, metavar="N", help="Layers on the GPU; default all.")]
SplitMode = Annotated[str | None, typer.Option(metavar="MODE", help="none, layer, row or tensor: several GPUs.")]
TensorSplit = Annotated[str | None, typer.Option(metavar="A,B,...", help="Shares of the GPUs.")]
MainGpu = Annotated[int | None, typer.Option(min=0, metavar="N", help="The GPU to use with --split-mode none.")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; default what the machine has.")]
BatchSize = Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens read at once.")]
CacheTypeK = Annotated[str | None, typer.Option(metavar="TYPE", help="f16, q8_0, ... for K.")]
CacheTypeV = Annotated[str | None, typer.Option(metavar="TYPE", help="f16, q8_0, ... for V.")]
FlashAttn = Annotated[str | None, typer.Option(metavar="on|off|auto", help="Flash attention.")]
Lora = Annotated[list[str] | None, typer.Option(metavar="PATH[:SCALE]|none", help="An adapter; repeatable.")]
RopeFreqBase = Annotated[float | None, typer.Option(metavar="F", help="RoPE base frequency.")]
RopeFreqScale = Annotated[float | None, typer.Option(metavar="F", help="RoPE frequency scale.")]
Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for a lock.")]


def tensor_split(text: str | None) -> tuple[float, ...] | None:
    """Raises UsageProblem for what are no numbers."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        from .errors import UsageProblem

        raise UsageProblem(f"--tensor-split {text}: not numbers between commas") from None


def loras(texts: list[str] | None) -> tuple[tuple[str, float], ...] | None:
    """`none` gives up the adapters that a conversation remembers."""
    if not texts:
        return None
    from .models import parse_lora

    return () if texts == ["none"] else tuple(parse_lora(text) for text in texts)
