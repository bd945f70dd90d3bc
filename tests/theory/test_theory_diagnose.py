"""The diagnosis says what is proved: which presets satisfy which assumptions, and which fail by a witness."""

import json

import numpy as np
import pytest
import torch

from offsupport.core.errors import InputError
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process, preset
from offsupport.theory import diagnose


def run(process, distance, seed=0, points=64):
    return diagnose(draw(process, [seed], [distance]), points=points)


def states(verdict):
    return {condition.name: condition.status for condition in verdict.conditions}


def evidence(verdict, name):
    return next(condition.evidence for condition in verdict.conditions if condition.name == name)


@pytest.fixture(scope="module")
def inside():
    return run(preset("assumptions", n_source=300), 3.02)


def test_assumptions_dense_inside_the_certified_radius_holds(inside):
    certified = inside.radii[0]
    assert inside.distance == pytest.approx(0.02, rel=1e-4)
    assert certified.way == "certified"
    assert certified.ratio_s < 1
    assert inside.theorem1.status == "holds"
    assert set(states(inside.theorem1).values()) == {"holds"}
    assert inside.theorem2.status == "fails"
    assert states(inside.theorem2)["iii sparse influence"] == "fails"
    assert inside.influence.s_size == (6, 6)


def test_beyond_the_certified_radius_is_unknown_and_beyond_the_largest_possible_fails(inside):
    sampled = next(r for r in inside.radii if r.way == "sampled")
    certified = inside.radii[0]
    between = run(preset("assumptions", n_source=300), 3 + (certified.radius_s + sampled.radius_s) / 2)
    assert states(between.theorem1)["v distance"] == "unknown"
    assert between.theorem1.status == "unknown"
    beyond = run(preset("assumptions", n_source=300), 3 + 3 * sampled.radius_s)
    assert states(beyond.theorem1) == {**states(inside.theorem1), "v distance": "fails"}


@pytest.mark.parametrize(("name", "distance"), [("paper", 12), ("table", 12), ("table", 30)])
def test_published_distances_lie_outside_the_guarantee(name, distance):
    found = run(preset(name, n_source=300), distance)
    assert found.distance == pytest.approx(distance - 3, rel=1e-5)
    assert states(found.theorem1)["v distance"] == "fails"
    assert states(found.theorem1)["iii discrete"] == "fails"
    assert next(r for r in found.radii if r.way == "sampled").ratio_s > 5


def test_published_relu_generator_is_not_invertible_and_leaky_is():
    relu, leaky = run(preset("paper", n_source=300), 12), run(preset("table", n_source=300), 12)
    assert states(relu.theorem1)["i invertible"] == "fails"
    assert relu.jacobian.mean_rank < 4
    assert "same x" in evidence(relu.theorem1, "i invertible")
    assert states(leaky.theorem1)["i invertible"] == "holds"
    assert leaky.jacobian.lower > 0
    assert states(leaky.theorem1)["i smooth"] == "fails"


@pytest.mark.parametrize("name", ["paper", "table"])
@pytest.mark.parametrize("seed", [0, 1])
def test_published_sparse_generator_violates_mechanistic_dependence(name, seed):
    found = run(preset(name, "sparse", n_source=300), 18, seed)
    assert states(found.theorem2)["iv mechanistic dependence"] == "fails"
    assert states(found.theorem2)["iii sparse influence"] == "holds"
    if name == "table":
        assert states(found.theorem2)["ii informative"] == "holds"  # square layers: no row can vanish
        assert found.dependence.margin < 1e-8
        assert not found.dependence.connected


def test_assumptions_sparse_meets_all_but_what_cannot_be_certified():
    found = run(preset("assumptions", "sparse", n_source=300), 30)
    assert states(found.theorem2) == {
        "x = g(z)": "holds",
        "i smooth": "holds",
        "i invertible": "holds",
        "ii informative": "unknown",
        "iii sparse influence": "holds",
        "iv mechanistic dependence": "unknown",
    }
    assert "gradient" in evidence(found.theorem2, "ii informative")
    assert found.dependence.connected
    assert found.dependence.margin > 1e-3
    assert found.influence.s_at_target == (9, 10)
    assert found.influence.exclusive_size == (9, 9)


def test_twice_as_many_dimensions_as_c_leaves_isolated_violations():
    found = run(preset("assumptions", "sparse", n_source=300, d_h=8), 18)
    assert states(found.theorem2)["iv mechanistic dependence"] == "fails"
    assert found.dependence.margin < 1e-8
    assert "1 of" in evidence(found.theorem2, "iv mechanistic dependence")


