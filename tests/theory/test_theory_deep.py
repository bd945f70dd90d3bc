"""What diagnose_model says of networks and images: calibrated on unseen source, blind to nothing it promises to see."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import offsupport
from offsupport.cli.main import app
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.nn import build_network, resnet18
from offsupport.theory import rank_correlation
from offsupport.theory.deep import _place, _regime, _unusual
from offsupport.theory.patches import _deals


def smooth(n, seed=0):
    """Images that are smooth and different from each other."""
    coarse = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (32, 32), mode="bilinear", align_corners=True)


def networks():
    torch.manual_seed(0)
    return {"mae": build_network("mae-digits/8", 10, "digits").eval(), "resnet": resnet18(width=8).eval()}


@pytest.mark.parametrize("name", ["mae", "resnet"])
def test_a_noisy_block_is_where_the_map_says(name):
    x = smooth(6, seed=1)
    x[:, :, 8:24, 0:16] = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    found = offsupport.diagnose_model(networks()[name], smooth(160), x)
    side = found.off_patches.shape[1]
    inside = torch.zeros(side, side, dtype=torch.bool)
    inside[side // 4 : 3 * side // 4, : side // 2] = True
    assert found.off_patches[:, inside].float().mean() > 0.9
    assert found.off_patches[:, :, 3 * side // 4 :].float().mean() < 0.3  # those beside it share an edge with it
    assert "on support" not in found.regime


@pytest.mark.parametrize("name", ["mae", "resnet"])
def test_more_source_images_are_on_support_and_noise_is_not(name):
    model = networks()[name]
    more = offsupport.diagnose_model(model, smooth(160), smooth(40, seed=3))
    assert more.regime.count("on support") >= 30
    assert more.share.mean() < 0.15
    assert 0.3 < more.quantile.mean() < 0.7
    noise = offsupport.diagnose_model(model, smooth(160), torch.rand(8, 3, 32, 32))
    assert all(kind.startswith("dense") for kind in noise.regime)
    assert noise.share.mean() > 0.9
    assert noise.hardness > more.hardness


def test_verdicts_of_theorems_stay_unknown_and_numbers_are_plain():
    found = offsupport.diagnose_model(networks()["resnet"], [(smooth(40), None), smooth(10, seed=5)], smooth(2, seed=4))
    assert (found.theorem1, found.theorem2, found.source_images) == ("unknown", "unknown", 50)
    json.dumps(found.to_dict(), allow_nan=False)
    assert "unknown" in str(found)
    assert len(found.plot().axes) == 2 * 2 + 1


def test_the_model_is_left_as_it_was():
    model = networks()["resnet"].train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    offsupport.diagnose_model(model, smooth(40), smooth(1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_patch_is_removed_equally_often():
    for patches in (16, 64):
        times = sum(mask.mask[0] for mask in _deals(patches))
        assert times.min() == times.max() == 6
        assert all(mask.keep.shape[1] == patches // 4 for mask in _deals(patches))


def test_places_count_ties_half_and_the_most_unusual_score_counts():
    among = torch.tensor([[1.0], [2.0], [2.0], [3.0]])
    assert _place(torch.tensor([[2.0], [0.0], [9.0]]), among).flatten().tolist() == [0.5, 0.0, 1.0]
    extreme, off = _unusual(torch.tensor([[0.5, 0.995], [0.3, 0.6]]))
    assert torch.allclose(extreme, torch.tensor([0.995, 0.3]))
    assert off.tolist() == [True, False]


@pytest.mark.parametrize(
    ("distance", "share", "kind"),
    [
        (0.9, 0.1, "on support"), (1.1, 0.1, "sparse"), (0.9, 0.3, "sparse"),
        (1.1, 0.9, "dense near"), (2, 0.9, "dense far"),
    ],
)  # fmt: skip
def test_regimes(distance, share, kind):
    assert _regime(distance, share, usual_share=0.2) == kind


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a = rng.normal(size=30)
    b = np.round(a + rng.normal(size=30), 1)
    found = rank_correlation(a, b)
    assert found.value == pytest.approx(spearmanr(a, b).statistic)
    assert -1 <= found.low < found.value < found.high <= 1
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]).value == -1
    with pytest.raises(InputError, match="at least three"):
        rank_correlation([1, 2], [1, 2])


def test_bad_input_is_refused():
    model = networks()["resnet"]
    with pytest.raises(InputError, match=r"39 source images.*at least 40"):
        offsupport.diagnose_model(model, smooth(39), smooth(1))
    with pytest.raises(InputError, match="of the same size"):
        offsupport.diagnose_model(model, smooth(40), smooth(1)[0])
    with pytest.raises(ModelError, match="No layer of this model gives a map"):
        offsupport.diagnose_model(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), smooth(40), smooth(1))


def test_the_command_line_writes_numbers_and_picture(tmp_path):
    for folder, seed, count in (("source", 0, 44), ("target", 1, 3)):
        (tmp_path / folder).mkdir()
        for i, x in enumerate(smooth(count, seed)):
            pixels = (255 * x).round().byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(tmp_path / folder / f"{i:02d}.png")
    options = [
        "--model",
        f"{__name__}:made",
        "--images",
        str(tmp_path / "target"),
        "--source",
        str(tmp_path / "source"),
    ]
    result = CliRunner().invoke(app, ["diagnose", *options, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert data["images"] == ["00.png", "01.png", "02.png"]
    assert len(data["regime"]) == 3
    assert data["theorem1"] == "unknown"
    assert (tmp_path / "out" / "diagnosis.png").stat().st_size > 1000


def made():
    return networks()["resnet"]


def test_the_command_line_says_what_is_missing(tmp_path):
    runner = CliRunner()
    missing = runner.invoke(app, ["diagnose", "--model", "digits-small"])
    assert isinstance(missing.exception, ConfigError)
    assert "--images" in str(missing.exception)
    unknown = runner.invoke(app, ["diagnose", "--model", f"{__name__}:made", "--images", str(tmp_path)])
    assert "--source DIR" in str(unknown.exception)
