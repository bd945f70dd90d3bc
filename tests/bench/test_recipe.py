"""Recipes of grids: N + M files, strict keys, and the one in the docs."""

from pathlib import Path

import pytest

from offsupport.core.errors import ConfigError, FileError
from offsupport.studies import expand
from offsupport.studies.grids import read_recipe

EXAMPLE = Path(__file__).parents[2] / "docs" / "recipes" / "digits.yaml"
GOOD = "datasets: [digits-c]\nmethods: [bn]\n"


def written(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text)
    return folder / "mine.yaml"


def test_the_example_is_every_data_set_with_every_method():
    expected = []
    for images in ({"corruption": ["speckle_noise"], "severity": [3, 5]}, {"corruption": ["gaussian_blur"]}):
        limit = 256 if images["corruption"] == ["gaussian_blur"] else None
        axes = {**images, "seed": [0, 1]}
        for method, hyper in (("source", {}), ("bn", {}), ("tent", {"lr": 1e-4}), ("tent", {"lr": 1e-2})):
            fixed = {"dataset": "digits-c", "batch_size": 64, "limit": limit, "hyper": hyper}
            expected += expand(axes, method=method, **fixed)
    cells = read_recipe(EXAMPLE)
    assert len(cells) == len(set(cells)) == (2 + 1) * 4 * 2
    assert set(cells) == set(expected)


def test_files_are_found_beside_the_recipe_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len(read_recipe(EXAMPLE)) == 24


def test_all_corruptions_and_one_stream_of_them(tmp_path):
    apart = read_recipe(written(tmp_path, "datasets: [{dataset: digits-c, corruptions: all}]\nmethods: [bn]\n"))
    assert len({cell.config["corruption"] for cell in apart}) == 15
    text = "datasets: [{dataset: digits-c, corruptions: [fog, frost]}]\nmethods: [bn]\nprotocol: continual\n"
    (together,) = read_recipe(written(tmp_path, text))
    assert together.config["corruption"] == ["fog", "frost"]


def test_a_method_may_have_a_batch_size_of_its_own(tmp_path):
    text = "datasets: [digits]\nmethods: [bn, {method: memo, batch_size: 4}]\nbatch_size: 32\n"
    found = {cell.config["method"]: cell.config["batch_size"] for cell in read_recipe(written(tmp_path, text))}
    assert found == {"bn": 32, "memo": 4}


def test_a_device_is_part_of_a_cell_where_it_is_not_the_cpu(tmp_path):
    (plain,) = read_recipe(written(tmp_path, GOOD))
    (cpu,) = read_recipe(written(tmp_path, GOOD + "device: cpu\n"))
    (cuda,) = read_recipe(written(tmp_path, GOOD + "device: cuda\n"))
    assert cpu == plain
    assert dict(cuda.config) == {**plain.config, "device": "cuda"}
    with pytest.raises(ConfigError, match="device"):
        read_recipe(written(tmp_path, GOOD + "device: tpu\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "sedes: 2", "'sedes' for the recipe .*Did you mean 'seeds'"),
        ("methods: [bn]", "does not say datasets"),
        ("datasets: [{corruptions: [fog]}]\nmethods: [bn]", "A dataset of the recipe does not say dataset"),
        ("datasets: [{dataset: d, corruption: fog}]\nmethods: [bn]", "Did you mean 'corruptions'"),
        ("datasets: [d]\nmethods: [{method: bn, hypr: {}}]", "Did you mean 'hyper'"),
        ("datasets: [d]\nmethods: []", "has no cells"),
        (GOOD + "seeds: 0", "has no cells"),
        (GOOD + "seeds: many", "'seeds' of the recipe .* must be an integer"),
        ("datasets: [3]\nmethods: [bn]", "not a mapping"),
        ("- just\n- a list", "not a mapping"),
        ("datasets: [d]\nmethods: [gone.yaml]", "There is no file .*gone.yaml"),
        ("datasets: [", "is not YAML"),
        ("datasets: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_mistakes_say_what_is_meant(tmp_path, text, said):
    with pytest.raises((ConfigError, FileError), match=said):
        read_recipe(written(tmp_path, text))