@pytest.mark.parametrize(
    ("changes", "theorem", "name"),
    [
        ({"noise": 0.05}, "theorem1", "x = g(z)"),
        ({"d_continuous": 2, "embedding": "fixed"}, "theorem1", "ii compact"),
        ({"shift": "sparse", "influence": "varying"}, "theorem2", "i smooth"),
        ({"task": "regression"}, "theorem1", "iii discrete"),
    ],
)
def test_every_departure_is_flagged(changes, theorem, name):
    found = run(Process(n_source=300, **changes), 5.0)
    assert states(getattr(found, theorem))[name] == "fails"


def test_text_json_and_picture(inside, tmp_path):
    text = str(inside)
    assert text.startswith("Recoverable: Theorem 1")
    assert "certified" in text
    plain = json.loads(json.dumps(inside.to_dict(), allow_nan=False))
    assert plain["theorem1"]["status"] == "holds"
    assert plain["distance"] == inside.distance
    figure = inside.plot()
    figure.savefig(tmp_path / "picture.png")
    assert len(figure.axes) == 2
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert {"target", "edge of the support"} <= labels
    assert inside.plot(figure.axes[0]) is figure


def test_box_three_dimensions_and_same_seed_same_diagnosis(tmp_path):
    process = Process(n_source=300, d_s=3, shape="box", activation="smooth", embedding="fixed")
    first, second = run(process, 6.0, points=16), run(process, 6.0, points=16)
    assert first.to_dict() == second.to_dict()
    assert first.separation.certified > 0
    first.plot().savefig(tmp_path / "picture.svg")


def test_targets_are_recognised_and_strangers_refused():
    draws = draw(preset("assumptions", n_source=100), [0, 1], [4.0, 9.0])
    assert diagnose(draws, draws.x_tgt[1, 1, 0], run=1, points=32).distance == pytest.approx(6, rel=1e-5)
    with pytest.raises(InputError, match="none of the run's targets"):
        diagnose(draws, torch.zeros(6))
    with pytest.raises(InputError, match="no target"):
        diagnose(draw(preset("assumptions", n_source=100), [0]))
    with pytest.raises(InputError, match="Cannot diagnose a str"):
        diagnose("assumptions")


def test_a_bare_process_is_drawn_by_its_seed():
    process = preset("assumptions", n_source=100)
    drawn = diagnose(draw(process, [3], [4.0], dtype=torch.float64), points=16)
    assert diagnose(process, run=3, distance=4.0, points=16).to_dict() == drawn.to_dict()
    assert diagnose(process, points=16).distance == pytest.approx(3.0)  # at twice the radius of the support


class Oracle:
    """An estimator that inverts the true generator, up to a scale of s; ``decode`` only if asked."""

    def __init__(self, draws, decoder):
        self.g = draws.g
        if decoder:
            self.decode = lambda z: self.g(torch.cat([z[:, :4], z[:, 4:] / 10], -1)[None])[0]

    def latents(self, X):
        z = self.g.inverse(torch.as_tensor(X, dtype=torch.float64)[None])[0]
        return z[:, :4].numpy(), 10 * z[:, 4:].numpy()


@pytest.fixture(scope="module")
def fitted():
    return draw(Process(n_source=400, embedding="fixed"), [0], [3.0, 20.0], dtype=torch.float64)


def test_estimator_is_never_certified_and_scale_of_s_hat_does_not_matter(fitted):
    X, y = fitted.x[0].numpy(), fitted.y[0].numpy()
    near = diagnose(Oracle(fitted, decoder=True), fitted.x_tgt[0, 0, 0].numpy(), X=X, y=y, points=64)
    far = diagnose(Oracle(fitted, decoder=True), fitted.x_tgt[0, 1, 0].numpy(), X=X, y=y, points=64)
    for found in (near, far):
        assert "holds" not in {*states(found.theorem1).values(), *states(found.theorem2).values()}
        assert not found.known
        assert {r.way for r in found.radii} == {"sampled", "local"}
    assert states(far.theorem1)["v distance"] == "fails"
    assert 10 < far.distance < 25  # in standard deviations of s, not in units of s_hat
    assert near.distance < 1
    assert dict(far.nearby)["convex hull of 400 source s_hat"] > 10


def test_estimator_without_decoder_reports_what_it_can(fitted):
    X, y = fitted.x[0].numpy(), np.where(fitted.y[0].numpy() == 1, "cat", "dog")
    found = diagnose(Oracle(fitted, decoder=False), fitted.x_tgt[0, 1, 0].numpy(), X=X, y=y)
    assert found.distance > 10
    assert found.jacobian is found.separation is found.influence is found.dependence is None
    assert found.theorem1.status == found.theorem2.status == "unknown"
    assert "no decoder" in str(found)
    found.plot()
    with pytest.raises(InputError, match="with a target and its source"):
        diagnose(Oracle(fitted, decoder=False), X[0])
