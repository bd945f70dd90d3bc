"""An episode: recorded without leaving a trace, stored as a cell, drawn in the report."""

import copy

import pytest
import torch

import offsupport
from offsupport.bench import Place
from offsupport.bench.cell import compute
from offsupport.bench.store import Record
from offsupport.core.errors import InputError
from offsupport.nn import build_network
from offsupport.report.figures import episode_section
from offsupport.studies import EpisodeConfig
from offsupport.studies.episodes import watch_episode


def tiny():
    torch.manual_seed(0)
    return build_network("mae-digits/8", 10, "digits").eval()


HYPER = {"steps": 4, "masks": 6, "lr": 0.05}


def test_watching_shows_what_happens_and_changes_nothing():
    adapted, x = offsupport.adapt(tiny(), "mae-ttt+em", **HYPER), torch.rand(1, 3, 32, 32)
    before, expected = copy.deepcopy(adapted.snapshot().flat()), adapted(x)
    passes = dict(adapted.passes)
    seen = watch_episode(adapted, x)
    assert torch.allclose(seen.probabilities[-1], expected.softmax(1)[0], atol=1e-6)
    assert torch.allclose(seen.probabilities[0], tiny()(x).softmax(1)[0], atol=1e-6)
    assert len(seen.loss) == len(seen.probabilities) == 5
    assert seen.loss[-1] < seen.loss[0]
    assert adapted.passes == passes
    after = adapted.snapshot().flat()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("memory/"))
    assert torch.equal(seen.original, x[0])
    visible = (seen.masked == x[0]).all(0)
    assert visible.float().mean() == pytest.approx(0.25, abs=0.01)
    assert torch.allclose(seen.before[:, visible], x[0][:, visible], atol=1e-4)
    assert not torch.allclose(seen.before, seen.after)
    with pytest.raises(InputError, match="An episode is of one image"):
        watch_episode(adapted, x[0])


def test_an_episode_is_a_cell_that_the_report_draws(tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.path.parent))
    config = EpisodeConfig(
        dataset="digits-c", method="mae-ttt+em", corruption="fog", hyper=HYPER, model="test_episode_figure:tiny"
    )
    threads = torch.get_num_threads()
    first, again = (compute(config.cell(), Place(tmp_path, code=frozenset({config.model}))) for _ in range(2))
    torch.set_num_threads(threads)
    assert first.deterministic == again.deterministic
    record = Record("key", config.cell(), first.deterministic, first.provenance, {})
    section = episode_section(record)
    svg = section.figures[0].svg
    assert svg.count("<image") == 4
    assert "(true)" in svg
    assert "iteration" in svg
    assert "fog, severity 5" in section.prose
