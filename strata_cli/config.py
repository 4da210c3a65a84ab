"""Where settings come from: the environment, config.toml, defaults. Reading creates nothing.

The table of keys is settings.py's; flags, and what a conversation remembers, are the command line's. What
reaches the layers below are plain values.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import NotFound, StrataError, UsageProblem
from .files import Files, read_bytes
from .places import Places, find_places
from .settings import KEYS, MODEL_KEYS, MODEL_NAME, SECTIONS, Key, ModelSettings, Settings

FILE_LIMIT_BYTES = 1 << 20
# What else may be set: these are no settings.
OTHER_VARIABLES = frozenset({"STRATA_HOME", "STRATA_DEBUG", "STRATA_NO_HISTORY"})
SECRET_ENDINGS = ("key", "token", "secret", "password")
HIDDEN = "********"


@dataclass(frozen=True)
class Value:
    """One setting in force: `value` as JSON (bytes, seconds), `text` as a person writes it; secrets masked.

    `origin` is "environment", "file" or "default", `where` the variable or the file ("" for a default).
    """

    key: str
    value: Any
    text: str
    origin: str
    where: str


@dataclass(frozen=True)
class Config:
    """What was found. `values` has every key, in the table's order; `warnings` are for output to tell."""

    places: Places
    settings: Settings
    values: tuple[Value, ...]
    warnings: tuple[str, ...]

    def get(self, key: str) -> Value:
        """One value by its full name, such as `store.max_size`. Raises UsageProblem naming the nearest."""
        for value in self.values:
            if value.key == key:
                return value
        raise unknown_key(key, [value.key for value in self.values])

    def is_set(self, key: str) -> bool:
        """Whether a key was set by anybody, or is its default."""
        return self.get(key).origin != "default"


def load_config(
    environ: Mapping[str, str] = os.environ, files: Files | None = None, *, tolerant: bool = False
) -> Config:
    """Settings with their origins. Raises UsageProblem for a value or a file that cannot be understood.

    `tolerant` is for the commands that mend it: what cannot be understood is a warning, and the default is in force.
    """
    places = find_places(environ)
    faults: list[str] | None = [] if tolerant else None
    document = _document(files or Files(), places.config_file, faults)
    where = str(places.config_file)
    settings, warnings = Settings(), _unknown_in_file(document, where) + _unknown_variables(environ)
    values: list[Value] = []
    for key in KEYS:
        value, parsed = _in_force(key, environ, document, where, faults)
        values.append(value)
        if value.origin != "default":
            settings = _with(settings, key, parsed)
    models, model_values, incomplete = _models(document, where, faults)
    told = (*warnings, *incomplete, *(faults or ()))
    return Config(places, replace(settings, models=models), (*values, *model_values), told)


def _document(files: Files, path: Path, faults: list[str] | None) -> dict[str, Any]:
    try:
        return read_document(files, path)
    except StrataError as problem:
        if faults is None:
            raise
        faults.append(problem.message)
        return {}


def _understood(key: Key, written: Any, where: str, faults: list[str] | None) -> tuple[Any, bool]:
    """The typed value, and whether it could be made. Raises UsageProblem unless faults are collected."""
    try:
        return parse_value(key, written, where), True
    except UsageProblem as problem:
        if faults is None:
            raise UsageProblem(problem.message, hint=problem.hint or "`strata config set` mends it") from None
        faults.append(problem.message)
        return None, False


def _in_force(
    key: Key, environ: Mapping[str, str], document: Mapping[str, Any], file: str, faults: list[str] | None
) -> tuple[Value, Any]:
    section = document.get(key.section, {}) if key.section else document
    written: object
    # A variable that is set to nothing is one that is not set.
    if text := environ.get(key.variable, ""):
        origin, where, written = "environment", key.variable, text
    elif isinstance(section, dict) and key.name in section:
        origin, where, written = "file", file, section[key.name]
    else:
        origin, where, written = "default", "", key.written_default
    parsed, is_good = _understood(key, written, f"{where}: {key.full_name}" if origin == "file" else where, faults)
    if not is_good:
        origin, where, written = "default", "", key.written_default
        parsed = parse_value(key, written, where)
    if isinstance(parsed, Path):
        # Never relative to where the next command happens to run.
        parsed = Path(file).parent / parsed if origin == "file" else parsed.absolute()
    return _value(key.full_name, parsed, written, origin, where), parsed


def parse_value(key: Key, written: Any, where: str) -> Any:
    """The typed value of what stands in a file or a variable. Raises UsageProblem naming `where`."""
    if written is None or (written == "none" and key.written_default is None):
        return None
    try:
        return key.kind.parse(written)
    except UsageProblem as problem:
        raise UsageProblem(f"{where}: {problem.message}", hint=problem.hint) from problem
    except (ValueError, KeyError, RuntimeError, OverflowError) as error:
        shown = HIDDEN if _is_secret(key.name) else repr(written)
        raise UsageProblem(f"{where}: {shown} is not {key.kind.accepts}") from error


