"""The man page and the reference of commands, made from the command tree.

Owns their form. What they say is the help texts', and the few paragraphs here.
"""

from ..slash import COMMANDS
from .tree import Command, Parameter

ABOUT = (
    "strata chats with local language models through llama.cpp, and keeps what they have read: the state of each"
    " conversation is parked in small verified files and put back the next time, so that it goes on without being"
    " read again."
)
EXITS = (
    ("0", "done"),
    ("1", "failed"),
    ("2", "usage, or a confirmation was needed and there is no terminal"),
    ("3", "done in part"),
    ("10", "no such conversation, prefix or file"),
    ("11", "locked by another process"),
    ("12", "bad: corrupt or malformed"),
    ("13", "refused: other model, engine or configuration"),
    ("14", "the model cannot be found or loaded"),
    ("15", "no room: disk, memory or context"),
    ("130", "interrupted"),
    ("143", "ended by SIGTERM"),
)
VARIABLES = (
    ("STRATA_HOME", "the folder of configuration, conversations, history and cache"),
    ("STRATA_SECTION_KEY", "a setting: STRATA_STORE_MAX_SIZE is store.max_size; STRATA_MODEL is model"),
    ("STRATA_NO_HISTORY", "when set, what is typed at the prompt is not kept"),
    ("STRATA_DEBUG", "when set, a fault shows where it was"),
    ("NO_COLOR", "when set, nothing is coloured"),
    ("HF_HUB_OFFLINE", "when 1, hf: names are looked up in the cache only"),
)


def usage(command: Command) -> str:
    """One line: the command, and what it takes."""
    arguments = " ".join(_argument(each) for each in command.arguments)
    return f"strata {command.name} [OPTION]... {arguments}".rstrip()


def _argument(parameter: Parameter) -> str:
    return parameter.metavar


def described(option: Parameter) -> str:
    """The names of an option with its value."""
    names = ", ".join(option.names)
    return f"{names} {option.metavar}" if option.metavar else names


def help_of(option: Parameter) -> str:
    """Its help, and a default that says something."""
    said = option.help.rstrip(".")
    if option.metavar and option.names and isinstance(option.default, int | float | str) and "default" not in said:
        value = f"{option.default:g}" if isinstance(option.default, float) else option.default
        said += f" (default {value})"
    return said + "."


def parts_of(command: Command) -> tuple[str, str, str]:
    """Its help, example and exit statuses."""
    text, _, example = command.help.partition("Example: ")
    return text.strip(), example.strip(), command.epilog.removeprefix("Exit status: ")


def reference(tree: Command) -> str:
    """docs/reference/commands.md."""
    lines = [
        "# Commands",
        "",
        "<!-- Made by docs/generate.py from the commands; do not edit. -->",
        "",
        "`strata COMMAND --help` says the same. Exit statuses are explained in [exit-codes.md](exit-codes.md), what"
        " `--json` prints in [json.md](json.md).",
        "",
        *(f"- [`strata {c.name}`](#{('strata ' + c.name).replace(' ', '-')}): {c.summary}" for c in tree.leaves()),
    ]
    for command in tree.leaves():
        text, example, exits = parts_of(command)
        lines += ["", f"## strata {command.name}", "", "```text", usage(command), "```", "", text]
        if example:
            lines += ["", "```text", example, "```"]
        if command.options:
            lines += ["", "| option | what it does |", "|---|---|"]
            lines += [f"| `{_cell(described(each))}` | {_cell(help_of(each))} |" for each in command.options]
        lines += ["", f"Exit status: {exits}"] if exits else []
    lines += ["", "## The prompt", "", "A line that begins with one of these words is a command; `//x` sends `/x`.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    lines += [f"| `{_cell(f'{c.word} {c.takes}'.strip())}` | {_cell(_sentence(c.help))} |" for c in COMMANDS]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def man_page(tree: Command) -> str:
    """docs/strata.1, in the man macros."""
    lines = [
        '.\\" Made by docs/generate.py from the commands; do not edit.',
        '.TH STRATA 1 "" "strata" "User Commands"',
        ".SH NAME",
        "strata \\- chat with local models, and keep what they read",
        ".SH SYNOPSIS",
    ]
    for command in tree.leaves():
        lines += [
            f".B {_roff('strata ' + command.name)}",
            _roff(usage(command).split(command.name, 1)[1].strip()),
            ".br",
        ]
    lines += [".SH DESCRIPTION", _roff(ABOUT), ".SH COMMANDS"]
    for command in tree.leaves():
        text, example, exits = parts_of(command)
        lines += [f".SS {_roff('strata ' + command.name)}", *_paragraphs(text)]
        if example:
            lines += [".PP", "Example:", ".RS 4", ".nf", _roff(example), ".fi", ".RE"]
        for option in command.options:
            lines += [".TP", f"\\fB{_roff(described(option))}\\fR", _roff(help_of(option))]
        lines += [".PP", _roff(f"Exit status: {exits}")] if exits else []
    for title, rows in (
        ("THE PROMPT", [(f"{c.word} {c.takes}".strip(), _sentence(c.help)) for c in COMMANDS]),
        ("EXIT STATUS", [(code, f"{meaning}.") for code, meaning in EXITS]),
        ("ENVIRONMENT", [(name, f"{meaning}.") for name, meaning in VARIABLES]),
    ):
        lines.append(f".SH {title}")
        for term, meaning in rows:
            lines += [".TP", f"\\fB{_roff(term)}\\fR", _roff(meaning)]
    return "\n".join([*lines, ""])


def _paragraphs(text: str) -> list[str]:
    lines = []
    for number, paragraph in enumerate(text.split("\n\n")):
        lines += [".PP"] if number else []
        lines.append(_roff(paragraph.replace("\n", " ")))
    return lines


def _roff(text: str) -> str:
    """Text that no macro or escape is read into."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
