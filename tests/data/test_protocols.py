"""Named protocols: what comes, in which order, how often; each against what a person would write down."""

import itertools

import numpy as np
import pytest

from offsupport.core.errors import ConfigError
from offsupport.data import PROTOCOLS, STANDARD, Stream, corrupt, list_protocols, load, stream, stream_arrays
from offsupport.data.order import STEPS
from offsupport.data.spec import Stage

NAMES = (
    *("online", "continual", "mixed", "correlated", "correlated-continual", "sorted", "gradual"),
    *("single", "single-window", "recurring", "ccc", "label-imbalance"),
)
TWO = ["contrast", "fog"]


def made(name, **options):
    return PROTOCOLS[name].stream("digits-c", corruptions=TWO, **{"limit": 120, "batch_size": 32, **options})


def visits(batches):
    """Domains in the order of their visits, with the rows of each."""
    found = []
    for domain, group in itertools.groupby(batches, key=lambda batch: batch.domain):
        found.append((domain, np.concatenate([batch.index.numpy() for batch in group])))
    return found


def runs(labels):
    """How many stretches of one label there are."""
    return 1 + int((np.diff(labels) != 0).sum())


def test_the_names_and_what_is_published_of_them():
    assert tuple(list_protocols()) == NAMES
    published = {
        name: (
            PROTOCOLS[name].reset,
            PROTOCOLS[name].batch_size,
            PROTOCOLS[name].window,
            len(PROTOCOLS[name].corruptions),
        )
        for name in NAMES
    }
    assert published == {
        "online": ("online", 200, 0, 15),
        "continual": ("continual", 200, 0, 15),
        "mixed": ("continual", 200, 0, 15),
        "correlated": ("online", 64, 0, 15),
        "correlated-continual": ("continual", 64, 0, 15),
        "sorted": ("continual", 200, 0, 15),
        "gradual": ("continual", 200, 0, 15),
        "single": ("continual", 1, 0, 15),
        "single-window": ("continual", 1, 16, 15),
        "recurring": ("continual", 64, 0, 15),
        "ccc": ("continual", 64, 0, 14),
        "label-imbalance": ("continual", 64, 0, 15),
    }
    for name in NAMES:
        assert set(PROTOCOLS[name].corruptions) <= set(STANDARD)
        assert PROTOCOLS[name].published
    assert PROTOCOLS["correlated-continual"].corruptions[:3] == ("motion_blur", "snow", "fog")
    assert "brightness" not in PROTOCOLS["ccc"].corruptions


@pytest.mark.parametrize("name", ["online", "continual", "single", "single-window"])
def test_one_corruption_after_the_other(name):
    batches = made(name, batch_size=1 if "single" in name else 32)
    (first, rows), (second, others) = visits(batches)
    assert (first, second) == ("fog/5", "contrast/5")  # in the published order, whatever order they were given in
    assert sorted(rows) == sorted(others)
    assert rows.tolist() != others.tolist()
    assert {len(batch.index) for batch in batches} == ({1} if "single" in name else {32, 24})


def test_mixed_shows_every_image_in_every_corruption_and_all_at_once():
    batches = made("mixed")
    seen = list(zip(batches.plan.domain.tolist(), batches.plan.rows.tolist(), strict=True))
    rows = sorted({row for _, row in seen})
    assert sorted(seen) == sorted(itertools.product(range(2), rows))
    assert len(rows) == 120
    assert {batch.domain for batch in batches} == {"mixed"}
    assert runs(batches.plan.domain) > 80


@pytest.mark.parametrize(
    ("name", "most"), [("correlated", 90), ("correlated-continual", 90), ("sorted", 10), ("continual", 120)]
)
def test_labels_come_in_bursts_or_sorted(name, most):
    batches = made(name)
    labels = load("digits").labels
    for _, rows in visits(batches):
        assert len(rows) == len(set(rows)) == 120
        assert runs(labels[rows]) <= most
        if name == "sorted":
            assert (np.diff(labels[rows]) >= 0).all()
        else:
            assert runs(labels[rows]) > 20
    assert batches.spec.concentration == (0.1 if "correlated" in name else None)


def test_gradual_climbs_to_five_and_comes_back():
    steps = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert [domain for domain, _ in visits(made("gradual", limit=40))] == [
        f"{name}/{step}" for name in ("fog", "contrast") for step in steps
    ]


def test_recurring_comes_twenty_times_each_time_in_another_order():
    found = visits(made("recurring"))
    assert [domain for domain, _ in found] == ["fog/5", "contrast/5"] * 20
    fog = [rows for domain, rows in found if domain == "fog/5"]
    assert {tuple(sorted(rows)) for rows in fog} == {tuple(sorted(fog[0]))}
    assert len({tuple(rows) for rows in fog}) == 20


