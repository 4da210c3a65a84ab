"""`python -m strata_cli` is the command `strata`."""

from .cli import main

if __name__ == "__main__":
    main()
