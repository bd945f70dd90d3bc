"""What version 0.2.0 saved loads, and goes on as it would have gone on there."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from saved_adapters import CASES, network

import offsupport
from offsupport.methods import SourceStats
from offsupport.monitor import Alarms

SAVED = Path(__file__).parent / "saved_by_0_2_0"


def loaded(name):
    """Return the adapter of a file, the tensors in it, and what came next."""
    after = load_file(SAVED / f"{name}.next.safetensors")
    model = network(name)
    model.load_state_dict({key.removeprefix("model/"): t for key, t in after.items() if key.startswith("model/")})
    stats = SAVED / f"{name}.stats.safetensors"
    source = {"source": SourceStats.load(stats)} if stats.exists() else {}
    path = SAVED / f"{name}.safetensors"
    return offsupport.load_adapted(model, path, **source), load_file(path), after


def same_machine(name):
    with safe_open(SAVED / f"{name}.next.safetensors", "pt") as file:
        found = file.metadata()
    return found == {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


@pytest.mark.filterwarnings("ignore:.*rank")
@pytest.mark.parametrize("name", CASES)
def test_a_saved_adapter_goes_on(name):
    adapted, saved, after = loaded(name)
    assert adapted.passes["backward"] > 0
    state = adapted.snapshot().flat()
    # The projection head of contrastive training never moved, and is not counted as adapted any more.
    gone = {key for key in saved if "/projection." in key}
    assert bool(gone) == ("projection" in name)
    # Alarms and the moments of a window, which 0.2.0 did not have, start anew.
    later = {f"memory/{key}" for key in (*Alarms.initial(), "window_moments")} - saved.keys()
    assert state.keys() - later == saved.keys() - gone
    assert all(not state[key].any() for key in later)
    for key in state.keys() - later:
        tensor = state[key]
        assert torch.equal(tensor, saved[key]), key
    logits = adapted(after["x"])
    if same_machine(name):
        assert torch.equal(logits, after["logits"])
    # Kernels of another processor or torch round differently.
    torch.testing.assert_close(logits, after["logits"], rtol=1e-3, atol=1e-4)
