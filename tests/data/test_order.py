import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsupport.data.order import Plan, permutation, plan_mixed, plan_sequence
from offsupport.data.spec import ORDERS, StreamSpec

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def rng(seed=0):
    return np.random.default_rng(seed)


def how(order="iid", seed=0, limit=None, batch_size=7, concentration=0.1):
    return StreamSpec(
        dataset="any", order=order, concentration=concentration, seed=seed, limit=limit, batch_size=batch_size
    )


def alike(labels):
    """The share of neighbours of one class."""
    return (labels[1:] == labels[:-1]).mean()


@given(
    st.lists(st.integers(-1, 5), min_size=1, max_size=60),
    st.sampled_from(ORDERS),
    st.floats(1e-3, 1e3),
    st.integers(0, 99),
)
def test_every_order_is_a_permutation(labels, order, concentration, seed):
    turn = permutation(np.asarray(labels), order, rng(seed), concentration)
    assert sorted(turn.tolist()) == list(range(len(labels)))


def test_iid_is_unrelated_to_labels():
    assert abs(alike(LABELS[permutation(LABELS, "iid", rng(), 0)]) - 0.1) < 0.03


def test_sorted_lines_classes_up_and_shuffles_within():
    turn = permutation(LABELS, "sorted", rng(), 0)
    assert (np.diff(LABELS[turn]) >= 0).all()
    of_class = turn[LABELS[turn] == 3]
    assert (np.diff(of_class) < 0).any()


def test_dirichlet_concentration_goes_from_bursts_to_iid():
    shares = [alike(LABELS[permutation(LABELS, "dirichlet", rng(1), c)]) for c in (1e-3, 0.1, 1.0, 1e6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.3
    assert abs(shares[-1] - 0.1) < 0.03
    windows = LABELS[permutation(LABELS, "dirichlet", rng(1), 0.1)][:2000].reshape(20, 100)
    assert np.mean([len(np.unique(window)) for window in windows]) < 8  # iid windows hold all 10


def test_plan_of_a_sequence():
    plan = plan_sequence([(0, "fog/5"), (1, "snow/5"), (0, "fog/5")], [LABELS[:10], LABELS[:4]], how())
    assert plan.bounds.tolist() == [0, 7, 10, 14, 21, 24]
    assert plan.domain.tolist() == [0] * 10 + [1] * 4 + [0] * 10
    first, again = plan.rows[:10], plan.rows[14:]
    assert sorted(first) == sorted(again) == list(range(10))
    assert first.tolist() != again.tolist()  # another visit, another order


def test_a_domain_has_the_same_order_in_any_sequence():
    alone = plan_sequence([(0, "snow/5")], [LABELS], how())
    after = plan_sequence([(0, "fog/5"), (1, "snow/5")], [LABELS, LABELS], how())
    assert np.array_equal(after.rows[2000:], alone.rows)
    assert not np.array_equal(after.rows[:2000], alone.rows)


def test_limit_keeps_the_same_random_rows_in_every_domain_and_nests():
    plan = plan_sequence([(0, "a"), (1, "b")], [LABELS, LABELS], how(limit=50))
    assert set(plan.rows[:50]) == set(plan.rows[50:])
    more = plan_sequence([(0, "a")], [LABELS], how(limit=80))
    assert set(plan.rows) < set(more.rows)
    other = plan_sequence([(0, "a")], [LABELS], how(limit=50, seed=1))
    assert set(other.rows) != set(plan.rows)
    assert len(plan_sequence([(0, "a")], [LABELS], how(limit=5000)).rows) == 2000


def test_mixed_plan_shuffles_domains_together():
    plan = plan_mixed([LABELS, LABELS, LABELS], how(limit=100, batch_size=50))
    assert np.bincount(plan.domain).tolist() == [100, 100, 100]
    assert plan.bounds.tolist() == [0, 50, 100, 150, 200, 250, 300]
    assert all(len(set(plan.domain[start : start + 50])) == 3 for start in range(0, 300, 50))
    by_label = plan_mixed([LABELS, LABELS], how("sorted"))
    assert (np.diff(LABELS[by_label.rows]) >= 0).all()


@pytest.mark.parametrize("change", ["domain", "rows", "bounds", "names"])
def test_hash_sees_every_part(change):
    plan = plan_sequence([(0, "a"), (1, "b")], [LABELS[:20], LABELS[:20]], how())
    parts = {name: part.copy() for name, part in plan._asdict().items()}
    names = ["a", "c"] if change == "names" else ["a", "b"]
    if change != "names":
        parts[change][1] += 1
    assert Plan(**parts).hash(names) != plan.hash(["a", "b"])
