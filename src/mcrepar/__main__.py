"""`python -m mcrepar` is the command `mcrepar`."""

from mcrepar.workbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
