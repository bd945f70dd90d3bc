"""A package of one file adds a method, a corruption, a data set, a model and a table, and the command line knows them.

The package is installed into a fresh environment that sees the running one: nothing is downloaded, and the running
environment stays as it is.
"""

import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

# Looked for, not imported: setuptools replaces parts of the standard library when it is.
INSTALLER = all(importlib.util.find_spec(name) for name in ("pip", "setuptools"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INSTALLER, reason="needs pip and setuptools")]

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
BUILD = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["offsupport_neighbour"]
"""


def write_package(folder):
    """Write the package that docs/extend.md shows, so that what is tested is what people read."""
    blocks = re.findall(r"^```(python|toml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = [text for language, text in blocks if language == "python" and "register_" in text]
    (about,) = [text for language, text in blocks if language == "toml"]
    folder.mkdir()
    (folder / "offsupport_neighbour.py").write_text("\n".join(code), encoding="utf-8")
    (folder / "pyproject.toml").write_text(about + BUILD, encoding="utf-8")


def make_environment(folder):
    """Make an environment that finds everything the running one has; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip())
    # A plain path would not do: the running environment may hold the library by a .pth file of its own.
    lines = [f"import site; site.addsitedir({found!r})" for found in site.getsitepackages()]
    (own / "running.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return python


class Shell:
    """Runs ``offsupport`` in an environment and a folder of its own."""

    def __init__(self, python, folder):
        self.python = python
        self.folder = folder

    def run(self, *words):
        command = [self.python, *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, encoding="utf-8")

    def offsupport(self, *words):
        """Return what a command prints as JSON."""
        done = self.run("-m", "offsupport", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def names(self, what):
        return [row["name"] for row in self.offsupport("list", what)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment without the package."""
    folder = tmp_path_factory.mktemp("doors")
    return Shell(make_environment(folder / "environment"), folder)


@pytest.fixture(scope="module")
def shell(bare):
    """The same environment with the package installed, after a look at what it says without."""
    for what, name in PARTS.items():
        assert name not in bare.names(what)
    without = bare.run("-m", "offsupport", "reproduce", "surer-half-on-stripes")
    assert without.returncode == 2, without.stderr
    source = bare.folder / "package"
    write_package(source)
    pip = [sys.executable, "-m", "pip", "--python", str(bare.python), "install", "--quiet", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, str(source)], check=True)
    shutil.rmtree(source)  # what follows must come from the environment
    return bare


PARTS = {
    "methods": "surer-half",
    "corruptions": "dim",
    "datasets": "stripes",
    "models": "two-boxes",
    "tables": "surer-half-on-stripes",
}


ALONE = {
    "method": "from offsupport.methods import METHODS; METHODS['surer-half']",
    "corruption": "from offsupport.data.corruptions import CORRUPTIONS; CORRUPTIONS['dim']",
    "data set": "from offsupport.data import load; load('stripes')",
    "model": "from offsupport.studies.models import MODELS; MODELS['two-boxes']",
    "table": "from offsupport.studies import TABLES; TABLES['surer-half-on-stripes']",
}


@pytest.mark.parametrize("code", ALONE.values(), ids=ALONE)
def test_each_part_is_found_through_its_own_entry_point(shell, code):
    # One module holds all parts: whichever is found first brings the others, so each gets a process of its own.
    done = shell.run("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("what", "name"), PARTS.items())
def test_lists_have_it(shell, what, name):
    assert name in shell.names(what)


def test_its_parts_go_through_a_grid(shell):
    data = ["--dataset", "stripes-c", "--corruptions", "dim,fog", "--model", "two-boxes"]
    methods = "source,surer-half,surer-half+sc"
    found = shell.offsupport("bench", "run", *data, "--methods", methods, "--out", "runs/grid")
    rows = {(row["method"], row["column"]): row for row in found["rows"]}
    for method in methods.split(","):
        assert rows[method, "stripes-c/dim"]["n"] == 64


def test_its_data_set_is_made_under_its_corruption(shell):
    shell.offsupport("data", "make", "stripes-c", "--corruptions", "dim", "--out", "made", "--workers", "1")
    (images,) = shell.folder.glob("made/*/dim.npy")
    dimmed = np.load(images)
    assert dimmed.shape == (5 * 64, 32, 32, 3)
    means = dimmed.reshape(5, -1).mean(axis=1)
    assert (np.diff(means) < 0).all(), "each severity keeps less light than the one before"


def test_its_table_is_reproduced(shell):
    found = shell.offsupport("reproduce", "surer-half-on-stripes", "--scale", "smoke")
    assert {row["method"] for row in found["rows"]} == {"source", "surer-half"}
    assert [claim["verdict"] in ("holds", "does-not-hold", "undecided") for claim in found["claims"]] == [True]
    assert (shell.folder / "runs" / "surer-half-on-stripes-smoke" / "report.html").is_file()


@pytest.mark.parametrize("check", ["check_method('surer-half')", "check_corruption('dim')", "check_dataset('stripes')"])
def test_the_contract_checks_know_it(shell, check):
    done = shell.run("-c", f"import offsupport.testing as testing; testing.{check}")
    assert done.returncode == 0, done.stderr
