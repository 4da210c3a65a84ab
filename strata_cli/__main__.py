"""`python -m strata_cli` is the command `strata`."""

from .start import main

if __name__ == "__main__":
    main()
