"""Every setting: its key, its type, its default and what it may be. This is the table that all else reads.

The dataclasses are the table: a field is a key, its metadata holds the kind of value. Reading files and the
environment, and where a value came from, is config.py's.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .sizes import parse_age, parse_size

ALL_LAYERS = -1
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class Kind:
    """A kind of value: what is accepted, in words, and how a TOML value or typed text becomes one.

    `parse` raises ValueError, or UsageProblem where the text itself is explained there.
    """

    accepts: str
    parse: Callable[[object], Any]


def _whole(least: int, most: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip(), re.ASCII):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"a whole number from {least} to {most}", parse)


def _decimal(least: float, most: float, *, above: bool = False) -> Kind:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or not least <= number <= most or (above and number == least):
            raise ValueError
        return number

    return Kind(f"a number {'above' if above else 'from'} {least:g} to {most:g}", parse)


def _choice(*words: str) -> Kind:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Kind(" or ".join(words), parse)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _truth(value: object) -> bool:
    return _TRUTH[str(value).strip().lower()]


def _layers(value: object) -> int:
    return ALL_LAYERS if value in ("all", ALL_LAYERS, str(ALL_LAYERS)) else COUNT.parse(value)


def _flash(value: object) -> str:
    """TOML's own true and false are taken for on and off."""
    word = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    return str(_choice("on", "off", "auto").parse(word))


def _split(value: object) -> tuple[float, ...]:
    parts: Iterable[object] = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    shares = tuple(_decimal(0, 1e6).parse(part) for part in parts)
    if not any(shares):
        raise ValueError
    return shares


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(part) for part in (value if isinstance(value, list) else [value]))


COUNT = _whole(0, 2**31 - 1)
POSITIVE = _whole(1, 2**31 - 1)
PORT = _whole(0, 65535)
TRUTH = Kind("true or false", _truth)
TEXT = Kind("text", _text)
TEXTS = Kind("text, or a list of texts", _texts)
PATH = Kind("a path", _path)
SIZE = Kind("a size", lambda value: parse_size(str(value)))
AGE = Kind("an age", lambda value: parse_age(str(value)))
SHARE = _decimal(0, 1)
SECONDS = _decimal(0, 86400)
FREQUENCY = _decimal(0, 1e12, above=True)
LAYERS = Kind("a number of layers, or all", _layers)
FLASH = Kind("on, off or auto", _flash)
CACHE_TYPE = _choice(*CACHE_TYPES)
SPLIT_MODE = _choice("none", "layer", "row")
SPLIT = Kind("shares such as 3,1", _split)
WRITE_POLICY = _choice("park", "evict")


def _key(kind: Kind, default: object, key: str = "") -> Any:
    """A field that is a setting: `default` as config.toml has it, `key` where the name adds a unit."""
    value = None if default is None else kind.parse(default)
    return field(default=value, metadata={"kind": kind, "key": key, "written": default})


@dataclass(frozen=True)
class AutoSessions:
    """When conversations are parked by themselves, and how many keep their state."""

    enabled: bool = _key(TRUTH, True)
    min_tokens: int = _key(COUNT, 512)
    keep: int = _key(COUNT, 12)
    max_age_s: int | None = _key(AGE, None, "max_age")
    root_min_tokens: int = _key(COUNT, 256)


@dataclass(frozen=True)
class StoreSettings:
    """What may lie in the session directory."""

    state_dir: Path | None = _key(PATH, None)
    max_size_bytes: int = _key(SIZE, "100GB", "max_size")
    min_free_disk_mib: int = _key(COUNT, 4096)
    prefix_max_age_s: int = _key(AGE, "90d", "prefix_max_age")
    similarity: float = _key(SHARE, 0)
    n_min_tokens: int = _key(COUNT, 0, "n_min")
    quarantine_age_s: int = _key(AGE, "7d", "quarantine_age")


