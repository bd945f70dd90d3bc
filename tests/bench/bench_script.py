"""A grid of test cells under the real command line: bench_script.py OUT COUNT BEHAVIOUR WORKERS."""

import sys
from pathlib import Path

from bench_kinds import square_cell

from offsupport.bench import Place
from offsupport.cli import main as cli
from offsupport.cli.bench import finish, full_disk_is_incomplete
from offsupport.studies import Request


def grid() -> None:
    out, count, behaviour, workers = sys.argv[1:]
    cells = [square_cell(x, behaviour) for x in range(int(count))]
    with full_disk_is_incomplete():
        finish(Place(Path(out)), cells, Request(), int(workers))


if __name__ == "__main__":
    cli.app = grid
    cli.main()
