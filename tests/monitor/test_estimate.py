"""Accuracy without labels: each formula against its definition, and what is said of a stream."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

import offsupport
from offsupport.core.errors import ConfigError, InputError, SourceStatsError
from offsupport.engine import SourceStats
from offsupport.monitor import Calibration, CleanMoments, Window, estimate, estimate_accuracy, shift_score
from offsupport.monitor.calibration import (
    Scale,
    atc_threshold,
    capacities,
    crowded,
    marks_of,
    negative_entropy,
    room,
    simulated_shifts,
    temperature,
    transport_costs,
)
from offsupport.monitor.neighbours import (
    FROM_NEIGHBOURS,
    MOST,
    REACH,
    RIGHT,
    ROUNDS,
    USUAL_ERRORS,
    label_bursts,
    label_chain,
)
from offsupport.monitor.shift import fold
from offsupport.testing import NETWORKS, toy_images


def drawn(n, skill, classes=4, seed=0, labels=None, favour=0.0):
    """Logits of a model that knows the label more or less, and may favour a class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n) if labels is None else labels
    logits = skill * np.eye(classes)[labels] + rng.normal(size=(n, classes))
    logits[:, 0] += favour
    return logits, labels


def right(logits, labels):
    return float((logits.argmax(1) == labels).mean())


def test_temperature_is_the_best_of_a_fine_grid():
    logits, labels = drawn(400, 2.0)
    logits = 3 * logits
    grid = np.exp(np.linspace(-1, 1.5, 2001))
    losses = [-log_softmax(logits / t, axis=1)[np.arange(400), labels].mean() for t in grid]
    assert temperature(logits, labels) == pytest.approx(grid[np.argmin(losses)], rel=2e-3)


def test_as_many_scores_fall_short_of_the_threshold_as_are_wrong():
    logits, labels = drawn(300, 1.5)
    scores = negative_entropy(logits)
    ok = logits.argmax(1) == labels
    threshold = atc_threshold(scores, ok)
    assert (scores >= threshold).mean() == pytest.approx(ok.mean())
    assert atc_threshold(scores, np.ones(300, dtype=bool)) == scores.min(), "without errors all are counted as right"


def test_capacities_leave_room_for_chance():
    law = np.array([0.5, 0.3, 0.2, 0.0])
    expected = [math.ceil(100 * q + 0.5 * math.sqrt(100 * q * (1 - q))) for q in law]
    assert capacities(law, 100).tolist() == expected
    assert expected[3] == 0


def test_transport_is_the_cheapest_of_all_assignments():
    p = softmax(np.random.default_rng(0).normal(size=(6, 3)), axis=1)
    law = np.array([0.5, 1 / 3, 1 / 6])
    room = capacities(law, 6)
    fits = [each for each in itertools.product(range(3), repeat=6) if (np.bincount(each, minlength=3) <= room).all()]
    best = min(sum(1 - p[i, k] for i, k in enumerate(each)) for each in fits)
    assert transport_costs(p, law).sum() == pytest.approx(best)


def test_transport_of_many_images_goes_by_blocks():
    p = softmax(np.random.default_rng(0).normal(size=(1500, 3)), axis=1)
    assert transport_costs(p, np.ones(3) / 3).shape == (1500,)


def test_images_that_the_law_has_no_room_for_are_those_of_many_draws():
    law = np.array([0.5, 0.3, 0.15, 0.05])
    draws = np.random.default_rng(0).multinomial(40, law, size=20_000)
    assert crowded(law, 40) == pytest.approx((draws - capacities(law, 40)).clip(min=0).sum(1).mean() / 40, rel=0.03)
    assert crowded(law, 10_000) < 0.1 * crowded(law, 40)


def test_there_is_room_for_predictions_in_the_shares_of_the_law_and_not_for_others():
    law = np.array([0.5, 0.25, 0.25])
    assert room(np.repeat(np.arange(3), [500, 250, 250]), law) == 1.0
    assert room(np.zeros(1000, dtype=np.int64), law) == pytest.approx(0.5, abs=0.02)
    draws = [np.random.default_rng(seed).choice(3, size=60, p=law) for seed in range(300)]
    assert np.mean([room(draw, law) for draw in draws]) > 0.98, "what chance gives is not held against a model"


