"""How the package is built: imports go one way, a file is an idea, nothing unsafe is called, starting is quick."""

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import offsupport

ROOT = Path(offsupport.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def part(name):
    """Return what stands between two marks of the page for people: it is the rule, and these tests keep it."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    return re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)[1]


@functools.cache
def may_import():
    """Return for each room the rooms it may import, beside core and itself."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part("rooms").splitlines()[2:]]
    return {name.strip("`"): {room.strip() for room in rooms.split(",") if room.strip()} for name, _, rooms in rows}


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
    assert rooms <= may_import()[here] | {"core", here}


def test_every_room_stands_in_the_table_and_in_the_picture():
    rooms = {room(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set(may_import())
    assert sorted(re.findall(r"\w+", part("picture").replace("```text", ""))) == sorted(rooms)


def test_in_the_picture_a_room_stands_above_all_that_it_may_import():
    height = {name: -row for row, line in enumerate(part("picture").splitlines()) for name in re.findall(r"\w+", line)}
    for name, below in may_import().items():
        assert all(height[other] < height[name] for other in below | ({"core"} - {name})), name


def module(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def edges():
    """Return for each module the modules of the package it imports: deferred or not, and for type checkers, too.

    The top of the package is nobody's import: it names everything there is, and loads it when asked for.
    """
    trees = {module(path): ast.parse(path.read_text()) for path in FILES}
    found = {}
    for name, tree in trees.items():
        parts = ((full, full.rpartition(".")[0]) for full in imported(tree))
        targets = {full if full in trees else owner for full, owner in parts}
        found[name] = {target for target in targets if target in trees} - {name, "offsupport"}
    return found


def test_no_files_import_each_other_in_a_circle():
    left = dict(edges())
    # Files that import nothing that is left cannot be part of a circle; what remains in the end is one.
    while free := [name for name, needed in left.items() if not needed & set(left)]:
        for name in free:
            del left[name]
    assert not left


KINDS_OF_FILES = {
    "methods/": "a method",
    "studies/paper/": "a table",
    "studies/ours/": "a study",
    "cli/": "a verb",
    "data/corruptions/": "a family of corruptions",
    "training/": "an objective of training",
}
"""Folders whose files may have one importer, which is where they are registered."""
ALONE = {
    "bench/ray_cluster.py": "imported when a cluster is asked for: Ray is an extra",
    "theory/picture.py": "imported when something is drawn: matplotlib takes a second",
    "report/demo_page.py": "imported when the demo ends: a page of its own",
    "report/folder_page.py": "imported when a folder was adapted to: a page of its own",
    "report/frontier.py": "error against time: a drawing of its own, as the other figures are full",
    "data/tiny100.py": "a data set: one reader for one layout",
    "studies/afterwards.py": "what a stream leaves behind: a measure of its own, for cells that ask for it",
    "data/remembered.py": "images kept between cells: about memory, not about the table that asks for them",
    "data/protocols.py": "public: the streams of the literature by name",
    "data/checking.py": "imported by the verb that checks: no other reader needs it",
    "testing/data.py": "the contracts of corruptions and of data sets; the package above it is the public face",
    "testing/promises.py": "the contract itself, a promise per function; the package above it is the public face",
    "diagnosis/patches.py": "how unusual a patch is: mathematics of its own, beside what is said of an image",
    "nn/lora.py": "a layer type: it stands with the networks, and the constraint is its user",
    "theory/ranking.py": "public: how well a score ranks shifts",
    "monitor/accuracy.py": "accuracy without labels; public as offsupport.monitor, which is what its users import",
    "monitor/neighbours.py": "labels told by neighbours: mathematics of its own, beside what is made of them",
    "latent/extrapolator/manifold.py": "Theorem 1 with finite C: mathematics of its own",
}
"""Files with one importer that are none of these kinds, and why they stand alone."""
MOST_ALONE = 45
MOST_FILES = 250


def with_one_importer():
    users = Counter(target for targets in edges().values() for target in targets)
    plain = [path for path in FILES if path.name not in ("__init__.py", "__main__.py")]
    return [path.relative_to(ROOT).as_posix() for path in plain if users[module(path)] == 1]


def test_a_file_with_one_importer_is_of_a_kind_that_stands_alone():
    others = [name for name in with_one_importer() if not name.startswith(tuple(KINDS_OF_FILES))]
    assert not set(others) - set(ALONE), "part of the idea of its importer, or a kind to be named"
    assert not set(ALONE) - set(others), "no exception any more"


def test_few_files_have_one_importer():
    assert len(with_one_importer()) <= MOST_ALONE


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
    # Standard output itself, while what others print is kept from it.
    "cli/output.py": {"open"},
    # A word to the kernel, which is no file.
    "core/processes.py": {"write_text"},
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


PUBLIC_IN_0_2 = {
    "offsupport": """OffsupportError adapt bench data diagnose_model evaluate functional latent list_methods
        load_adapted load_model methods nn source_stats testing theory""",
    "offsupport.augment": """OPERATIONS Draw Operation Policy color_jitter flip grayscale random_augment
        random_resized_crop simclr_view simclr_views weak_views""",
    "offsupport.bench": """KINDS AdaptConfig Cell EpisodeConfig Executor GuaranteeConfig Invalid Job Kind LatentConfig
        LikelihoodConfig Local Outcome Place RadiusConfig Record Store Summary expand run_cells""",
    "offsupport.data": """ALL EXTRA GROUPS STANDARD Arrays Batch Dataset Stream contact_sheet corrupt list_datasets load
        stream stream_arrays""",
    "offsupport.data.corruptions": """ALL CORRUPTIONS EXTRA GROUPS SETS STANDARD blur contact_sheet corrupt digital
        extra max_severity noise parameter_set weather""",
    "offsupport.functional": """Moments as_rows coral distillation_loss effective_rank entropy gaussian_kl
        marginal_entropy mean_and_covariance mean_gap mean_prediction mutual_information nt_xent self_training_loss
        soft_threshold symmetric_diagonal_kl symmetric_gaussian_kl update_class_moments update_moments wilson""",
    "offsupport.latent": "Draws Extrapolator Imsda OnlySource Process TrimmedNN Vae draw preset",
    "offsupport.methods": """METHODS Adapter BatchConfig MethodConfig MethodInfo Options SourceStats StepConfig adapt
        list_methods load_adapted register""",
    "offsupport.nn": """MaeConfig MaskedAutoencoder Masking Normalized ResNet WithProjection adopt_batch_norm
        affine_parameters build_network draw_masks group_norm load_mae load_model mae norm_layers projected
        projection_head resnet18 resnet26 resnet50""",
    "offsupport.testing": "CHECKS NETWORKS Case check_memory check_method contract refusal toy_images train",
    "offsupport.theory": """Condition Diagnosis ModelDiagnosis R2Table RankCorrelation Verdict accuracy diagnose
        diagnose_model r2_table rank_correlation spread_ratio""",
    "offsupport.training": "Recipe digits_model list_recipes read_recipe train train_on_the_spot",
}
CONFIGS = ("AdaptConfig", "EpisodeConfig", "GuaranteeConfig", "LatentConfig", "LikelihoodConfig", "RadiusConfig")
MOVED = {
    **{f"offsupport.bench.{name}": f"offsupport.studies.{name}" for name in (*CONFIGS, "expand")},
    "offsupport.theory.ModelDiagnosis": "offsupport.diagnosis.ModelDiagnosis",
    "offsupport.theory.diagnose_model": "offsupport.diagnosis.diagnose_model",
    "offsupport.data.corruptions.contact_sheet": "offsupport.data.contact_sheet",
    "offsupport.methods.register": "offsupport.register_method",
}
"""Public names of 0.2 that have moved, and what they are called now."""
NAMES = [(room, name) for room, names in PUBLIC_IN_0_2.items() for name in names.split()]


@pytest.mark.parametrize(("room", "name"), NAMES, ids=lambda part: part)
def test_public_names_of_the_last_version_work_and_say_where_they_have_moved(room, name):
    place = importlib.import_module(room)
    now = MOVED.get(f"{room}.{name}")
    if now is None:
        assert getattr(place, name) is not None  # without a warning, which would be an error
        return
    module, _, new = now.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"\b{re.escape(module)}\b.*version 0\.4"):
        found = getattr(place, name)
    assert found is getattr(importlib.import_module(module), new)


def test_the_page_shows_how_far_a_reader_walks():
    stored = json.loads((ARCHITECTURE.parents[1] / "results" / "rooms.json").read_text())
    table = ARCHITECTURE.read_text().partition("<!-- house -->")[2].partition("<!-- /house -->")[0]
    shown = [[int(cell) for cell in line.split("|")[2:5]] for line in table.splitlines()[3:] if line.strip()]
    order = ("files", "one_importer", None, None, "tent", "tesla+sc", "predict", "cell", "cell_everywhere")
    expected = [[stored[version][name] for version in ("0.2.0", "rooms", "now")] for name in order if name]
    assert [row for name, row in zip(order, shown, strict=True) if name] == expected
    assert len(FILES) <= MOST_FILES
