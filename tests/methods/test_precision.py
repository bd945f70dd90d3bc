"""Half precision: what adapts is in float32, or the model is refused; autocast is for the network alone."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ModelError
from offsupport.methods import METHODS
from offsupport.nn.inspect import capture_input, device_and_dtype
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import all_same_bits, promise_same_state, run, same_bits, stream

HALF = [torch.float16, torch.bfloat16]
NORMS_ALONE = ("source", "bn", "tent", "eata", "sar", "minimal", "lame", "t3a", "rotta", "note", "rdumb", "roid", "cmf")
NORMS_ALONE += ("deyo", "petta", "rpl", "neo", "foa", "auto")
EPISODIC = {"memo": {"copies": 2}, "mae-ttt": {"steps": 1, "masks": 2}, "mae-ttt+em": {"steps": 1, "masks": 2}}
EPISODIC |= {"ttt": {"copies": 2, "steps": 1}}
OPEN = {"tent": {}, "eata": {"margin": 2.0}, "sar": {"margin": 2.0, "reset_below": 0.0}}
"""So that no sample is left out and nothing is reset."""
HOME = {"tttpp": "projection", "mae-ttt": "mae", "mae-ttt+em": "mae", "foa": "mae", "ttt": "rotation"}

PROBE = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
x, dtype = torch.rand(16, 3, 8, 8), torch.{}
with torch.autocast("cpu", dtype):
    net(x).float().logsumexp(1).mean().backward()
net.to(dtype)(x.to(dtype)).float().logsumexp(1).mean().backward()
"""


@pytest.fixture(scope="module", params=HALF, ids=str)
def dtype(request):
    """A type that this processor computes in; some die with an illegal instruction, so another process tries."""
    name = str(request.param).removeprefix("torch.")
    if subprocess.run([sys.executable, "-c", PROBE.format(name)], check=False, capture_output=True).returncode:
        pytest.skip(f"this processor does not compute in {name}")
    return request.param


# Without computing in half precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in METHODS if name not in NORMS_ALONE] + ["tent+sc"])
def test_methods_that_adapt_other_layers_refuse_half_precision_when_wrapping(method):
    model = NETWORKS[HOME.get(method, "batch_norm")]().half()
    wrap = lambda: offsupport.adapt(model, method, inplace=True)  # noqa: E731
    if METHODS[method].info.source == "required":
        wrap = lambda: offsupport.source_stats(model, stream(2), method)  # noqa: E731
    with pytest.raises(ModelError, match=r"torch\.float16.*model\.float\(\)"):
        wrap()
    assert all(parameter.dtype == torch.float16 for parameter in model.parameters())


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_norm_layers_of_a_half_model_compute_in_single_precision(kind):
    adapted = offsupport.adapt(NETWORKS["batch_norm"]().to(kind), "tent")
    assert {parameter.dtype for parameter in adapted.parameters_adapted.values()} == {torch.float32}
    assert device_and_dtype(adapted.model)[1] == kind
    norm, given = adapted.model[1], []
    norm.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0].dtype))
    assert norm(torch.zeros(4, 8, 2, 2, dtype=kind)).dtype == kind
    assert given == [torch.float32]
    with capture_input(norm) as seen:
        norm(torch.zeros(4, 8, 2, 2, dtype=kind))
    assert seen[0].dtype == torch.float32


def test_a_model_that_begins_with_a_norm_layer_still_counts_as_half():
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).half()
    assert device_and_dtype(offsupport.adapt(net, "tent").model)[1] == torch.float16


def test_an_adapter_is_not_converted_to_or_from_half_precision():
    adapted = Case("tent", NETWORKS["batch_norm"]).wrap()
    before = adapted.snapshot()
    for convert in (adapted.half, adapted.bfloat16, lambda: adapted.to(torch.float16)):
        with pytest.raises(ModelError, match="before it is wrapped"):
            convert()
    promise_same_state(before, adapted.snapshot(), "A refused conversion changes state.")
    with pytest.raises(ModelError, match="before it is wrapped"):
        offsupport.adapt(NETWORKS["batch_norm"]().half(), "tent").float()
    assert adapted.double()(stream(1)[0].double()).dtype == torch.float64


