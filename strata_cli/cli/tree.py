"""The commands as plain values, for what is made from them: completion, the man page, the reference.

Owns reading typer's command tree, through attributes that it has in common with Click's.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .app import app

ORDER = ("run", "save", "restore", "inspect", "prune", "prefix", "bench", "config", "serve", "completion")


@dataclass(frozen=True)
class Parameter:
    """An option (`names` begin with dashes) or an argument (`names` is empty). `metavar` is "" for a flag."""

    key: str
    names: tuple[str, ...]
    metavar: str
    help: str
    default: Any
    repeatable: bool


@dataclass(frozen=True)
class Command:
    """One command: `name` as typed after `strata`, "" for the whole. Groups have `commands`."""

    name: str
    help: str
    epilog: str
    parameters: tuple[Parameter, ...]
    commands: tuple["Command", ...]

    @property
    def options(self) -> list[Parameter]:
        return [each for each in self.parameters if each.names]

    @property
    def arguments(self) -> list[Parameter]:
        return [each for each in self.parameters if not each.names]

    @property
    def summary(self) -> str:
        return self.help.split("\n")[0].rstrip(".")

    def leaves(self) -> Iterator["Command"]:
        """Every command that does something."""
        for command in self.commands:
            yield from command.leaves() if command.commands else (command,)


def command_tree() -> Command:
    """All of them, in the order in which they are explained."""
    from typer.main import get_command

    from . import load_all

    load_all()
    return _command("", get_command(app))


def _command(name: str, found: Any) -> Command:
    children = getattr(found, "commands", {})
    order = {each: number for number, each in enumerate(ORDER)}
    names = sorted(children, key=lambda child: order.get(child, len(order))) if not name else list(children)
    return Command(
        name,
        inspect.cleandoc(found.help or ""),
        inspect.cleandoc(found.epilog or ""),
        tuple(_parameter(each) for each in found.params if not getattr(each, "hidden", False)),
        tuple(_command(f"{name} {child}".strip(), children[child]) for child in names),
    )


def _parameter(found: Any) -> Parameter:
    is_option = found.param_type_name == "option"
    flag = is_option and (found.is_flag or found.count)
    names = tuple(sorted((*found.opts, *found.secondary_opts), key=len)) if is_option else ()
    metavar = "" if flag else str(found.metavar or found.name.upper())
    repeatable = bool(getattr(found, "multiple", False)) or found.nargs == -1
    return Parameter(found.name, names, metavar, str(found.help or ""), found.default, repeatable)
