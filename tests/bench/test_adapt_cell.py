import dataclasses
import json

import numpy as np
import pytest
import torch
from bench_models import tiny

import offsupport
from offsupport.bench import Place
from offsupport.core.checkpoints import tensors_sha256
from offsupport.core.errors import ConfigError, ModelError
from offsupport.results.correctness import unpack
from offsupport.studies import AdaptConfig
from offsupport.studies.adaptation import adapter_of, prepare_adapt, run_adapt

SMALL = AdaptConfig(
    dataset="digits-c", method="bn", corruption="contrast", model="bench_models:tiny", limit=48, batch_size=16
)


def place(folder):
    names = ("tiny", "none", "not_a_model", "with_projection")
    return Place(folder, code=frozenset(f"bench_models:{name}" for name in names))


@pytest.fixture(autouse=True)
def keep_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_cell_is_adapt_and_evaluate(tmp_path):
    outcome = run_adapt(SMALL, place(tmp_path))
    stream = offsupport.data.stream("digits-c", corruption="contrast", limit=48, batch_size=16)
    result = offsupport.evaluate(offsupport.adapt(tiny(), "bn"), stream)
    found = outcome.deterministic
    assert found["error"] == result.error
    assert found["trace"] == result.trace
    assert found["passes"] == result.passes
    rows, correct = unpack(found["domains"]["contrast/5"]["images"])
    order = np.argsort(result.index)
    assert np.array_equal(rows, result.index[order])
    assert np.array_equal(correct, result.correct[order])
    assert outcome.provenance["order_sha256"] == stream.order_hash
    assert outcome.provenance["data_sha256"] == stream.sha256
    assert outcome.provenance["weights_sha256"] == tensors_sha256(tiny().state_dict())
    assert outcome.provenance["limit"] == 48


def test_the_same_cell_gives_the_same_bits(tmp_path):
    config = dataclasses.replace(SMALL, method="tent")
    first, second = run_adapt(config, place(tmp_path)), run_adapt(config, place(tmp_path / "elsewhere"))
    assert first.deterministic == second.deterministic
    assert first.provenance == second.provenance


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "digits", "corruption": None}, {"corruption": "fog"}, {"severity": 1}, {"block": 8},
        {"method": "tent"}, {"method": "tent", "hyper": {"lr": 0.5}}, {"seed": 1}, {"order": "sorted"},
        {"batch_size": 32}, {"limit": 40}, {"corruption": ["contrast", "fog"]},
    ],
)  # fmt: skip
def test_every_setting_has_an_effect(change, tmp_path):
    base, other = (run_adapt(c, place(tmp_path)) for c in (SMALL, dataclasses.replace(SMALL, **change)))
    assert (base.deterministic, base.provenance) != (other.deterministic, other.provenance)


def test_protocol_decides_on_resets(tmp_path):
    config = dataclasses.replace(
        SMALL, method="tent", corruption=["contrast", "fog"], hyper={"lr": 2.0}, limit=64, batch_size=16
    )
    found = {
        protocol: run_adapt(dataclasses.replace(config, protocol=protocol), place(tmp_path)).deterministic["trace"]
        for protocol in ("online", "continual", "episodic")
    }
    assert found["online"][:4] == found["continual"][:4] != found["episodic"][:4]
    assert found["online"][4:] != found["continual"][4:]
    assert found["online"][4] == found["episodic"][4]


def test_threads_are_the_cells_own(tmp_path):
    torch.set_num_threads(2)
    run_adapt(SMALL, place(tmp_path))
    assert torch.get_num_threads() == 1