def test_a_few_clean_images_are_not_taken_for_worse_than_many():
    logits, labels = drawn(2000, 6.0, classes=10)
    law = np.bincount(labels) / 2000
    scale = Scale.fit(logits, labels, law)
    few = [scale.transported(logits[i : i + 60], law) for i in range(0, 1980, 60)]
    assert np.mean(few) == pytest.approx(scale.accuracy, abs=0.02)


def test_means_of_two_predictions_may_be_less_sure_without_being_wrong():
    """Confidence falls by a tenth as soon as predictions are mixed, and only then as fast as the accuracy does."""
    logits, labels = drawn(2000, 4.0)
    law = np.bincount(labels) / 2000
    plain = Scale.fit(logits, labels, law)
    shifted = []
    for lost in (0.02, 0.1, 0.25, 0.4):
        other = 50 * np.eye(4)[labels]
        unsure = np.arange(int(2000 * (1 - plain.accuracy + 0.1 + lost)))
        other[unsure] /= 5000
        flawed = unsure[: int(2000 * (1 - plain.accuracy + lost))]
        other[flawed] = np.roll(other[flawed], 1, axis=1)
        shifted.append((other, labels))
    alone, mixed = Scale.fit(logits, labels, law, shifted), Scale.fit(logits, labels, law, shifted, mixed=True)
    assert alone.free == 0
    assert mixed.free == pytest.approx(0.1, abs=0.02)
    assert mixed.slope == pytest.approx(1.0, abs=0.05)
    off = {scale: [abs(scale.sloped(x) - right(x, y)) for x, y in shifted] for scale in (alone, mixed)}
    assert max(off[mixed]) < 0.02 < max(off[alone])


def test_a_shift_on_which_a_model_is_sure_of_one_class_tells_no_slope():
    logits, labels = drawn(500, 4.0)
    law = np.bincount(labels) / 500
    sure = 30 * np.eye(4)[np.zeros(500, dtype=np.int64)]
    unsure, _ = drawn(500, 2.0, labels=labels, seed=1)
    assert Scale.fit(logits, labels, law, [(sure, labels)]).slope == Scale.fit(logits, labels, law).slope
    both = Scale.fit(logits, labels, law, [(sure, labels), (unsure, labels)])
    assert both.slope == Scale.fit(logits, labels, law, [(unsure, labels)]).slope
    assert both.ceiling(sure, law) == pytest.approx(law[0] * both.accuracy, abs=0.03)


def test_an_unsure_model_that_says_what_a_right_one_says_is_right():
    source, labels = drawn(400, 5.0, seed=2)
    found = estimate(Window(source, source / 50, 400, shift=1.0), calibrated())
    other = np.where(np.arange(400)[:, None] % 50 == 0, np.roll(source, 1, axis=1), source) / 50
    changed = estimate(Window(source, other, 400, shift=1.0), calibrated())
    assert found.adapted == found.source
    assert changed.adapted.value >= found.source.value - 0.02
    assert changed.adapted.low <= right(other, labels) <= changed.adapted.high


def test_the_chain_finds_labels_that_come_together_where_single_predictions_do_not():
    labels = np.repeat(np.arange(4), 40)
    logits, _ = drawn(160, 0.7, labels=labels, favour=1.0)
    chain = label_chain(logits, 1.0)
    assert chain.stays >= 0.9
    assert right(logits, labels) < 0.6
    assert right(chain.posterior, labels) > 0.9
    shuffled = np.random.default_rng(0).permutation(160)
    assert label_chain(logits[shuffled], 1.0).stays <= 0.3


# Bursts of a few classes each -----------------------------------------------------------------------------------------