@dataclass(frozen=True)
class MemorySettings:
    """What parked state may take of the memory, and how long leaving may take."""

    ram_mib: int = _key(COUNT, 2048)
    ram_conversations: int = _key(COUNT, 0)
    min_free_ram_mib: int = _key(COUNT, 2560)
    write_policy: str = _key(WRITE_POLICY, "park")
    leave_s: float = _key(SECONDS, 10)


@dataclass(frozen=True)
class ReplSettings:
    """The interactive prompt."""

    history: bool = _key(TRUTH, True)
    history_entries: int = _key(COUNT, 1000)
    markdown: bool = _key(TRUTH, False)


@dataclass(frozen=True)
class ServeSettings:
    """The HTTP service."""

    host: str = _key(TEXT, "127.0.0.1")
    port: int = _key(PORT, 8080)
    api_key_file: Path | None = _key(PATH, None)
    queue: int = _key(COUNT, 64)
    slot_dir: Path | None = _key(PATH, None)


@dataclass(frozen=True)
class ModelSettings:
    """One `[models.NAME]`: where the model is, and its engine options. None: not said here."""

    path: Path | None = _key(PATH, None)
    hf: str | None = _key(TEXT, None)
    ctx_size: int | None = _key(COUNT, None)
    gpu_layers: int | None = _key(LAYERS, None)
    split_mode: str | None = _key(SPLIT_MODE, None)
    tensor_split: tuple[float, ...] | None = _key(SPLIT, None)
    main_gpu: int | None = _key(COUNT, None)
    threads: int | None = _key(POSITIVE, None)
    batch_size: int | None = _key(POSITIVE, None)
    cache_type_k: str | None = _key(CACHE_TYPE, None)
    cache_type_v: str | None = _key(CACHE_TYPE, None)
    flash_attn: str | None = _key(FLASH, None)
    lora: tuple[str, ...] | None = _key(TEXTS, None)
    rope_freq_base: float | None = _key(FREQUENCY, None)
    rope_freq_scale: float | None = _key(FREQUENCY, None)


@dataclass(frozen=True)
class Settings:
    """All settings. `gpu_layers` is -1 for all; `threads` None lets the engine choose."""

    model: str | None = _key(TEXT, None)
    threads: int | None = _key(POSITIVE, None)
    gpu_layers: int = _key(LAYERS, "all")
    ctx_size: int = _key(COUNT, 8192)
    auto_sessions: AutoSessions = AutoSessions()
    store: StoreSettings = StoreSettings()
    memory: MemorySettings = MemorySettings()
    repl: ReplSettings = ReplSettings()
    serve: ServeSettings = ServeSettings()
    models: Mapping[str, ModelSettings] = field(default_factory=dict)


@dataclass(frozen=True)
class Key:
    """One setting: `section` ("" at the top), `name` as written, `attribute` in its dataclass."""

    section: str
    name: str
    attribute: str
    kind: Kind
    written_default: object

    @property
    def full_name(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        """The environment variable; models have none, since their names may hold any letter."""
        return "STRATA_" + self.full_name.replace(".", "_").upper()


SECTIONS: Mapping[str, Any] = {
    "auto_sessions": AutoSessions,
    "store": StoreSettings,
    "memory": MemorySettings,
    "repl": ReplSettings,
    "serve": ServeSettings,
}


def keys_of(section: str, values: Any) -> list[Key]:
    """The keys of one dataclass of settings, in their order."""
    return [
        Key(
            section,
            each.metadata["key"] or each.name,
            each.name,
            each.metadata["kind"],
            each.metadata["written"],
        )
        for each in dataclasses.fields(values)
        if "kind" in each.metadata
    ]


KEYS: tuple[Key, ...] = tuple(
    key for section, values in {"": Settings, **SECTIONS}.items() for key in keys_of(section, values)
)
MODEL_KEYS: tuple[Key, ...] = tuple(keys_of("models.NAME", ModelSettings))
