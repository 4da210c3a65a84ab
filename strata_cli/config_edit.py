"""Writing one setting into config.toml. Reading it is config.py's, the table of keys is settings.py's."""

from pathlib import Path
from typing import Any

from .config import FILE_LIMIT_BYTES, parse_value, read_document, unknown_key
from .errors import NotFound, UsageProblem
from .files import Files, ensure_folder, read_bytes, write_new
from .places import Places
from .settings import KEYS, MODEL_KEYS, MODEL_NAME, Key


def config_set(places: Places, key: str, text: str, files: Files) -> tuple[str, ...]:
    """Write one setting into config.toml, durable and 0600; `none` takes an optional one out. Gives warnings.

    Raises UsageProblem for an unknown key or a value of another kind, before anything is written.
    """
    import tomli_w  # needed by this command alone

    found, path_in_file = _key_to_set(key)
    parsed = parse_value(found, text, key)
    target = places.config_file.resolve()
    document = read_document(files, target)
    _put(document, path_in_file, None if parsed is None else _as_toml(parsed, text))
    data = tomli_w.dumps(document).encode()
    ensure_folder(files, target.parent)
    warnings = _keep_commented(files, target)
    write_new(files, target.parent, target, [data], len(data))
    return warnings


def _key_to_set(key: str) -> tuple[Key, list[str]]:
    section, _, rest = key.partition(".")
    name, _, option = rest.rpartition(".")
    if section == "models" and MODEL_NAME.fullmatch(name):
        for each in MODEL_KEYS:
            if each.name == option:
                return each, ["models", name, option]
        raise unknown_key(key, [f"models.{name}.{each.name}" for each in MODEL_KEYS])
    for each in KEYS:
        if each.full_name == key:
            return each, key.split(".")
    raise unknown_key(key, [each.full_name for each in KEYS])


def _as_toml(parsed: Any, text: str) -> Any:
    """Numbers and truth as such; sizes, paths and lists as they were typed."""
    if isinstance(parsed, bool | float):
        return parsed
    return parsed if isinstance(parsed, int) and text.strip().lstrip("-").isdigit() else text


def _put(document: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        table = document.setdefault(step, {})
        if not isinstance(table, dict):
            raise UsageProblem(f"{step} in config.toml is not a table", hint="mend it by hand")
        document = table
    if value is None:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = value


def _keep_commented(files: Files, target: Path) -> tuple[str, ...]:
    """TOML is written anew, without comments: a file that has some is kept beside it."""
    try:
        old = read_bytes(files, target, FILE_LIMIT_BYTES)
    except NotFound:
        return ()
    if not any(line.lstrip().startswith(b"#") for line in old.splitlines()):
        return ()
    kept = target.with_name(target.name + ".old")
    write_new(files, target.parent, kept, [old], len(old))
    return (f"comments are not kept in {target.name}; the file as it was is now {kept.name}",)