def test_remarks_of_the_method_are_kept(tmp_path):
    outcome = run_adapt(dataclasses.replace(SMALL, method="eata", source_images=0), place(tmp_path))
    assert any("without source statistics" in remark for remark in outcome.deterministic["warnings"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "tnet"}, "Did you mean 'tent'"),
        ({"hyper": {"lr": 0.1}}, "'lr'"),
        ({"preset": "cifar11"}, "preset"),
        ({"corruption": "fogg"}, "Did you mean 'fog'"),
        ({"dataset": "digitsc"}, "Did you mean 'digits-c'"),
        ({"model": "digits-smal"}, "Did you mean 'digits-small'"),
        ({"model": "bench_models:none"}, "bench_models:none"),
        ({"order": "sorte"}, "Did you mean 'sorted'"),
    ],
)
def test_what_cannot_work_is_refused_before_it_runs(change, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        prepare_adapt([SMALL, dataclasses.replace(SMALL, **change)], place(tmp_path))


def test_a_function_that_returns_no_model_is_said(tmp_path):
    with pytest.raises(ModelError, match="returned str"):
        prepare_adapt([dataclasses.replace(SMALL, model="bench_models:not_a_model")], place(tmp_path))


def test_a_constrained_method_reports_its_gates_and_ranks(tmp_path):
    config = dataclasses.replace(SMALL, method="tent+sc", hyper={"penalty": "prox", "prox": 0.6, "lr": 0.01, "rank": 2})
    prepare_adapt([config], place(tmp_path))
    found = run_adapt(config, place(tmp_path)).deterministic
    findings = found["findings"]
    assert findings["zero_gates"] == 1.0  # three batches at 0.6 a step close every gate that starts at 1
    assert findings["mean_effective_rank"] == 0.0
    assert findings["updates"]["layer1.0.conv1"]["rank"] == 2
    assert findings["gates"]["fc"] == [0.0, 0.0]
    assert json.loads(json.dumps(findings)) == findings
    assert "findings" not in run_adapt(SMALL, place(tmp_path)).deterministic


def test_small_batches_are_no_reason_to_refuse_a_method_that_compares_source_batches(tmp_path):
    config = dataclasses.replace(SMALL, method="tttpp+sc", model="bench_models:with_projection", hyper={"rank": 2})
    prepare_adapt([config], place(tmp_path))


def test_statistics_are_made_as_the_hyper_parameters_say(tmp_path):
    for form, rank in (("full", 3), ("diagonal", 2)):
        hyper = {"class_cov": form, "window": 32}
        config = dataclasses.replace(SMALL, method="ttac", hyper=hyper, source_images=128)
        adapter = adapter_of(config, tiny(), place(tmp_path))
        assert adapter.source.tensors["class_cov"].dim() == rank


def test_source_statistics_from_the_test_split_are_called_a_leak(tmp_path):
    fair = run_adapt(dataclasses.replace(SMALL, method="eata"), place(tmp_path))
    leak = run_adapt(dataclasses.replace(SMALL, method="eata", source_split="test"), place(tmp_path))
    assert any("leak" in remark for remark in leak.deterministic["warnings"])
    assert not any("leak" in remark for remark in fair.deterministic["warnings"])
    assert (fair.provenance["source_split"], leak.provenance["source_split"]) == ("train", "test")


def test_a_cell_says_its_device_only_where_it_is_not_the_cpu(tmp_path):
    assert "device" not in SMALL.cell().config
    gpu = dataclasses.replace(SMALL, device="cuda")
    assert gpu.cell().config["device"] == "cuda"
    with pytest.raises(ConfigError, match="no device 'gpu'"):
        prepare_adapt([dataclasses.replace(SMALL, device="gpu")], place(tmp_path))


def test_what_a_stream_leaves_behind_is_compared_with_the_source_model(tmp_path):
    config = dataclasses.replace(SMALL, method="tent", hyper={"lr": 0.3}, afterwards=30)
    found = run_adapt(config, place(tmp_path)).deterministic["afterwards"]
    adapted = offsupport.adapt(tiny(), "tent", lr=0.3)
    offsupport.evaluate(adapted, offsupport.data.stream("digits-c", corruption="contrast", limit=48, batch_size=16))
    before, after = dict(tiny().named_parameters()), dict(adapted.merge().named_parameters())
    flat = {
        name: torch.cat([p.detach().flatten() for p in each.values()]) for name, each in (("b", before), ("a", after))
    }
    assert found["change"] == pytest.approx(float((flat["a"] - flat["b"]).norm() / flat["b"].norm()), rel=1e-5)
    assert found["change"] > 0
    assert set(found["changes"]) == {name for name, p in before.items() if p.any()}
    (clean,) = offsupport.data.stream("digits", limit=30, batch_size=30)
    said, was = adapted.merge()(clean.x).argmax(1), tiny().eval()(clean.x).argmax(1)
    assert found["error"] == pytest.approx(float((said != clean.y).float().mean()))
    assert found["disagreement"] == pytest.approx(float((said != was).float().mean()))
    rows, correct = unpack(found["images"])
    assert dict(zip(rows, correct, strict=True)) == dict(
        zip(clean.index.tolist(), (said == clean.y).tolist(), strict=True)
    )


def test_a_network_that_never_moved_is_the_source_model_afterwards(tmp_path):
    found = run_adapt(dataclasses.replace(SMALL, afterwards=30), place(tmp_path)).deterministic["afterwards"]
    assert (found["change"], found["disagreement"]) == (0.0, 0.0)
    assert "afterwards" not in SMALL.cell().config  # keys of stored results stay what they are
