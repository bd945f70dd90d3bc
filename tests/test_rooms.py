"""How the package is built: imports go one way, nothing unsafe is called, files stay short, starting is quick."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import offsupport

ROOT = Path(offsupport.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each room, and the rooms it may import; every room may import core and itself.
ENGINE = {"functional", "nn", "augment"}
STUDIES = {*ENGINE, "engine", "methods", "latent", "theory", "diagnosis", "data", "training", "zoo", "evaluation"}
MAY_IMPORT = {
    "core": set(),
    "functional": set(),
    "nn": {"functional", "zoo"},
    "augment": {"functional"},
    "engine": ENGINE,
    "methods": ENGINE | {"engine"},
    "latent": {"functional"},
    "theory": {"functional", "latent"},
    "diagnosis": {"nn"},
    "data": set(),
    "serving": ENGINE | {"engine", "methods", "diagnosis", "data", "zoo", "studies"},
    "training": {"nn", "data", "functional", "augment", "zoo"},
    "zoo": set(),
    "evaluation": {"functional", "engine"},
    "bench": set(),
    "results": set(),
    "studies": STUDIES | {"bench", "results"},
    "report": {"results", "studies", "bench", "theory"},
    "testing": ENGINE | {"engine", "methods", "data"},
    "cli": STUDIES | {"bench", "results", "studies", "report", "testing", "serving"},
}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree):
    """Yield the dotted names that a module imports from this package, at any depth of its code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if (node.module or "").split(".")[0] == "offsupport":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "offsupport")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    rooms = {name.split(".")[1] for name in imported(ast.parse(path.read_text())) if "." in name} - {"__version__"}
    assert rooms <= MAY_IMPORT[here] | {"core", here}


def test_every_room_stands_in_the_table():
    assert {room(path) for path in FILES} - {"__init__", "__main__"} <= set(MAY_IMPORT)


def test_no_drawers_for_odds_and_ends():
    assert not [path for path in FILES if path.stem in {"utils", "util", "misc", "helpers", "common"}]


def calls(tree):
    """Yield (dotted name, node) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


FORBIDDEN = {
    *("eval", "exec", "os.system", "pickle.load", "pickle.loads", "marshal.loads", "torch.load", "torch.save"),
    *("yaml.load", "yaml.unsafe_load", "shutil.unpack_archive"),
}
EXEMPT = {
    # The contract of methods promises that adapters survive pickle and torch.save; its checks have to call them.
    "testing/promises.py": {"pickle.loads", "torch.load", "torch.save"},
    # A folder of images is written under another name and renamed when whole.
    "data/making.py": {"write_bytes"},
    # Reads tensors only (weights_only), as the tests of refusals show.
    "core/weights.py": {"torch.load"},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unsafe_is_called_and_files_are_written_whole(path):
    name = str(path.relative_to(ROOT))
    allowed = EXEMPT.get(name, set())
    for function, node in calls(ast.parse(path.read_text())):
        assert function not in FORBIDDEN - allowed, f"{name}:{node.lineno}"
        assert not function.endswith(".extractall"), f"{name}:{node.lineno}"
        assert not any(k.arg == "shell" and ast.unparse(k.value) == "True" for k in node.keywords), (
            f"{name}:{node.lineno}"
        )
        if name == "core/files.py":
            continue
        last = function.rpartition(".")[2]
        if last in allowed:
            continue
        assert not function.endswith((".write_text", ".write_bytes")) or function.startswith("files."), (
            f"{name}:{node.lineno}: write through core.files"
        )
        # What numpy writes, it writes into an open file.
        assert last not in ("save", "savez") or not function.startswith("np.") or ast.unparse(node.args[0]) == "file"
        if last == "open":
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "mode")]
            modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            writing = [mode for mode in modes if set(mode) <= set("rwxab+t") and set(mode) & set("wxa+")]
            assert not writing, f"{name}:{node.lineno}: write through core.files.atomic"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_short(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            start = node.body[0].end_lineno if documented else node.lineno
            assert node.end_lineno - start <= 60, node.name


HEAVY = "{'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'PIL', 'jinja2'}"


@pytest.mark.parametrize(
    "code",
    [
        "import offsupport",
        "import offsupport; dir(offsupport); offsupport.__version__; offsupport.OffsupportError",
        "import sys, contextlib, io; sys.argv = ['offsupport', '--help']; from offsupport.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()",
    ],
)
def test_starting_does_not_import_heavy_libraries(code):
    check = f"{code}\nimport sys; print(sorted({HEAVY} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_public_names_resolve_and_unknown_ones_do_not():
    for name in offsupport.__all__:
        assert getattr(offsupport, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'adaptt'"):
        _ = offsupport.adaptt
