"""Other people's corruptions and data sets: registered, checked, and known wherever names are."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import offsupport
from offsupport.core.errors import ConfigError, DataMissingError, InputError
from offsupport.data import (
    ALL,
    GROUPS,
    STANDARD,
    Arrays,
    contact_sheet,
    corrupt,
    list_corruptions,
    list_datasets,
    load,
    register_corruption,
    register_dataset,
    stream,
)
from offsupport.data.catalog import DATASETS
from offsupport.data.checking import check
from offsupport.data.corruptions import CORRUPTIONS, max_severity
from offsupport.data.making import make
from offsupport.testing import check_corruption, check_dataset

PICTURES = np.random.default_rng(0).integers(0, 256, (30, 20, 20, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch):
    for registry in (CORRUPTIONS, DATASETS):
        monkeypatch.setattr(registry, "_items", registry.registered())


def add_grain():
    @register_corruption("grain", severities=[2, 4, 8, 16, 32], group="film")
    def grain(images, rng, strength):
        """Lay grain over the image."""
        noise = strength * rng.normal("grain", *images.shape[1:3])[..., None]
        return np.clip(images + noise, 0, 255).astype(np.uint8)


def add_pictures(**options):
    @register_dataset("pictures", "thirty pictures", **{"needs_root": False, **options})
    def pictures(root, split):
        rows = slice(0, 20) if split == "train" else slice(20, 30)
        return PICTURES[rows], LABELS[rows], ["a", "b", "c"]


def test_a_registered_corruption_is_known_everywhere_but_in_published_lists():
    before = list_corruptions()
    assert {n: g for g, names in GROUPS.items() for n in names}.items() <= before.items()
    add_grain()
    assert list_corruptions() == before | {"grain": "film"}
    assert "grain" not in ALL
    assert CORRUPTIONS["grain"].about == "Lay grain over the image."
    out = corrupt(PICTURES, "grain", 3, block=9)
    assert 0 < (out != PICTURES).any(axis=3).mean() <= (9 / 20) ** 2
    batches = stream("digits-c", corruption=["fog", "grain"], severity=2, limit=10)
    assert [batch.domain for batch in batches] == ["fog/2", "grain/2"]
    assert contact_sheet(PICTURES, ["grain"]).size[0] > 100
    with pytest.raises(ConfigError, match="Choose 1-5"):
        corrupt(PICTURES, "grain", 6)


def test_a_definition_that_is_run_again_takes_the_place_of_the_first():
    for _ in range(2):  # as the cell of a notebook
        add_grain()
        add_pictures()
    with pytest.raises(ConfigError, match="registered already"):
        register_corruption("grain", severities=[1])(lambda images, rng, by: images)
    with pytest.raises(ConfigError, match="registered already"):
        register_dataset("pictures")(lambda root, split: (PICTURES, LABELS))


def test_constants_may_depend_on_the_size_and_enter_the_hash():
    def add(*constants):
        CORRUPTIONS._items.pop("dim", None)

        @register_corruption("dim", severities={16: constants, 100: [1, 2, 3]})
        def dim(images, rng, divisor):
            return images // np.uint8(divisor + 1)

        return load("digits-c", corruption="dim", severity=1).sha256

    first, again, other = add(1, 2), add(1, 2), add(2, 3)
    assert first == again != other
    assert (max_severity("dim", 32), max_severity("dim", 64)) == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fog", {"severities": [1]}, "registered already"),
        ("a,b", {"severities": [1]}, "letters, digits"),
        ("mine", {"severities": []}, "no severities"),
        ("mine", {"severities": {32: []}}, "no severities"),
        ("mine", {"severities": [1], "group": "noise"}, "published"),
    ],
)
def test_corruptions_that_cannot_be_registered(name, options, message):
    with pytest.raises(ConfigError, match=message):
        register_corruption(name, **options)(lambda images, rng, constant: images)


def test_output_of_another_kind_is_refused_where_it_is_made():
    register_corruption("bright", severities=[1])(lambda images, rng, by: images + 0.5 * by)
    with pytest.raises(InputError, match="'bright' made float64"):
        corrupt(PICTURES, "bright", 1)


@pytest.mark.parametrize("name", ALL)
def test_shipped_corruptions_keep_their_promises(name):
    check_corruption(name, sides=(32, 64))


@pytest.mark.parametrize("name", ["gaussian_noise", "contrast", "fog"])
def test_promises_hold_for_large_images(name):
    check_corruption(name, sides=(224,))


def in_place(images, rng, strength):
    images += np.uint8(strength)
    return images


def refusing(images, rng, strength):
    raise ConfigError("Not this size.")


def by_batch(images, rng, strength):
    return (images // strength + images.mean().astype(np.uint8) // 4).astype(np.uint8)


def by_place(images, rng, strength):
    return images + (np.arange(len(images)) * (len(images) > 1) + strength).astype(np.uint8)[:, None, None, None]


def by_chance(images, rng, strength):
    return images + np.random.default_rng().integers(1, 9, images.shape, dtype=np.uint8)


def unseeded(images, rng, strength):
    rng.normal("thrown away", 1)
    return images + np.uint8(strength)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images, rng, strength: images.copy(), "come back as they were"),
        (lambda images, rng, strength: images + np.uint8(7), "severity 2 makes the same"),
        (lambda images, rng, strength: images / 2, "returns float64"),
        (lambda images, rng, strength: images[:, 1:], "makes"),
        (lambda images, rng, strength: images.tolist(), "returns list"),
        (in_place, "writes into"),
        (refusing, "without saying what to do"),
        (by_batch, "depends on its batch"),
        (by_place, "depends on its batch"),
        (by_chance, "second time"),
        (unseeded, "another seed makes the same"),
    ],
)
def test_broken_promises_of_corruptions_are_named(function, message):
    register_corruption("broken", severities=[1, 2])(function)
    with pytest.raises(AssertionError, match=message):
        check_corruption("broken", sides=(32,))


def test_a_registered_data_set_comes_with_its_corrupted_twin():
    add_pictures()
    assert list_datasets()["pictures"] == "thirty pictures"
    assert (len(load("pictures")), len(load("pictures", split="train"))) == (10, 20)
    assert load("pictures").classes == ("a", "b", "c")
    twin = stream("pictures-c", corruption="fog", severity=1, batch_size=4)
    assert sum(len(batch.y) for batch in twin) == 10
    assert twin.describe()["dataset"] == "pictures-c"
    with pytest.raises(ConfigError, match="no split 'val'"):
        load("pictures", split="val")
    check_dataset("pictures")
    check_dataset("pictures-c")


def test_a_registered_data_set_is_made_read_and_checked(tmp_path, monkeypatch):
    add_grain()
    add_pictures(needs_root=True, layout="pictures.npy")
    with pytest.raises(DataMissingError, match=r"needs pictures\.npy"):
        load("pictures")
    monkeypatch.setattr("offsupport.data.making.worker_pool", ThreadPoolExecutor)
    manifest = make("pictures-c", tmp_path, tmp_path, corruptions=["grain", "contrast"], workers=1)
    assert sorted(manifest["files"]) == ["contrast.npy", "grain.npy", "labels.npy"]
    stored = load("pictures-c", tmp_path, corruption="grain", severity=4)
    assert stored.source == "files"
    made = load("pictures-c", tmp_path, corruption="grain", severity=4, source="generated")
    assert np.array_equal(stored.images(range(10)), made.images(range(10)))
    assert stored.classes == made.classes == ("a", "b", "c")
    [finding] = check(tmp_path)
    assert finding.present == ["labels.npy", "contrast", "grain"]
    assert finding.samples["grain"][2](0).shape == (20, 20, 3)
    register_corruption("two", severities=[1, 2])(lambda images, rng, by: images // by)
    with pytest.raises(ConfigError, match="has 2 severities"):
        make("pictures-c", tmp_path, tmp_path, corruptions=["two"])
    with pytest.raises(ConfigError, match="Did you mean 'pictures-c'"):
        make("picture-c", tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["digits", "digits-c"])
def test_the_digits_keep_their_promises(name):
    check_dataset(name)


class Forgetful(Arrays):
    def images(self, indices):
        return super().images(indices)[:1].repeat(len(indices), axis=0)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((PICTURES, LABELS, ["a", "b"]), "label 2 has no name"),
        ((PICTURES, LABELS - 2), "below -1"),
        ((PICTURES, LABELS, ["a", "a", "b"]), "two classes have one name"),
        ((PICTURES, LABELS, [1, 2, 3]), "not text"),
        (Arrays(PICTURES[:0], LABELS[:0]), "empty"),
        (Forgetful(PICTURES, LABELS), "depends on which others"),
    ],
)
def test_broken_promises_of_data_sets_are_named(found, message):
    register_dataset("broken", "so", needs_root=False, splits=["test"])(lambda root, split: found)
    with pytest.raises(AssertionError, match=message):
        check_dataset("broken")


def test_splits_that_are_one_and_data_that_changes():
    register_dataset("one", "so", needs_root=False)(lambda root, split: (PICTURES, LABELS))
    with pytest.raises(AssertionError, match="two splits are the same"):
        check_dataset("one")
    count = iter(range(100))
    changing = register_dataset("other", "so", needs_root=False)
    changing(lambda root, split: (PICTURES + np.uint8(next(count)), LABELS))
    with pytest.raises(AssertionError, match="another hash"):
        check_dataset("other")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {}, "registered already"),
        ("mine-c", {}, "without -c"),
        ("my set", {}, "letters, digits"),
        ("mine", {"splits": ["train"]}, "no split 'test'"),
    ],
)
def test_data_sets_that_cannot_be_registered(name, options, message):
    with pytest.raises(ConfigError, match=message):
        register_dataset(name, **options)(lambda root, split: (PICTURES, LABELS))


def test_a_function_that_returns_something_else_is_told():
    register_dataset("odd", needs_root=False)(lambda root, split: PICTURES)
    with pytest.raises(InputError, match="returned ndarray"):
        load("odd")


def test_the_doors_stand_at_the_top_of_the_package():
    assert offsupport.register_corruption is register_corruption
    assert offsupport.register_dataset is register_dataset


PACKAGE = """
import numpy as np
import offsupport

