"""`strata config`: every setting with its value and origin, one value, writing one, and where the file is.

Owns what is printed. Where a value comes from is `config`, writing the file `config_edit`.
"""

import os
from typing import Any

from .config import Config, Value
from .config_edit import config_set
from .files import Files
from .hub import PREFIX
from .output import Output
from .settings import KEYS, PATH


def show_all(config: Config, out: Output) -> int:
    """Every setting; returns the exit status."""
    out.table(["setting", "value", "from"], [[each.key, each.text, origin_of(each)] for each in config.values])
    out.ids([each.key for each in config.values])
    return out.finish({"file": str(config.places.config_file), "settings": [as_json(each) for each in config.values]})


def show_one(config: Config, key: str, out: Output) -> int:
    """One value alone, on stdout. Raises UsageProblem for an unknown key."""
    value = config.get(key)
    out.show(value.text)
    out.ids([value.text])
    out.detail(f"{value.key} is {value.text}: {origin_of(value)}")
    return out.finish(as_json(value))


def write_one(config: Config, key: str, text: str, out: Output) -> int:
    """Write a setting into config.toml. Raises UsageProblem before anything is written."""
    text = _from_here(config, key, text, out)
    for warning in config_set(config.places, key, text, Files()):
        out.warning(warning)
    variable = next((each.variable for each in KEYS if each.full_name == key), None)
    if variable is not None and any(each.key == key and each.where == variable for each in config.values):
        out.warning(f"{variable} is set, and wins over the file")
    path = config.places.config_file
    out.note(f"{key} is written to {path}")
    return out.finish({"key": key, "file": str(path)})


def _from_here(config: Config, key: str, text: str, out: Output) -> str:
    """A path that was typed means the same from everywhere; one that leads to no model is told."""
    is_model = key == "model" and text not in config.settings.models and not text.startswith(PREFIX)
    if not is_model and not (key.endswith(".path") or any(k.full_name == key and k.kind is PATH for k in KEYS)):
        return text
    if text == "none" or not text.strip():
        return text
    path = text if text.startswith("~") else os.path.abspath(text)
    if (is_model or key.endswith(".path")) and not os.path.exists(os.path.expanduser(path)):
        out.warning(f"there is no file {path}" + (", and no model of that name" if is_model else ""))
    return path


def show_path(config: Config, out: Output) -> int:
    """Where the settings, the conversations, the history and the cache are."""
    places = config.places
    folders = {"file": places.config_file, "data": places.data, "state": places.state, "cache": places.cache}
    out.show(str(places.config_file))
    out.ids([str(places.config_file)])
    for what in ("data", "state", "cache"):
        out.detail(f"{what}: {folders[what]}")
    return out.finish({what: str(path) for what, path in folders.items()})


def origin_of(value: Value) -> str:
    """Where a value comes from, in words: a variable, a file, or `default`."""
    return value.where or value.origin


def as_json(value: Value) -> dict[str, Any]:
    """One setting: sizes are bytes, ages seconds."""
    return {"key": value.key, "value": value.value, "text": value.text, "origin": value.origin, "where": value.where}
