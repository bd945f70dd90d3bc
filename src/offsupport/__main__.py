"""Runs the command line: ``python -m offsupport``."""

from offsupport.cli.main import main

if __name__ == "__main__":
    main()