@offsupport.register_corruption("vignette", severities=[0.2, 0.4, 0.6, 0.8, 1.0])
def vignette(images, rng, strength):
    ramp = np.linspace(-1, 1, images.shape[1])
    far = (ramp[:, None] ** 2 + ramp ** 2) / 2
    return (images * (1 - strength * far)[..., None]).astype(np.uint8)

@offsupport.register_dataset("stripes", "striped squares", needs_root=False)
def stripes(root, split):
    rng = np.random.default_rng(len(split))
    labels = np.arange(40) % 10
    return np.repeat(rng.integers(0, 256, (40, 32, 1, 3), dtype=np.uint8), 32, axis=2), labels
"""


@pytest.fixture
def installed(tmp_path):
    """An environment with a package of one file that offers a corruption and a data set."""
    site = tmp_path / "site"
    (site / "mine-1.dist-info").mkdir(parents=True)
    (site / "mine.py").write_text(PACKAGE)
    (site / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (site / "mine-1.dist-info" / "entry_points.txt").write_text(
        "[offsupport.corruptions]\nvignette = mine\n[offsupport.datasets]\nstripes = mine\n"
    )

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
        command = [sys.executable, "-m", "offsupport", *arguments, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_an_installed_package_is_known_on_the_command_line_and_in_its_workers(installed, tmp_path):
    assert installed("list", "corruptions")[-1] == {"name": "vignette", "group": "other"}
    assert [row["name"] for row in installed("list", "datasets")][-2:] == ["stripes", "stripes-c"]
    manifest = installed(
        "data", "make", "stripes-c", "--corruptions", "vignette,fog", "--out", "made", "--workers", "1"
    )
    assert sorted(manifest["files"]) == ["fog.npy", "labels.npy", "vignette.npy"]
    assert np.load(tmp_path / "made" / "stripes-c" / "vignette.npy").shape == (200, 32, 32, 3)


def test_published_lists_are_made_before_anybody_else_registers():
    assert len(STANDARD) == 15
