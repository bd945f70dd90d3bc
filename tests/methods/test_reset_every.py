"""Periodic resets, which every method can have."""

from __future__ import annotations

import math

import pytest
import torch

import offsupport
from offsupport.core.errors import ConfigError, ModelError
from offsupport.testing import NETWORKS
from offsupport.testing.case import run, same_bits, stream


@pytest.mark.parametrize("method", ["tent", "shot", "bn", "t3a"])
def test_a_reset_is_a_new_start(method):
    first, second = stream(2), stream(2, seed=1)
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), method, reset_every=48)
    fresh = offsupport.adapt(NETWORKS["batch_norm"](), method)
    run(adapted, first)
    assert adapted.events["reset"] == 0
    for mine, theirs in zip(run(adapted, second), run(fresh, second), strict=True):
        assert same_bits(mine, theirs)
    assert adapted.events["reset"] == 1


def test_bad_samples_do_not_count_and_a_call_that_fails_resets_nothing():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", reset_every=24, lr=0.1)
    (x,) = stream(1)
    adapted(torch.full_like(x, math.nan))
    assert int(adapted.memory["since_reset"]) == 0
    adapted(x)
    before = adapted.snapshot().flat()
    broken = adapted.model[7].register_forward_hook(lambda *_: torch.zeros(24, 1))
    with pytest.raises(ModelError):
        adapted(x)
    broken.remove()
    after = adapted.snapshot().flat()
    assert all(same_bits(before[name], after[name]) for name in before)
    assert adapted.events["reset"] == 0
    adapted(x)
    assert adapted.events["reset"] == 1


def test_it_is_part_of_what_is_saved(tmp_path):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", reset_every=30)
    run(adapted, stream(1))
    adapted.save(tmp_path / "a.safetensors")
    again = offsupport.load_adapted(NETWORKS["batch_norm"](), tmp_path / "a.safetensors")
    assert again.reset_every == 30
    rest = stream(3, seed=2)
    for mine, theirs in zip(run(again, rest), run(adapted, rest), strict=True):
        assert same_bits(mine, theirs)
    assert again.events["reset"] == adapted.events["reset"] == 1


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigError, match="reset_every"):
        offsupport.adapt(NETWORKS["batch_norm"](), "tent", reset_every=-1)
