"""What has to work on Windows and macOS, as far as Linux can show it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import offsupport

ROOT = Path(offsupport.__file__).parent
MODULES = sorted(
    ".".join(("offsupport", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if path.name != "__main__.py"
)
POSIX_ONLY = ("fcntl", "grp", "posix_ipc", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty")


def run(code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_where_nothing_of_posix_is():
    # What other packages need of POSIX is loaded first: they ask the system themselves, and are not what is tested.
    # The Ray executor needs Ray, which is an extra.
    run(f"""
        import importlib, os, signal, sys
        import filelock, matplotlib.pyplot, multiprocessing.resource_tracker, rich.progress, scipy.optimize
        import fastapi, prometheus_client, sklearn.datasets, subprocess, tempfile, torch, typer, uvicorn
        for name in {POSIX_ONLY}:
            sys.modules[name] = None
        for module, names in ((os, ["sched_getaffinity", "fork", "getuid", "geteuid"]), (signal, ["pthread_sigmask"])):
            for name in names:
                delattr(module, name)
        sys.platform = "win32"
        for name in {MODULES}:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != "ray":
                    raise
        from offsupport.core.interrupts import install_handler, interrupts_blocked, send_interrupt
        from offsupport.core.processes import cores, peak_memory
        install_handler()
        send_interrupt(os.getpid())
        with interrupts_blocked():
            assert cores() >= 1
        assert peak_memory() == 0
    """)


def test_files_are_written_whole_without_what_only_posix_has(tmp_path):
    run(f"""
        import os, sys
        from pathlib import Path
        from offsupport.core import files
        sys.platform = "win32"
        opened, tries = os.open, []

        def no_folders(path, *arguments, **options):
            if Path(path).is_dir():
                raise PermissionError(13, "a folder cannot be opened")
            return opened(path, *arguments, **options)

        def busy(self, target, replace=Path.replace):
            tries.append(target)
            if len(tries) < 3:
                raise PermissionError(13, "somebody is reading it")
            return replace(self, target)

        os.open, Path.replace = no_folders, busy
        files.write_text(Path({str(tmp_path)!r}) / "f", "whole \u00e9")
        assert len(tries) == 3
        assert (Path({str(tmp_path)!r}) / "f").read_bytes() == "whole \u00e9".encode()
    """)


def test_a_rename_that_is_not_allowed_is_an_error_in_the_end(tmp_path):
    run(f"""
        import sys
        from pathlib import Path
        from offsupport.core import files
        sys.platform = "win32"
        files.time.sleep = lambda _: None
        folder = Path({str(tmp_path)!r})

        def never(self, target):
            raise PermissionError(13, "somebody is reading it")

        Path.replace = never
        try:
            files.write_text(folder / "f", "text")
        except PermissionError:
            assert not list(folder.iterdir())
        else:
            raise AssertionError
    """)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_text_is_read_in_a_stated_encoding(path):
    # Windows reads files in the code page of its region unless told otherwise.
    assert ".read_text()" not in path.read_text(encoding="utf-8")


def test_a_killed_process_gives_its_lock_back(tmp_path):
    code = (
        "import sys, time; from offsupport.core.files import folder_lock\n"
        "with folder_lock(sys.argv[1]):\n    print('held', flush=True); time.sleep(60)"
    )
    from offsupport.core.errors import FileError
    from offsupport.core.files import folder_lock

    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(FileError, match="Another process"), folder_lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with folder_lock(tmp_path):
        assert (tmp_path / ".lock").is_file()