def test_the_imbalance_is_one_to_a_hundred_by_the_same_factor_from_class_to_class():
    pixels = np.zeros((4000, 32, 32, 3), np.uint8)
    labels = np.arange(4000) % 5
    options = PROTOCOLS["label-imbalance"].settings(["fog"], limit=3000)
    kept = stream_arrays(pixels, labels, **options).plan.rows
    counts = sorted(np.bincount(labels[kept]), reverse=True)
    there = np.bincount(labels[stream_arrays(pixels, labels, corruption="fog", limit=3000).plan.rows]).mean()
    assert counts == pytest.approx([there * 100 ** (-k / 4) for k in range(5)], rel=0.1, abs=1)
    two = stream_arrays(pixels, labels, **{**options, "corruption": ["fog", "contrast"]}).plan
    assert set(two.rows[two.domain == 0]) == set(two.rows[two.domain == 1]) == set(kept)
    other = stream_arrays(pixels, labels, **{**options, "seed": 1}).plan.rows
    assert np.argsort(np.bincount(labels[other])).tolist() != np.argsort(np.bincount(labels[kept])).tolist()


def test_ccc_fades_one_corruption_into_the_next():
    """Against a loop: at each quarter of a step, that share of the images has arrived at the next pair."""
    batches = made("ccc", limit=40)
    way = [("contrast", 5 - grown, "fog", grown) for grown in range(5)]
    way = [("fog", 5 - grown, "contrast", grown) for grown in range(5)] + way
    expected = [f"{a}/{s}+{b}/{t}" if t else f"{a}/{s}" for a, s, b, t in way]
    assert [domain.name for domain in batches.domains] == expected
    assert batches.num_images == 40 * STEPS * len(way)
    assert {batch.domain for batch in batches} == {"pairs"}
    points = np.split(batches.plan.domain, STEPS * len(way))
    for number, here in enumerate(points):
        step, quarter = divmod(number, STEPS)
        assert set(here) <= {step, (step + 1) % len(way)}
        assert abs((here != step).mean() - quarter / STEPS) < 0.25
    assert [len(set(rows)) for rows in np.split(batches.plan.rows, STEPS * len(way))] == [40] * (STEPS * len(way))


def test_the_second_corruption_of_a_pair_comes_over_the_first():
    batches = made("ccc", limit=40)
    (domain,) = [domain for domain in batches.domains if domain.name == "fog/3+contrast/2"]
    clean = load("digits").images([7, 8])
    first = corrupt(clean, "fog", 3, 0, index=[7, 8])
    assert np.array_equal(domain.dataset.images([7, 8]), corrupt(first, "contrast", 2, 0, index=[7, 8]))
    own = stream_arrays(
        load("digits").images(range(599)), load("digits").labels, corruption=TWO[::-1], schedule="pairs"
    )
    (same,) = [domain for domain in own.domains if domain.name == "fog/3+contrast/2"]
    assert np.array_equal(same.dataset.images([7, 8]), domain.dataset.images([7, 8]))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "label-imbalance"])
def test_the_same_seed_is_the_same_stream_and_another_is_not(name, tmp_path):
    one, again, other = made(name), made(name), made(name, seed=1)
    assert one.order_hash == again.order_hash != other.order_hash
    assert one.sha256 == again.sha256
    one.save(tmp_path / "stream.json")
    loaded = Stream.load(tmp_path / "stream.json")
    assert loaded.order_hash == one.order_hash
    assert loaded.spec == one.spec
    for a, b in zip(itertools.islice(one, 2), itertools.islice(loaded, 2), strict=True):
        assert (a.x == b.x).all()
        assert a.domain == b.domain


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("continual", {"limit": 100, "batch_size": None}, r"needs 200 images .* \(a batch\), and limit leaves 100"),
        ("recurring", {"limit": 80}, r"needs 100 images .* \(10 in each of 10 time slots\), and limit leaves 80"),
        ("label-imbalance", {"limit": None}, r"needs 1,000 images .* one of the rarest\), and the data set has 599"),
        ("single-window", {"limit": 8, "batch_size": 1}, r"needs 16 images .* \(a window\)"),
    ],
)
def test_too_few_images_are_an_error_with_the_number(name, options, words):
    with pytest.raises(ConfigError, match=words):
        made(name, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corruption": "fog", "schedule": "pairs"}, "at least two corruptions"),
        ({"corruption": TWO, "schedule": "pairs", "imbalance": 10}, "leave imbalance out"),
        ({"corruption": TWO, "schedule": "pairs", "severity": [3, 5]}, "one peak"),
        ({"corruption": TWO, "schedule": "mixed", "visits": 2}, "all is mixed"),
        ({"corruption": TWO, "visits": 0}, "visits is 0"),
        ({"imbalance": 0.5}, "imbalance is 0.5"),
    ],
)
def test_what_no_stream_can_be_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        stream("digits-c", **options)


def test_an_unknown_protocol_comes_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'recurring'"):
        PROTOCOLS["recuring"]


@pytest.mark.parametrize("values", [["a/1+b/2", "b", 2, ["a", "1"]], ["a/1+b/2", None, 0, ["a", 1]]])
def test_a_damaged_pair_in_a_file_is_no_domain(values):
    with pytest.raises(TypeError):
        Stage.from_json(values)
    assert Stage.from_json(["a/1+b/2", "b", 2, ["a", 1]]).to_json() == ["a/1+b/2", "b", 2, ["a", 1]]
