"""`python -m strata_cli` is the command `strata`."""

from strata_cli.cli import main

if __name__ == "__main__":
    main()
