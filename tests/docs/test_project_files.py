"""What a public project shows beside its code agrees with it: workflows, hooks, templates, versions, changelog."""

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import offsupport

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
needs_bash = pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="needs bash and POSIX paths")
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def workflow(name):
    return yaml.safe_load(read(f".github/workflows/{name}.yml"))


def step(name, job, title):
    return next(each["run"] for each in workflow(name)["jobs"][job]["steps"] if each.get("name") == title)


def commands(name):
    return [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]


def pins():
    """The exact versions of constraints.txt, by package."""
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", read("constraints.txt"), re.MULTILINE))


def torch_floor():
    (wanted,) = [each for each in PROJECT["project"]["dependencies"] if each.startswith("torch")]
    return wanted.partition(">=")[2] + ".0"


def test_every_python_of_the_classifiers_is_in_the_matrix():
    matrix = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == PYTHONS[0]


def test_the_matrix_has_every_system_and_both_ends_of_torch():
    matrix = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert matrix["torch"] == [torch_floor(), "newest"]
    assert [each["torch"] for each in matrix["include"]] == ["pinned"]


def test_ci_calls_make():
    targets = {words[1] for words in map(str.split, commands("ci")) if words[0] == "make"}
    assert {"test", "docs", "test-all"} <= targets
    assert targets <= set(re.findall(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE)[0].split())


@needs_bash
@pytest.mark.parametrize(("torch", "line"), [("pinned", None), ("newest", ""), (torch_floor(), torch_floor())])
def test_the_step_that_chooses_torch_changes_nothing_else(torch, line, tmp_path):
    given = read("constraints.txt")
    (tmp_path / "constraints.txt").write_text(given, encoding="utf-8")
    script = step("ci", "test", "Choose torch")
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=os.environ | {"TORCH": torch}, check=True)
    replaced = f"torch=={line}\n" if line else ""
    expected = given if line is None else given.replace(f"torch=={pins()['torch']}\n", replaced)
    assert (tmp_path / "constraints-ci.txt").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_ask_for_little_and_end(path):
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found["permissions"] == {}
    assert found["concurrency"]["group"]
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 300
        assert job["permissions"] in ({"contents": "read"}, {"id-token": "write"})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits_and_say_which_version_that_is(path):
    text = path.read_text(encoding="utf-8")
    assert "uses:" in text
    for line in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line), line


@needs_bash
@pytest.mark.parametrize(("tag", "agrees"), [(f"v{offsupport.__version__}", True), ("v9.9.9", False)])
def test_a_release_needs_a_tag_that_is_the_version_and_has_a_dated_section(tag, agrees):
    script = step("release", "build", "The tag, the package and the changelog agree")
    # The forge runs its steps the same way: the first command that fails ends them.
    environment = os.environ | {"GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment, check=False)
    assert (done.returncode == 0) == agrees


@needs_make
@pytest.mark.parametrize(("system", "folder"), [("Windows_NT", ".venv/Scripts/"), ("", ".venv/bin/")])
def test_the_makefile_finds_the_programs_of_an_environment_on_every_system(system, folder, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--no-print-directory", "-n", "test", "docs", f"OS={system}"]
    # `make test` hands its own variables on to every make below it.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    said = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True).stdout
    programs = set(re.findall(r"^(\.venv/\w+/)\w+", said, re.MULTILINE))
    assert programs == {folder}
    assert "-c constraints.txt" in said


def test_hooks_have_the_ruff_of_the_constraints():
    hooks = {each["repo"].rpartition("/")[2]: each for each in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]}
    assert hooks["ruff-pre-commit"]["rev"] == f"v{pins()['ruff']}"
    assert [hook["id"] for hook in hooks["ruff-pre-commit"]["hooks"]] == ["ruff-check", "ruff-format"]
    others = {hook["id"] for hook in hooks["pre-commit-hooks"]["hooks"]}
    assert {"check-added-large-files", "check-merge-conflict", "end-of-file-fixer"} <= others


def test_hooks_leave_stored_bytes_alone():
    spared = re.compile(yaml.safe_load(read(".pre-commit-config.yaml"))["exclude"])
    assert spared.search("results/demo.json")
    assert spared.search("src/offsupport/zoo/cifar10-mae-tiny/card.json")
    assert not spared.search("src/offsupport/results/intervals.py")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_whole(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_a_bug_comes_with_what_doctor_says():
    form = yaml.safe_load(read(".github/ISSUE_TEMPLATE/bug.yml"))
    (doctor,) = [field for field in form["body"] if field["id"] == "doctor"]
    assert "offsupport doctor" in doctor["attributes"]["label"]
    assert doctor["validations"]["required"]


def test_the_citation_names_the_software_and_the_paper():
    cited = yaml.safe_load(read("CITATION.cff"))
    assert cited["license"] == PROJECT["project"]["license"]
    assert cited["authors"] == PROJECT["project"]["authors"]
    assert cited["repository-code"] == PROJECT["project"]["urls"]["Source"]
    (paper,) = cited["references"]
    assert paper["title"] in read("README.md").replace("\n", " ")
    assert len(paper["authors"]) == 6


def test_the_version_stands_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/offsupport/core/version.py"
    assert f'__version__ = "{offsupport.__version__}"' in read("src/offsupport/core/version.py")


def test_the_changelog_has_a_dated_section_for_this_version_and_at_most_one_ahead_of_it():
    sections = re.findall(r"^## (\S+) - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    versions = [version for version, _ in sections]
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    ahead = versions.index(offsupport.__version__)
    assert [when for _, when in sections[:ahead]] in ([], ["unreleased"])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", when) for _, when in sections[ahead:])


ROW = re.compile(r"^\| (`.*`) \| `(offsupport\.[\w.]+)` \| `(offsupport[\w.]*)` \|$", re.MULTILINE)
MOVED = ROW.findall(read("CHANGELOG.md"))


@pytest.mark.parametrize(("names", "old", "new"), MOVED)
def test_what_the_changelog_says_has_moved_works_from_both_places(names, old, new):
    for name in re.findall(r"`(\w+)`", names):
        with pytest.warns(DeprecationWarning, match=f"import it from {new}"):
            found = getattr(importlib.import_module(old), name)
        assert found is getattr(importlib.import_module(new), name)


def test_the_table_of_tested_versions_is_that_of_the_constraints_and_of_the_matrix():
    table = read("docs/versions.md").partition("<!-- tested versions -->")[2].partition("<!-- /tested versions -->")[0]
    cells = [[each.strip() for each in line.split("|")[1:-1]] for line in table.strip().splitlines()]
    rows = {name: (run, waiting) for name, run, waiting in cells}
    for package in ("torch", "numpy", "scipy", "scikit-learn", "pillow"):
        assert rows[package][0].split()[0] == pins()[package]
    run, waiting = (re.findall(r"3\.\d+", cell) for cell in rows["Python"])
    assert sorted(run + waiting) == PYTHONS
    assert rows["torch"][1].split()[0] == torch_floor()


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"])
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", read(page)):
        assert (ROOT / target).exists(), target
