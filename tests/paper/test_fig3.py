"""Figure 3 from made-up results: columns, and the claims about sparse and dense shifts."""

import numpy as np
import pytest
from record_maker import make_record

from offsupport.studies import TABLES, TableOptions
from offsupport.studies.adaptation import our_methods
from offsupport.studies.paper.fig3 import BLOCKS, SEVERITIES

FIG3 = TABLES["fig3"]
SPARSE, DENSE = BLOCKS[0], BLOCKS[-1]


def record(block, severity, wrong, method="tent", n=400):
    correct = np.arange(n) >= wrong
    return make_record(method, "impulse_noise", correct, "digits-c", block=block, severity=severity)


def verdicts(sparse, dense):
    """The first four verdicts for errors (severity 1, severity 10) of the smallest and the largest square."""
    made = [
        record(block, severity, wrong)
        for block, errors in ((SPARSE, sparse), (DENSE, dense))
        for severity, wrong in zip((1, 10), errors, strict=True)
    ]
    return [claim.verdict for claim in FIG3.claims(made)][:4]


def test_every_block_meets_every_severity_on_the_same_images():
    cells = FIG3.cells("smoke", TableOptions())
    methods = {"source", "tent", *our_methods()}
    assert {cell.config["method"] for cell in cells} == methods
    assert len(cells) == len(set(cells)) == len(methods) * len(BLOCKS) * 10
    assert {cell.config["corruption"] for cell in cells} == {"impulse_noise"}
    assert {(cell.config["block"], cell.config["severity"]) for cell in cells} == {
        (block, severity) for block in BLOCKS for severity in range(1, 11)
    }
    small = FIG3.cells("small", TableOptions(methods=("tent",)))
    assert {(c.config["limit"], c.config["preset"]) for c in small} == {(5000, "cifar10")}
    ours = FIG3.cells("small", TableOptions(methods=("minimal",)))
    assert {(c.config["source_split"], c.config["source_images"]) for c in ours} == {("held-out", 500)}


def test_rows_are_named_by_block_and_severity():
    made = [record(8, 5, 40), record(32, 5, 200), record(8, 5, 20, "source")]
    rows = {(row["method"], row["column"]): row for row in FIG3.measure("smoke", made).to_dict()["rows"]}
    assert {key: row["value"] for key, row in rows.items()} == {
        ("tent", "block-8/severity-5"): 10.0,
        ("tent", "block-32/severity-5"): 50.0,
        ("source", "block-8/severity-5"): 5.0,
    }
    assert all(row["metric"] == "error" and row["paper"] is None for row in rows.values())


@pytest.mark.parametrize(
    ("sparse", "dense", "expected"),
    [
        ((40, 42), (40, 380), ["holds", "holds", "holds", "holds"]),
        ((40, 200), (40, 42), ["does-not-hold", "does-not-hold", "does-not-hold", "does-not-hold"]),
        ((40, 42), (40, 200), ["holds", "holds", "holds", "does-not-hold"]),
        ((40, 60), (40, 120), ["undecided", "undecided", "holds", "does-not-hold"]),
    ],
)
def test_claims_are_decided_by_the_corners(sparse, dense, expected):
    assert verdicts(sparse, dense) == expected


def test_the_gap_of_two_rises_is_their_difference():
    made = [record(b, s, w) for b, s, w in ((SPARSE, 1, 40), (SPARSE, 10, 60), (DENSE, 1, 40), (DENSE, 10, 240))]
    gap = FIG3.claims(made)[2].evidence
    assert gap.value == pytest.approx(100 * ((60 - 40) - (240 - 40)) / 400)


def test_a_corner_that_is_missing_decides_nothing():
    made = [record(block, severity, 40) for block in BLOCKS for severity in SEVERITIES[:-1]]
    assert FIG3.claims(made) == []


def test_errors_rise_with_the_square():
    wrong = dict(zip(BLOCKS, (40, 80, 80, 300), strict=True))
    made = [record(block, severity, wrong[block]) for block in BLOCKS for severity in (1, 10)]
    assert [claim.verdict for claim in FIG3.claims(made)][4:] == ["holds", "undecided", "holds"]


def test_our_methods_are_held_to_the_same_sentences_and_beside_tent():
    corners = [(block, severity) for block in (SPARSE, DENSE) for severity in (1, 10)]
    made = [record(block, severity, 100, method) for method in ("tent", "minimal") for block, severity in corners]
    made = [r for r in made if r.cell.config["method"] == "tent" or r.cell.config["block"] == DENSE]
    assert not [claim for claim in FIG3.claims(made) if claim.claim.startswith("minimal is almost")]
    made += [record(SPARSE, severity, 20, "minimal") for severity in (1, 10)]
    found = {claim.claim: claim.verdict for claim in FIG3.claims(made) if "minimal" in claim.claim}
    assert found == {
        "minimal is almost constant over severities in the sparse regime (block-8, 5 points)": "holds",
        "minimal declines dramatically in the dense regime (block-32, 20 points)": "does-not-hold",
        "the error of minimal rises less with severity in the sparse regime than in the dense one": "undecided",
        "minimal collapses in the dense regime (block-32: an error above 80 %)": "does-not-hold",
        "minimal errs less than TENT at block-8, over severities 1 to 10": "holds",
        "minimal errs less than TENT at block-32, over severities 1 to 10": "undecided",
    }