def bursty(n, classes=6, length=60, seed=0):
    """Labels of a stream that shows two classes at a time, in random order, one of them four times as often."""
    rng = np.random.default_rng(seed)
    pairs = [rng.choice(classes, 2, replace=False) for _ in range(-(-n // length))]
    return np.concatenate([rng.choice(pair, length, p=[0.8, 0.2]) for pair in pairs])[:n]


def in_bursts(skill, seed=5, favour=0.0):
    return drawn(480, skill, classes=6, seed=seed, labels=bursty(480), favour=favour)


def of_six(skill=4.0):
    return Calibration.fit(*drawn(500, skill, classes=6))


@pytest.mark.parametrize(("skill", "favour"), [(4.0, 0.0), (2.5, 0.0), (2.5, 1.5)])
def test_accuracy_is_told_of_streams_in_bursts(skill, favour):
    """The chain takes what is rare in a burst for errors; transport by the law of the source takes bursts for them."""
    known = of_six()
    source, labels = in_bursts(skill, favour=favour)
    found = estimate(Window(source, source, 480, shift=1.0 if skill == 4.0 else 20.0), known)
    truth = right(source, labels)
    assert found.order == "not iid"
    assert found.source.value == pytest.approx(truth, abs=0.06)
    assert found.source.low <= truth <= found.source.high
    assert found.source.high - found.source.low < 0.35
    chain = label_chain(source, known.source.temperature)
    assert chain.posterior[np.arange(480), source.argmax(1)].mean() < truth - 0.07


def test_batch_statistics_of_bursts_are_said_to_harm():
    source, labels = in_bursts(4.0)
    adapted, _ = in_bursts(1.0, seed=6)
    found = estimate(Window(source, 6 * adapted, 480, shift=1.0), of_six())
    assert found.verdict == "harms"
    assert found.adapted.low <= right(adapted, labels) <= found.adapted.high


def test_neighbours_tell_the_law_of_a_window_in_which_the_model_favours_a_class():
    known = of_six()
    source, labels = in_bursts(2.0, favour=1.5)
    law = np.bincount(labels, minlength=6) / 480
    seen = np.bincount(source.argmax(1), minlength=6) / 480
    found = label_bursts(source, known.source)
    assert abs(found.law - law).sum() < 0.5 * min(abs(seen - law).sum(), abs(known.law - law).sum())
    assert right(found.posterior, labels) > right(source, labels) + 0.1


def test_bursts_are_told_from_sorted_streams_and_from_random_order():
    scale = of_six().source
    labels = {
        "bursts": bursty(480),
        "sorted": np.repeat(np.arange(6), 80),
        "random": np.random.default_rng(0).integers(0, 6, 480),
    }
    found = {name: label_bursts(drawn(480, 2.5, classes=6, labels=each)[0], scale) for name, each in labels.items()}
    assert found["bursts"].evidence > found["bursts"].chained + 0.05
    assert found["sorted"].evidence < found["sorted"].chained
    assert found["random"].evidence < 0.1 < found["bursts"].evidence


def test_a_shift_that_comes_and_goes_in_random_order_is_not_taken_for_bursts():
    """Under it the model favours other classes; the law is still that of the source."""
    known = of_six()
    logits, labels = drawn(480, 4.0, classes=6, seed=7)
    for turn, start in enumerate(range(0, 480, 120)):
        logits[start : start + 60, turn % 2] += 4.0
    found = estimate(Window(logits, logits, 480, shift=20.0), known)
    assert found.order == "not iid"
    assert found.source.value == pytest.approx(right(logits, labels), abs=0.06)


def test_the_interval_grows_where_the_law_of_a_window_may_be_an_error_of_the_model():
    source, _ = in_bursts(4.0)
    near, far, unknown = (estimate(Window(source, source, 480, shift=s), of_six()).source for s in (1.0, 60.0, None))
    assert near.value == far.value == unknown.value
    assert near.high - near.low < far.high - far.low <= unknown.high - unknown.low


def test_a_model_that_no_order_confuses_is_judged_by_the_mean_of_transport_and_confidence():
    source, labels = drawn(400, 1.0, seed=2)
    adapted, _ = drawn(400, 2.0, seed=3, labels=labels)
    known = calibrated()
    scale = known.source
    window = Window(source, adapted, 400)
    expected = (scale.transported(adapted, known.law) + scale.sloped(adapted)) / 2
    assert estimate(dataclasses.replace(window, steady=True), known).adapted.value == pytest.approx(expected)
    assert estimate(window, known).adapted.value == pytest.approx(scale.sloped(adapted))


def test_labels_of_many_classes_are_told_by_those_that_are_predicted():
    labels = bursty(300, classes=3 * MOST, length=50)
    logits, _ = drawn(300, 8.0, classes=3 * MOST, labels=labels)
    scale = Scale(1.0, -0.5, 0.5, 0.95, 1.5, 500)
    found = label_bursts(logits, scale)
    assert found.posterior.shape == (300, 3 * MOST)
    assert found.posterior.sum(1) == pytest.approx(np.ones(300))
    assert (found.posterior.max(0) > 0).sum() <= MOST
    assert right(found.posterior, labels) > 0.9


def test_an_image_that_is_surely_none_of_the_frequent_classes_changes_little_of_what_is_said_of_others():
    """Chances of classes that are not looked at vanish entirely where a model is far too sure."""
    logits, _ = drawn(4 * MOST + 80, 12.0, classes=3 * MOST, labels=np.repeat(np.arange(MOST + 20), 4))
    scale = Calibration.fit(*drawn(900, 2.0, classes=3 * MOST)).source
    plain = label_bursts(logits, scale)
    odd = logits.copy()
    odd[100] = -4000 * (1 - np.eye(3 * MOST)[-1])
    found = label_bursts(odd, scale)
    others = np.r_[:100, 101 : len(odd)]
    assert np.allclose(found.posterior.sum(1), 1)
    assert (found.posterior.argmax(1) == plain.posterior.argmax(1))[others].mean() > 0.97
    assert found.evidence == pytest.approx(plain.evidence, abs=0.1)


def test_a_model_that_is_right_more_often_than_always_by_transport_is_right_always(monkeypatch):
    """What a law has no room for by chance is added, which may come to more than one."""
    logits, labels = drawn(120, 6.0, classes=3, labels=bursty(120, classes=3, length=10))
    scale = Calibration.fit(*drawn(300, 6.0, classes=3)).source
    monkeypatch.setattr(Scale, "transported", lambda *_: 1.2)
    found = label_bursts(logits, scale)
    assert found.posterior.min() >= 0
    assert np.allclose(found.posterior.sum(1), 1)
    assert np.isfinite(found.evidence)
    assert right(found.posterior, labels) > 0.9


def test_labels_of_bursts_are_those_of_plain_loops():
    logits, _ = drawn(40, 2.0, classes=3, labels=bursty(40, classes=3, length=10))
    scale = Scale(0.8, -0.5, 0.5, 0.9, 1.5, 500)
    found = label_bursts(logits, scale)
    best = max((plainly(logits, scale, reach) for reach in REACH), key=lambda each: each[1])
    assert found.posterior == pytest.approx(best[0])
    assert found.evidence == pytest.approx(best[1])


def plainly(logits, scale, reach):
    """Labels and evidence, image by image and class by class."""
    n, k = logits.shape
    p = softmax(logits / scale.temperature, axis=1)
    seen = p / p.mean(0)
    c = [[RIGHT * (a == b) + (1 - RIGHT) * p[:, b].mean() for b in range(k)] for a in range(k)]

    def speaks(t, a):
        return sum(c[a][b] * seen[t, b] for b in range(k))

    lik = [[speaks(t, a) for a in range(k)] for t in range(n)]
    sides = [[[x / sum(row) for x in row] for row in lik] for _ in range(2)]
    right = None
    for rounds in ROUNDS:
        for _ in range(rounds):
            laws, labels = [[None] * n, [None] * n], [[None] * n, [None] * n]
            for asked in (0, 1):
                for t in range(n):
                    near = {s: math.exp(-abs(s - t) / reach) for s in range(n) if s != t and s % 2 != asked}
                    law = [sum(w * sides[asked][s][a] for s, w in near.items()) / sum(near.values()) for a in range(k)]
                    laws[asked][t] = [FROM_NEIGHBOURS * x + (1 - FROM_NEIGHBOURS) / k for x in law]
                    own = [lik[t][a] * laws[asked][t][a] for a in range(k)]
                    labels[asked][t] = [x / sum(own) for x in own]
            sides = labels
            q = [labels[t % 2][t] for t in range(n)]
            counts = [
                [sum(q[t][a] * c[a][b] * seen[t, b] / lik[t][a] for t in range(n)) for b in range(k)] for a in range(k)
            ]
            hits, total = sum(counts[a][a] for a in range(k)), sum(map(sum, counts))
            wrong = [(sum(counts[a][b] for a in range(k) if a != b) + 1) / (total - hits + k) for b in range(k)]
            chance = sum(sum(counts[a]) * wrong[a] for a in range(k)) / total
            rho = max(0.0, ((hits / total if right is None else right) - chance) / (1 - chance))
            extra = USUAL_ERRORS[right is not None]
            c = [
                [
                    (counts[a][b] + extra * (rho * (a == b) + (1 - rho) * wrong[b])) / (sum(counts[a]) + extra)
                    for b in range(k)
                ]
                for a in range(k)
            ]
            lik = [[speaks(t, a) for a in range(k)] for t in range(n)]
        right = scale.transported(logits, np.mean(q, axis=0))
    told = [sum(lik[t][a] * laws[t % 2][t][a] for a in range(k)) for t in range(n)]
    return np.array(q), float(np.mean(np.log(told)))


@pytest.mark.parametrize("favour", [0.0, 1.0, 3.0])
def test_the_accuracy_of_a_source_model_is_within_its_interval(favour):
    calibration = Calibration.fit(*drawn(500, 3.0))
    logits, labels = drawn(500, 3.0, seed=1, favour=favour)
    found = estimate_accuracy(logits, calibration)
    assert found.low <= right(logits, labels) <= found.high


def test_arrays_that_tell_nothing_are_refused():
    logits, labels = drawn(400, 3.0)
    calibration = Calibration.fit(logits, labels)
    with pytest.raises(InputError, match="30 images"):
        estimate_accuracy(logits[:29], calibration)
    with pytest.raises(InputError, match="4 classes"):
        estimate_accuracy(logits[:, :3], calibration)
    with pytest.raises(InputError, match="finite"):
        estimate_accuracy(np.full((40, 4), np.nan), calibration)
    with pytest.raises(InputError, match="one class"):
        estimate_accuracy(np.tile([5.0, 0, 0, 0], (50, 1)), calibration)
    with pytest.raises(InputError, match="100 labelled"):
        Calibration.fit(logits[:50], labels[:50])
    with pytest.raises(InputError, match="one class only"):
        Calibration.fit(logits, np.zeros(400, dtype=int))
    with pytest.raises(InputError, match="classes 0 to 3"):
        Calibration.fit(logits, labels + 4)
    with pytest.raises(InputError, match="belong together"):
        Calibration.fit(logits, labels[:7])


def calibrated():
    return Calibration.fit(*drawn(500, 3.0))


def test_harm_is_said_where_batches_of_one_class_confuse_the_adapted_model():
    labels = np.repeat(np.arange(4), 100)
    source, _ = drawn(400, 3.0, labels=labels, seed=2)
    adapted, _ = drawn(400, 0.5, labels=labels, seed=3)
    found = estimate(Window(source, 6 * adapted, 400), calibrated())
    assert found.order == "not iid"
    assert found.verdict == "harms"
    assert found.adapted.low <= right(adapted, labels) <= found.adapted.high
    assert found.source.low <= right(source, labels) <= found.source.high
    assert "Use the source model" in str(found)


@pytest.mark.parametrize("shift", [1.0, 40.0])
def test_harm_is_said_of_a_model_that_is_sure_of_a_few_classes(shift):
    """Steps towards certainty: every answer is sure, most are of one class."""
    labels = np.random.default_rng(9).integers(0, 4, 400)
    source, _ = drawn(400, 2.0, labels=labels, seed=2)
    adapted, _ = drawn(400, 1.0, labels=labels, seed=3, favour=3.0)
    known = dataclasses.replace(calibrated(), adapted=calibrated().source, benefit=(0.01, 0.01))
    found = estimate(Window(source, 20 * adapted, 400, shift=shift), known)
    assert found.order == "iid"
    assert found.verdict == "harms"
    assert found.adapted.low <= right(adapted, labels) <= found.adapted.high


def test_a_model_that_leaves_a_source_model_that_is_right_is_not_right():
    """Every answer is sure and the classes are balanced: they are another's."""
    source, labels = drawn(400, 6.0, seed=2)
    swapped = np.where(np.arange(400) % 2, (labels + 1) % 4, labels)
    adapted, _ = drawn(400, 6.0, labels=swapped, seed=3)
    found = estimate(Window(source, 5 * adapted, 400, shift=1.0), Calibration.fit(*drawn(500, 6.0)))
    assert found.verdict == "harms"
    assert found.adapted.value == pytest.approx(right(adapted, labels), abs=0.05)


def test_a_model_that_no_order_confuses_is_the_witness_of_the_order():
    labels = np.repeat(np.arange(4), 100)
    adapted, _ = drawn(400, 3.0, labels=labels, seed=2)
    source, _ = drawn(400, 0.3, labels=labels, seed=3)
    found = estimate(Window(source, adapted, 400, steady=True), calibrated())
    assert found.order == "not iid"
    for interval, logits in ((found.source, source), (found.adapted, adapted)):
        assert interval.low <= right(logits, labels) <= interval.high
    assert found.verdict == "helps"


def test_a_source_model_that_sees_one_class_after_the_other_makes_no_order():
    adapted, labels = drawn(400, 3.0, seed=2)
    source = np.concatenate([part + 6.0 * np.eye(4)[k] for k, part in enumerate(np.split(adapted, 4))])
    assert estimate(Window(source, adapted, 400), calibrated()).order == "not iid"
    found = estimate(Window(source, adapted, 400, steady=True), calibrated())
    assert found.order == "iid"
    assert found.adapted.low <= right(adapted, labels) <= found.adapted.high


def test_help_is_said_where_the_source_model_favours_a_class():
    source, _ = drawn(500, 3.0, seed=2, favour=5.0)
    adapted, _ = drawn(500, 3.0, seed=2)
    found = estimate(Window(source, adapted, 500), calibrated())
    assert found.order == "iid"
    assert found.verdict == "helps"
    assert found.benefit.high <= 1 - found.agreement, "no more than where they disagree"


def test_the_same_answers_are_neutral():
    logits, _ = drawn(200, 3.0, seed=2)
    found = estimate(Window(logits, logits, 200), calibrated())
    assert (found.verdict, found.benefit.value, found.agreement) == ("neutral", 0.0, 1.0)


def test_without_knowledge_the_verdict_is_unknown_and_nothing_is_a_number():
    logits, _ = drawn(200, 3.0, seed=2)
    few = estimate(Window(logits[:29], logits[:29], 29), calibrated())
    assert few.verdict == "unknown"
    assert "30 images" in few.reason
    assert (few.source, few.adapted, few.benefit, few.agreement, few.shift) == (None,) * 5
    nothing = estimate(Window(logits, logits, 200), None)
    assert nothing.verdict == "unknown"
    assert nothing.source is None
    assert nothing.agreement == 1.0
    copies = estimate(Window(logits, logits, 200, copies=11), calibrated())
    assert copies.source is None
    assert "calibration was made of" in copies.reason
    resized = estimate(Window(logits, logits, 200, resized=200), calibrated())
    assert "another size" in resized.reason


def test_the_shift_score_is_one_on_clean_values_and_the_same_for_any_number_of_shifted_ones():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 3, generator=generator)

    def values(n, move):
        return torch.randn(n, 40, generator=generator) + move

    clean = CleanMoments.fit([(values(1000, 0.0), logits[:1000], [8, 32])])
    scores = {
        (n, move): shift_score(fold(torch.empty(0), clean.difference(values(n, move), logits[:n])), clean)
        for n in (64, 400)
        for move in (0.0, 0.5)
    }
    assert scores[400, 0.0] == pytest.approx(1.0, abs=0.2)
    assert scores[64, 0.0] < 2.5
    assert scores[400, 0.5] == pytest.approx(1 + 64 * 0.25, rel=0.2)
    assert scores[64, 0.5] == pytest.approx(scores[400, 0.5], rel=0.35)


def test_simulated_shifts_keep_shape_and_range():
    x = torch.rand(4, 3, 16, 16)
    shifted = list(simulated_shifts(x))
    assert len(shifted) == 4
    assert all(each.shape == x.shape and each.min() >= 0 and each.max() <= 1 for each in shifted)


def test_images_have_marks():
    x = torch.rand(3, 3, 4, 4)
    assert len(set(marks_of(x))) == 3
    assert (marks_of(x.flip(0)) == marks_of(x)[::-1]).all()


# With a network -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return NETWORKS["batch_norm"]()


@pytest.fixture(scope="module")
def clean():
    return toy_images(160, seed=1)


@pytest.fixture(scope="module")
def stats(model, clean):
    x, y = clean
    return offsupport.source_stats(model, zip(x.split(40), y.split(40), strict=True), "bn", monitor=True)


def test_labels_may_come_with_the_batches_or_beside_them(model, clean, stats):
    x, y = clean
    beside = offsupport.source_stats(model, list(x.split(32)), "bn", labels=y)
    assert all(torch.equal(stats.calibration[name], beside.calibration[name]) for name in ("source", "law", "marks"))
    with pytest.raises(InputError, match="160 source images"):
        offsupport.source_stats(model, list(x.split(32)), "bn", labels=torch.cat([y, y]))


def test_a_calibration_survives_a_file(stats, tmp_path):
    stats.save(tmp_path / "stats.safetensors")
    again = SourceStats.load(tmp_path / "stats.safetensors")
    assert again.tensors == {}
    assert all(torch.equal(again.calibration[name], tensor) for name, tensor in stats.calibration.items())
    assert Calibration.of(again.calibration, "bn").source == Calibration.of(stats.calibration, "bn").source


def test_an_estimate_of_any_method_by_one_calibration(model, stats):
    x, y = toy_images(128, seed=9)
    for method in ("source", "tent", "shot"):
        adapted = offsupport.adapt(model, method, source=stats, monitor=True)
        logits = torch.cat([adapted(part) for part in x.split(32)])
        found = adapted.estimate()
        assert found.n == 128
        assert found.shift > 0
        assert found.adapted.low <= right(logits.numpy(), y.numpy()) <= found.adapted.high
    assert adapted.passes["forward"] >= 8


def test_an_adapter_says_what_its_arrays_say(model, stats):
    x, _ = toy_images(96, seed=9)
    adapted = offsupport.adapt(model, "bn", source=stats, monitor=True)
    logits = torch.cat([adapted(part) for part in x.split(32)]).double().numpy()
    with torch.no_grad():
        source = model.eval()(x).double().numpy()
    found = adapted.estimate()
    direct = estimate(Window(source, logits, 96, found.shift), Calibration.of(stats.calibration, "bn"))
    assert direct.adapted.value == pytest.approx(found.adapted.value, abs=0.02)
    assert direct.verdict == found.verdict


def test_calibration_images_among_the_targets_are_noticed(model, clean, stats):
    adapted = offsupport.adapt(model, "bn", source=stats, monitor=True)
    adapted(clean[0][:64])
    assert "calibration was made of" in adapted.estimate().reason


def test_what_is_missing_is_said(model, stats):
    with pytest.raises(ConfigError, match="monitor=True"):
        offsupport.adapt(model, "bn").estimate()
    adapted = offsupport.adapt(model, "tent", monitor=True)
    assert "so far it saw 0" in adapted.estimate().reason
    adapted(toy_images(64, seed=0)[0])
    found = adapted.estimate()
    assert found.verdict == "unknown"
    assert "source_stats" in found.reason
    assert found.agreement is not None
    with pytest.raises(SourceStatsError):
        offsupport.adapt(model, "ttac", source=stats)
    with pytest.raises(SourceStatsError, match="other weights"):
        offsupport.adapt(NETWORKS["group_norm"](), "tent", source=stats)


def test_without_labels_a_shift_is_seen_and_no_accuracy(model, clean):
    stats = offsupport.source_stats(model, list(clean[0].split(40)), "tent", monitor=True)
    adapted = offsupport.adapt(model, "tent", source=stats, monitor=True)
    adapted(toy_images(64, seed=3)[0])
    found = adapted.estimate()
    assert found.shift is not None
    assert found.source is None
    assert "labels" in found.reason


def test_a_window_is_saved_reset_and_loaded(model, stats, tmp_path):
    adapted = offsupport.adapt(model, "tent", source=stats, monitor=True)
    adapted(toy_images(64, seed=3)[0])
    adapted.save(tmp_path / "a.safetensors")
    again = offsupport.load_adapted(model, tmp_path / "a.safetensors", source=stats)
    assert again.estimate() == adapted.estimate()
    adapted.reset()
    assert adapted.estimate().n == 0


def test_the_monitor_changes_no_answer(model, stats):
    x, _ = toy_images(128, seed=4)
    watched, plain = (offsupport.adapt(model, "tent", **given) for given in ({"source": stats, "monitor": True}, {}))
    assert all(torch.equal(watched(part), plain(part)) for part in x.split(32))
