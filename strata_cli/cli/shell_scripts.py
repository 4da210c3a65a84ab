"""Completion scripts for bash, zsh and fish, made from the command tree.

Owns what each parameter completes to, and the quoting. Words and help are static text of strata's own; names come from
`strata _complete`, a line each, and no shell ever evaluates them.
"""

import re
from collections.abc import Callable, Mapping

from .tree import Command, Parameter

HEADER = "# strata: completion for {shell}. Made by docs/generate.py from the commands; do not edit."
CHOICES = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")
BY_KEY = {
    "conversation": "conversations",
    "fork": "conversations",
    "state": "conversations",
    "alternatives": "conversations",
    "prefix": "prefixes",
    "model": "models files",
}
BY_ARGUMENT = {
    "save": "conversations",
    "inspect": "conversations prefixes files",
    "prune": "conversations",
    "prefix show": "prefixes",
    "prefix pin": "prefixes",
    "prefix unpin": "prefixes",
    "prefix rm": "prefixes",
    "config get": "keys",
    "config set": "keys files",
}


def completes_to(command: Command, parameter: Parameter) -> str:
    """Kinds separated by blanks: names to ask for, `files`, or `=` and the words themselves; "" for free text."""
    if CHOICES.fullmatch(parameter.metavar):
        return "=" + parameter.metavar.replace("|", " ")
    by_key = BY_KEY.get(parameter.key) if parameter.names else BY_ARGUMENT.get(command.name)
    return by_key or ("files" if re.search("FILE|PATH", parameter.metavar) else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _positional(command: Command) -> str:
    kinds = [completes_to(command, each) for each in command.arguments]
    return next((kind for kind in kinds if kind), "")


def _value_cases(tree: Command, indent: str) -> list[str]:
    """Case arms: the word before the one that is typed wants a value. `free` is text that nobody can complete."""
    arms = []
    for command in tree.leaves():
        for option in command.options:
            if option.metavar:
                patterns = "|".join(_quoted(f"{command.name} {name}") for name in option.names)
                arms.append(f"{indent}{patterns}) wanted={_quoted(completes_to(command, option) or 'free')} ;;")
    return arms


def bash(tree: Command) -> str:
    groups = [command for command in tree.commands if command.commands]
    lines = [
        HEADER.format(shell="bash"),
        "# Put it where bash-completion looks, or: source <(strata completion bash)",
        "",
        "_strata_offer() {  # KINDS WORD: what begins with WORD goes to COMPREPLY; nothing is evaluated",
        "    local kind name",
        "    case $1 in",
        '        =*) for name in ${1#=}; do [[ $name == "$2"* ]] && COMPREPLY+=("$name"); done; return ;;',
        "    esac",
        "    for kind in $1; do",
        "        case $kind in",
        "            free) ;;",
        "            files)",
        "                compopt -o filenames 2>/dev/null",
        '                while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$2") ;;',
        "            *)",
        "                while IFS= read -r name; do",
        '                    [[ $name == "$2"* ]] && COMPREPLY+=("$name")',
        '                done < <(command strata _complete "$kind" 2>/dev/null) ;;',
        "        esac",
        "    done",
        "}",
        "",
        "_strata() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} wanted= options=",
        "    COMPREPLY=()",
        "    if (( COMP_CWORD == 1 )); then",
        f"        _strata_offer '={' '.join(c.name for c in tree.commands)} --help --version' \"$current\"",
        "        return",
        "    fi",
        "    case $command in",
    ]
    for group in groups:
        names = " ".join(child.name.split()[-1] for child in group.commands)
        lines += [
            f"        {group.name})",
            f"            if (( COMP_CWORD == 2 )); then _strata_offer '={names} --help' \"$current\"; return; fi",
            '            command="$command ${COMP_WORDS[2]}" ;;',
        ]
    lines += ["    esac", '    case "$command ${COMP_WORDS[COMP_CWORD-1]}" in']
    lines += _value_cases(tree, " " * 8)
    lines += ["    esac", "    if [[ -z $wanted && $current == -* ]]; then", "        case $command in"]
    for command in tree.leaves():
        names = " ".join(name for option in command.options for name in option.names)
        lines.append(f"            {_quoted(command.name)}) options='={names} -h --help' ;;")
    lines += ["        esac", '        _strata_offer "$options" "$current"', "        return", "    fi"]
    lines += ["    if [[ -z $wanted ]]; then", "        case $command in"]
    lines += [
        f"            {_quoted(c.name)}) wanted={_quoted(_positional(c))} ;;" for c in tree.leaves() if _positional(c)
    ]
    lines += [
        "        esac",
        "    fi",
        '    _strata_offer "$wanted" "$current"',
        "}",
        "",
        "complete -F _strata strata",
        "",
    ]
    return "\n".join(lines)


def zsh(tree: Command) -> str:
    groups = [command for command in tree.commands if command.commands]
    lines = [
        "#compdef strata",
        HEADER.format(shell="zsh"),
        "# Save it as _strata in a folder of fpath, or: source <(strata completion zsh)",
        "",
        "_strata_offer() {  # KINDS; candidates are added as they are, nothing is evaluated",
        "    local kind",
        "    local -a found",
        "    if [[ $1 == '='* ]]; then",
        "        found=(${=1#=})",
        "        compadd -- $found",
        "        return",
        "    fi",
        "    for kind in ${=1}; do",
        "        case $kind in",
        "            free) ;;",
        "            files) _files ;;",
        "            *)",
        '                found=(${(f)"$(command strata _complete $kind 2>/dev/null)"})',
        "                (( $#found )) && compadd -- $found ;;",
        "        esac",
        "    done",
        "}",
        "",
        "_strata() {",
        "    local current=$words[CURRENT] command=$words[2] wanted=",
        "    local -a described",
        "    if (( CURRENT == 2 )); then",
        "        described=(",
        *(f"            {_described(c.name, c.summary)}" for c in tree.commands),
        "        )",
        "        _describe command described",
        "        return",
        "    fi",
        "    case $command in",
    ]
    for group in groups:
        lines += [
            f"        {group.name})",
            "            if (( CURRENT == 3 )); then",
            "                described=(",
            *(f"                    {_described(c.name.split()[-1], c.summary)}" for c in group.commands),
            "                )",
            "                _describe command described",
            "                return",
            "            fi",
            '            command="$command $words[3]" ;;',
        ]
    lines += ["    esac", '    case "$command $words[CURRENT-1]" in']
    lines += _value_cases(tree, " " * 8)
    lines += ["    esac", "    if [[ -z $wanted && $current == -* ]]; then", "        case $command in"]
    for command in tree.leaves():
        lines += [
            f"            {_quoted(command.name)})",
            "                described=(",
            *(f"                    {_described(n, o.help)}" for o in command.options for n in o.names),
            "                ) ;;",
        ]
    lines += ["        esac", "        _describe -o option described", "        return", "    fi"]
    lines += ["    if [[ -z $wanted ]]; then", "        case $command in"]
    lines += [
        f"            {_quoted(c.name)}) wanted={_quoted(_positional(c))} ;;" for c in tree.leaves() if _positional(c)
    ]
    lines += ["        esac", "    fi", "    _strata_offer $wanted", "}", ""]
    lines += [
        "if [[ $funcstack[1] == _strata ]]; then",
        '    _strata "$@"',
        "else",
        "    compdef _strata strata",
        "fi",
        "",
    ]
    return "\n".join(lines)


def _described(word: str, text: str) -> str:
    return _quoted(word.replace(":", "\\:") + ":" + text)


def fish(tree: Command) -> str:
    lines = [
        HEADER.format(shell="fish"),
        "# Save it as strata.fish in ~/.config/fish/completions, or: strata completion fish | source",
        "",
        "function __strata_at  # whether the command is ARGV",
        "    set -l words (commandline -opc)",
        "    for number in (seq (count $argv))",
        '        test "$words[$(math $number + 1)]" = $argv[$number]; or return 1',
        "    end",
        "end",
        "",
        "function __strata_after  # whether ARGV stands there and nothing else yet",
        "    __strata_at $argv; and test (count (commandline -opc)) -eq (math (count $argv) + 1)",
        "end",
        "",
        "complete -c strata -f",
    ]
    for command in tree.commands:
        lines.append(f"complete -c strata -n __strata_after -a {command.name} -d {_fish(command.summary)}")
    for group in (command for command in tree.commands if command.commands):
        for child in group.commands:
            word = child.name.split()[-1]
            lines.append(f"complete -c strata -n '__strata_after {group.name}' -a {word} -d {_fish(child.summary)}")
    for command in tree.leaves():
        at = f"complete -c strata -n '__strata_at {command.name}'"
        for option in command.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -r{_fish_value(completes_to(command, option))}" if option.metavar else ""
            lines.append(f"{at} {names}{value} -d {_fish(option.help)}")
        if positional := _positional(command):
            lines.append(f"{at}{_fish_value(positional)}")
    return "\n".join([*lines, ""])


def _fish_value(kinds: str) -> str:
    if kinds.startswith("="):
        return f" -f -a {_fish(kinds[1:])}"
    asked = [kind for kind in kinds.split() if kind != "files"]
    files = " -F" if "files" in kinds.split() else " -f"
    return files + (f" -a {_fish(' '.join(f'(strata _complete {kind})' for kind in asked))}" if asked else "")


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Mapping[str, Callable[[Command], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
