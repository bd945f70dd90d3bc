"""MAE test-time training at its edges: blank and lone images, wrappers, and the sparsity constraint on top."""

import pytest
import torch
from test_mae_ttt import FAST, images, network
from torch import nn

import offsupport
from offsupport.bench.cell import Place
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.studies.episodes import EpisodeConfig, prepare_episodes, watch_episode
from offsupport.testing.case import same_bits


def test_a_blank_image_has_the_same_numbers_wherever_it_stands():
    net, x = network(), images(3)
    x[1] = 0.5
    adapted = offsupport.adapt(net, "mae-ttt+em", **FAST)
    whole = adapted(x)
    assert same_bits(whole[1:2], net(x[1:2]).detach())
    assert adapted.events["empty_selection"] == 1
    assert same_bits(torch.cat([adapted(image) for image in x.split(1)]), whole)


def test_episodes_take_no_least_batch():
    with pytest.raises(ConfigError, match="an episode of its own"):
        offsupport.adapt(network(), "mae-ttt", **FAST, min_batch=3)
    offsupport.adapt(network(), "mae-ttt", **FAST, min_batch=3, online=True)


def test_one_crop_is_refused_for_information():
    with pytest.raises(ConfigError, match="is zero"):
        offsupport.adapt(network(), "mae-ttt+em", em_loss="information", em_views="crops", em_images=1)


def test_a_lone_image_of_an_online_stream_takes_no_information_step():
    x = images(1)
    adapted = offsupport.adapt(network(), "mae-ttt+em", **FAST, online=True, em_loss="information")
    plain = offsupport.adapt(network(), "mae-ttt", **FAST, online=True)
    assert same_bits(adapted(x), plain(x))
    assert adapted.events["empty_selection"] == FAST["steps"]
    adapted(images(2))
    assert adapted.events["empty_selection"] == FAST["steps"]


def test_crops_are_refused_where_the_batch_is_classified():
    with pytest.raises(ConfigError, match="would change nothing"):
        offsupport.adapt(network(), "mae-ttt+em", online=True, em_views="crops")


class Silent(nn.Module):
    """Predicts without a graph."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x).detach()


def test_a_model_without_gradients_is_told():
    with pytest.raises(ModelError, match="without gradients"):
        offsupport.adapt(Silent(), "mae-ttt+em", **FAST)(images(1))


def test_half_precision_is_refused_as_steps_would_be_rounded_away():
    with pytest.raises(ModelError, match=r"model\.float\(\), inside torch\.autocast"):
        offsupport.adapt(network().bfloat16(), "mae-ttt")


def test_a_failed_episode_is_shown_as_it_is_predicted():
    net, x = network().float(), images(1).float()
    seen = watch_episode(offsupport.adapt(net, "mae-ttt+em", masks=5, lr=1e6, weight_decay=1e6), x)
    assert seen.rejected in ("bad_loss", "bad_grad", "bad_param")
    assert torch.equal(seen.probabilities[-1:], net(x).softmax(1))
    assert torch.equal(seen.after, seen.before)
    assert watch_episode(offsupport.adapt(net, "mae-ttt+em", **FAST), x).rejected is None


def test_an_episode_can_be_watched_in_inference_mode():
    adapted = offsupport.adapt(network(), "mae-ttt", **FAST)
    expected = watch_episode(adapted, images(1))
    with torch.inference_mode():
        seen = watch_episode(adapted, images(1))
    assert torch.equal(seen.probabilities, expected.probabilities)


def test_what_cannot_be_watched_is_refused(tmp_path):
    x = images(1)
    with pytest.raises(ConfigError, match="'shot' has no episodes"):
        watch_episode(offsupport.adapt(network(), "shot"), x)
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="no finite numbers"):
        watch_episode(offsupport.adapt(network(), "mae-ttt"), x)
    config = EpisodeConfig(dataset="digits-c", method="tent", corruption="fog", model="digits-mae")
    with pytest.raises(ConfigError, match="'tent' has no episodes"):
        prepare_episodes([config], Place(tmp_path, None))


def test_both_optimisers_have_the_step_sizes_of_the_constraint():
    settings = {"optimizers": "separate", "rank": 2, "ratio_l": 7.0, "ratio_g": 3.0}
    adapted = offsupport.adapt(network(), "mae-ttt+em+sc", **FAST, **settings)
    rates = [[group["lr"] / FAST["lr"] for group in each.param_groups] for each in (adapted.optimizer, adapted.second)]
    assert rates == [pytest.approx([1, 7, 3])] * 2


def test_a_threshold_leaves_gates_that_the_loss_did_not_reach():
    adapted = offsupport.adapt(network(), "mae-ttt+em+sc", **FAST, rank=2, penalty="prox", prox=0.1, online=True)
    gates = {name: gate.detach().clone() for name, gate in adapted.gates.items()}
    adapted.descend(adapted._reconstruction(images(2), adapted.generator))
    moved = {name: not torch.equal(gate, gates[name]) for name, gate in adapted.gates.items()}
    assert {name for name in moved if not moved[name]} == {name for name in gates if "classifier" in name} != set()


def test_updates_of_episodes_are_not_reported_as_if_they_stayed():
    episodic = offsupport.adapt(network(), "mae-ttt+em+sc", **FAST, rank=2)
    online = offsupport.adapt(network(), "mae-ttt+em+sc", **FAST, rank=2, online=True)
    assert "zero_gates" not in episodic.findings()
    assert "zero_gates" in online.findings()
