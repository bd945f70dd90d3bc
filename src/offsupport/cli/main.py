"""The command line: one verb per file, errors as sentences, exit codes that scripts can rely on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path

import typer

from offsupport import __version__
from offsupport.cli import bench, data, reproduce
from offsupport.cli.adapt import adapt
from offsupport.cli.demo import demo
from offsupport.cli.diagnose import diagnose
from offsupport.cli.doctor import doctor
from offsupport.cli.estimate import estimate
from offsupport.cli.listing import list_
from offsupport.cli.output import answers_alone, say
from offsupport.cli.serve import serve
from offsupport.cli.train import train
from offsupport.core.errors import OffsupportError
from offsupport.core.escaping import escape_lines
from offsupport.core.interrupts import EXIT_CODE, listen

app = typer.Typer(
    name="offsupport",
    help="Makes a trained model right on samples outside its training support.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a defect of ours should come as the plain traceback people can paste
)
# In the order of --help: first what needs nothing, then what works on images of the user's, then grids.
app.command()(demo)
app.command()(adapt)
app.command()(serve)
app.command("list")(list_)
app.command()(doctor)
app.command()(diagnose)
app.command()(train)
app.add_typer(data.app, name="data")
bench.bench.command()(estimate)
bench.bench.command()(bench.verify)
bench.bench.command()(bench.diff)
app.add_typer(bench.bench, name="bench")
app.command()(reproduce.reproduce)
app.command()(reproduce.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it.")) -> None:
    pass


def main() -> None:
    """Run a verb; a mistake of the user's is a sentence and an exit code, never a traceback."""
    listen()
    _print_any_name()
    _own_pictures()
    warnings.formatwarning = _as_sentence
    try:
        with answers_alone() if "--json" in sys.argv else contextlib.nullcontext():
            app()
    except OffsupportError as error:
        say(f"offsupport: {error.message}" + (f"\n  {error.remedy}" if error.remedy else ""))
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk or a missing right is nobody's defect
        say(f"offsupport: {error}\n  Check the path, its permissions and the space left on the disk.")
        sys.exit(2)
    except (SystemExit, KeyboardInterrupt) as end:  # the latter where the signal fell outside what typer watches
        if isinstance(end, SystemExit) and end.code != EXIT_CODE:  # which typer makes of Ctrl-C, too
            raise
        sys.stderr.write("offsupport: interrupted; the same command again goes on from what is done\n")
        sys.exit(EXIT_CODE)


def _own_pictures() -> None:
    """Leave a ``matplotlibrc`` of the working folder unread: it can have programs called, and may be a stranger's."""
    if not Path("matplotlibrc").is_file():
        return
    here = Path.cwd()
    os.chdir(Path(__file__).parent)  # it is looked for once, where matplotlib is first imported
    try:
        import matplotlib  # noqa: F401
    finally:
        os.chdir(here)


def _as_sentence(message: Warning | str, *where: object, **more: object) -> str:
    """Return a warning as a person at a terminal wants it: without the line of code that gave it."""
    return f"offsupport: {escape_lines(message)}\n"


def _print_any_name() -> None:
    """Never fail over a character: names of files may hold what a terminal, or a pipe on Windows, cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
