"""Where the command line begins: ``offsupport`` and ``python -m offsupport``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a verb; interrupted at any moment, also while it is still being loaded, it ends with 130."""
    # Imported here: typer takes long enough to be interrupted, and nothing may come from the working folder.
    from offsupport.core.interrupts import EXIT_CODE, Interrupted, listen

    listen()
    try:
        from offsupport.cli.main import main as run

        run()
    except Interrupted:
        sys.stderr.write("offsupport: interrupted before anything was done\n")
        sys.exit(EXIT_CODE)


def leave_working_folder() -> None:
    """Look for no modules in the working folder, where ``python -m`` would look first: it may be a stranger's.

    Whoever wants it has named it in PYTHONPATH, and that stays.
    """
    named = [os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    here = os.path.realpath(os.curdir)
    if sys.path and os.path.realpath(sys.path[0]) == here and here not in named:
        del sys.path[0]


if __name__ == "__main__":
    leave_working_folder()
    main()