class Asked(nn.Module):
    """Notes whether autocast is on when the network runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, 4)), []

    def forward(self, x):
        on = torch.is_autocast_enabled("cpu")
        self.seen.append((on, torch.get_autocast_dtype("cpu") if on else None, torch.is_autocast_cache_enabled()))
        with torch.autocast("cpu", enabled=False):
            return self.layer(x)


def test_autocast_is_for_the_network_alone_and_keeps_no_copies_of_weights(monkeypatch):
    adapted, outside = offsupport.adapt(Asked(), "sar"), []
    apply = type(adapted).apply_gradients
    monkeypatch.setattr(
        type(adapted), "apply_gradients", lambda s, g: outside.append(torch.is_autocast_enabled("cpu")) or apply(s, g)
    )
    plain = run(offsupport.adapt(copy.deepcopy(adapted.model), "sar"), stream(2))
    with torch.autocast("cpu", torch.bfloat16):
        under = run(adapted, stream(2))
        assert torch.is_autocast_enabled("cpu")
    assert set(adapted.model.seen) == {(True, torch.bfloat16, False)}
    assert not any(outside)
    assert all_same_bits(plain, under)
    adapted(stream(1)[0])
    assert adapted.model.seen[-1][0] is False


# In half precision, where the processor computes in it ----------------------------------------------------------------


def moved(adapted, before):
    return [name for name, old in before.items() if not torch.equal(old, adapted.snapshot().parameters[name])]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["batch_norm", "batch_norm_1d", "group_norm", "layer_norm"])
@pytest.mark.parametrize("method", ["tent", "sar", "eata"])
def test_a_half_model_adapts_as_the_single_one_does(dtype, method, network):
    case = Case(method, NETWORKS[network], OPEN[method], source=False)
    half, single = case.wrap(NETWORKS[network]().to(dtype), lr=0.01), case.wrap(lr=0.01)
    before, batches = half.snapshot().parameters, stream(4)
    got, expected = run(half, [x.to(dtype) for x in batches]), run(single, batches)
    assert {out.dtype for out in got} == {dtype}
    assert len(moved(half, before)) == len(before)
    assert not any(half.events[name] for name in ("bad_loss", "bad_grad", "bad_param"))
    steps = [
        torch.cat([(each.snapshot().parameters[name] - start[name]).flatten() for name in before])
        for each, start in ((half, before), (single, single.source_parameters))
    ]
    assert float(nn.functional.cosine_similarity(*steps, dim=0)) > 0.9
    torch.testing.assert_close(got[-1].float(), expected[-1], atol=0.25, rtol=0.1)
    half.reset()
    assert all_same_bits(got, run(half, [x.to(dtype) for x in batches]))


@pytest.mark.slow
def test_a_half_adapter_is_copied_pickled_saved_and_served_single_samples(dtype, tmp_path):
    model = NETWORKS["batch_norm"]().to(dtype)
    adapted = offsupport.adapt(model, "tent", window=20)
    batches = [x.to(dtype) for x in stream(3)]
    run(adapted, [batches[0], batches[1][:1]])
    adapted.save(tmp_path / "a.safetensors")
    others = [adapted.fork(), pickle.loads(pickle.dumps(adapted))]
    others.append(offsupport.load_adapted(NETWORKS["batch_norm"]().to(dtype), tmp_path / "a.safetensors"))
    expected = adapted(batches[2])
    assert all(same_bits(other(batches[2]), expected) for other in others)
    assert offsupport.adapt(model, "bn")(batches[0][:2]).dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, "tent+sc"])
def test_every_method_works_under_autocast(dtype, method):
    case = Case(method, NETWORKS[HOME.get(method, "batch_norm")], EPISODIC.get(method, {}))
    adapted, plain = case.wrap(), case.wrap()
    batches = stream(3, size=4 if method in EPISODIC else 24) + stream(1, size=3, seed=1)
    with torch.autocast("cpu", dtype):
        got = run(adapted, batches)
    assert all(out.isfinite().all() for out in got)
    assert not any(adapted.events[name] for name in ("bad_loss", "bad_grad", "bad_param", "bad_input"))
    for out, expected in zip(got, run(plain, batches), strict=True):
        assert float((out.float() - expected).abs().mean()) < 0.3
    dtypes = {value.dtype for value in adapted.snapshot().parameters.values()}
    assert dtypes <= {torch.float32}


@pytest.mark.slow
def test_under_autocast_steps_reach_weights_that_were_used_before(dtype):
    adapted = Case("shot", NETWORKS["batch_norm"]).wrap(lr=0.5)
    (x,) = stream(1)
    with torch.autocast("cpu", dtype):
        first, second = adapted(x), adapted(x)
    assert float((first - second).abs().max()) > 1e-3
