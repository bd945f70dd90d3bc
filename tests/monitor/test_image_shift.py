"""Is one image off the support: the mathematics against slow loops, and what the score calls off."""

import pytest
import torch

from offsupport.monitor.shift import (
    FOLDS,
    SHRINK,
    Evidence,
    _rarity,
    _shared_way,
    class_weights,
    image_evidence,
    off_support,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rarity_is_the_mahalanobis_distance_from_the_clean_images_of_other_folds():
    n, width = 12, 3
    x = draw(n + 2, width)
    found = _rarity(x @ x.T, x.square().sum(1), n, width)
    for i, each in enumerate(x):
        base = torch.stack([x[j] for j in range(n) if i >= n or j % FOLDS != i % FOLDS])
        covariance = (1 - SHRINK) * torch.cov(base.T) + SHRINK * torch.eye(width, dtype=torch.float64)
        away = each - base.mean(0)
        squared = away @ torch.linalg.inv(covariance) @ away / width
        assert float(found[i]) == pytest.approx(0.5 * float(squared.log()), abs=1e-8)


def test_no_image_counts_in_its_own_answer():
    """Against a ridge regression that is solved anew without each image."""
    n, m, width = 9, 5, 4
    x = draw(n + m + 2, width)
    x[n:] += 1
    weights = torch.rand(n, generator=torch.Generator().manual_seed(1)).double() + 0.5
    company = torch.arange(n + m)  # the last two are only judged
    kernel = x @ x[company].T
    found = _shared_way(kernel, company, weights)
    scale = float(kernel[company].diagonal().mean())
    weight = torch.cat([weights / weights.sum(), torch.full((m,), 1 / m).double()]) * (n + m) / 2
    side = torch.tensor([-1.0] * n + [1.0] * m).double()
    design = torch.cat([x, torch.full((len(x), 1), (10 * scale) ** 0.5).double()], 1)
    for i, row in enumerate(design):
        kept = [j for j in range(n + m) if j != i]
        a, w = design[kept], weight[kept]
        slope = torch.linalg.solve(
            a.T @ (w[:, None] * a) + scale * torch.eye(width + 1).double(), a.T @ (w * side[kept])
        )
        assert float(found[i]) == pytest.approx(float(row @ slope), abs=1e-8)


def test_one_more_clean_image_exceeds_the_limit_in_the_share_of_cases_that_is_allowed():
    draws = draw(4000, 100)
    over = [float(row[0]) > Evidence(row[1:], row[:1], torch.ones(99), 0.05).limit for row in draws]
    assert 0.035 < sum(over) / len(over) <= 0.06
    few = draw(10)
    assert Evidence(few, few, torch.ones(10), 0.01).limit == float(few.max())


def test_weights_make_classes_as_frequent_as_among_the_images():
    logits = 50 * torch.eye(3)[torch.arange(300) % 3]
    others = 50 * torch.eye(3)[torch.zeros(3000, dtype=torch.long)]
    weights = class_weights(logits, others)
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights[::3].sum() / weights.sum()) > 0.98
    assert torch.equal(class_weights(logits[:20], others), torch.ones(20).double())


def layers(n, seed, classes=None):
    """Moments of two layers: independent images, of which the second layer tells the class."""
    values = draw(n, 24, seed=seed)
    kind = torch.arange(n) % 4 if classes is None else torch.full((n,), classes)
    values[:, 12:16] += 6 * torch.eye(4).double()[kind]
    first = torch.stack([values[:, :8], draw(n, 8, seed=seed + 1).exp()], 2)
    second = torch.stack([values[:, 8:], draw(n, 16, seed=seed + 2).exp()], 2)
    return [first, second], 20 * torch.eye(4)[kind]


def judged(images, logits, n=200):
    clean, known = layers(n, seed=0)
    weights = class_weights(known, logits)
    return off_support(image_evidence(clean, images, weights)) > 1


def test_clean_images_are_rarely_called_off_whatever_their_classes():
    shares = [judged(*layers(100, seed=10 + 3 * i)).float().mean() for i in range(10)]
    assert torch.stack(shares).mean() < 0.05
    one_class = [judged(*layers(60, seed=50 + 3 * i, classes=i % 4)).float().mean() for i in range(8)]
    assert torch.stack(one_class).mean() < 0.06


def test_a_small_change_is_seen_in_company_and_a_large_one_alone():
    moved, logits = layers(100, seed=90)
    moved[0][:, :5, 0] += 2.5  # within the range of clean images in every moment
    assert judged(moved, logits).float().mean() > 0.9
    alone = [judged([layer[i : i + 1] for layer in moved], logits[i : i + 1]) for i in range(20)]
    assert torch.cat(alone).float().mean() < 0.9
    far = [layer[:1].clone() for layer in moved]
    far[1][:, 0, 1] *= 1e3
    assert judged(far, logits[:1]).all()