def _value(name: str, parsed: Any, written: Any, origin: str, where: str) -> Value:
    if _is_secret(name) and parsed is not None:
        return Value(name, HIDDEN, HIDDEN, origin, where)
    plain = str(parsed) if isinstance(parsed, Path) else list(parsed) if isinstance(parsed, tuple) else parsed
    text = "none" if parsed is None else str(parsed).lower() if isinstance(parsed, bool) else str(written)
    return Value(name, plain, text, origin, where)


def _is_secret(name: str) -> bool:
    return name.lower().endswith(SECRET_ENDINGS)


def _with(settings: Settings, key: Key, parsed: Any) -> Settings:
    if not key.section:
        return replace(settings, **{key.attribute: parsed})
    section = replace(getattr(settings, key.section), **{key.attribute: parsed})
    return replace(settings, **{key.section: section})


def _models(
    document: Mapping[str, Any], file: str, faults: list[str] | None
) -> tuple[dict[str, ModelSettings], list[Value], list[str]]:
    """The models, their values, and a warning for each that says not, or twice, where its file is: it is left out."""
    models: dict[str, ModelSettings] = {}
    values: list[Value] = []
    incomplete = []
    tables = document.get("models", {})
    for name, table in tables.items() if isinstance(tables, dict) else ():
        where = f"{file}: models.{name}"
        if not MODEL_NAME.fullmatch(name) or not isinstance(table, dict):
            told = f"{where} is not a table with a name of letters, digits, '.', '_' and '-'"
            if faults is None:
                raise UsageProblem(told, hint="mend it by hand: `strata config path` says where")
            faults.append(told)
            continue
        model, model_values = _model(name, table, file, faults)
        values += model_values
        if (model.path is None) == (model.hf is None):
            incomplete.append(
                f"{where} has {'both `path` and' if model.path else 'neither `path` nor'} `hf`: it is left out"
            )
        else:
            models[name] = model
    return models, values, incomplete


def _model(
    name: str, table: Mapping[str, Any], file: str, faults: list[str] | None
) -> tuple[ModelSettings, list[Value]]:
    model, values = ModelSettings(), []
    for key in (key for key in MODEL_KEYS if key.name in table):
        parsed, is_good = _understood(key, table[key.name], f"{file}: models.{name}.{key.name}", faults)
        if not is_good:
            continue
        if isinstance(parsed, Path):
            parsed = Path(file).parent / parsed
        model = replace(model, **{key.attribute: parsed})
        values.append(_value(f"models.{name}.{key.name}", parsed, table[key.name], "file", file))
    return model, values


def read_document(files: Files, path: Path) -> dict[str, Any]:
    """config.toml as it stands, {} where there is none. Raises UsageProblem when it is not TOML."""
    try:
        # The user's own link, to a folder of dotfiles for instance, is followed.
        data = read_bytes(files, path.resolve(), FILE_LIMIT_BYTES)
    except NotFound:
        return {}
    except RuntimeError:
        raise UsageProblem(f"{str(path)!r} is a link that leads to itself", hint="mend it or move it away") from None
    import tomllib  # start-up is quicker for the many who have no file

    try:
        return tomllib.loads(data.decode())
    except ValueError as error:
        raise UsageProblem(f"{str(path)!r} is not TOML: {error}", hint="mend it or move it away") from error


def _unknown_in_file(document: Mapping[str, Any], file: str) -> list[str]:
    """One warning for each key that means nothing; never its value, which may be a secret."""
    known = {key.full_name for key in KEYS}
    model_keys = {key.name for key in MODEL_KEYS}
    warnings = []
    for full_name in _names_in(document):
        section, _, rest = full_name.partition(".")
        if full_name in known or (section == "models" and rest.rpartition(".")[2] in model_keys):
            continue
        candidates = [f"{full_name.rpartition('.')[0]}.{name}" for name in model_keys] if section == "models" else known
        warnings.append(f"{file}: unknown key {full_name}{_suggestion(full_name, candidates)}")
    return warnings


def _names_in(document: Mapping[str, Any]) -> list[str]:
    names = []
    for name, content in document.items():
        if name == "models" and isinstance(content, dict):
            tables = ((f"models.{model}", table) for model, table in content.items() if isinstance(table, dict))
            names += [f"{model}.{key}" for model, table in tables for key in table]
        elif isinstance(content, dict):
            names += [f"{name}.{key}" for key in content] or ([] if name in SECTIONS else [name])
        else:
            names.append(name)
    return names


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {key.variable for key in KEYS} | OTHER_VARIABLES
    unknown = sorted(name for name in environ if name.startswith("STRATA_") and name not in known)
    return [f"unknown variable {name}{_suggestion(name, known)}" for name in unknown]


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib  # for mistakes only

    near = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(key: str, known: Iterable[str]) -> UsageProblem:
    """The error for a name that is no setting, with the nearest one."""
    return UsageProblem(f"no setting is called {key!r}{_suggestion(key, known)}", hint="see `strata config list`")
