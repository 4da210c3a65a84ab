"""Write what is made from the commands: completion scripts, the man page, the reference of commands.

python docs/generate.py          writes
python docs/generate.py --check  says what differs, and exits 1 then
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from strata_cli.cli.pages import man_page, reference  # noqa: E402
from strata_cli.cli.shell_scripts import bash, fish, zsh  # noqa: E402
from strata_cli.cli.tree import command_tree  # noqa: E402


def made() -> dict[Path, str]:
    """Each file with what it must hold."""
    tree = command_tree()
    return {
        ROOT / "completions" / "strata.bash": bash(tree),
        ROOT / "completions" / "_strata": zsh(tree),
        ROOT / "completions" / "strata.fish": fish(tree),
        ROOT / "docs" / "strata.1": man_page(tree),
        ROOT / "docs" / "reference" / "commands.md": reference(tree),
    }


def main() -> int:
    stale = [path for path, text in made().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made()[path])
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
