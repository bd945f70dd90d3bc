import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offsupport.results.correctness import pack, unpack


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=80))
def test_round_trip_in_row_order(seen):
    rows, correct = [row for row, _ in seen], [right for _, right in seen]
    packed = json.loads(json.dumps(pack(rows, correct)))
    expected = sorted(seen, key=lambda pair: pair[0])
    back_rows, back = unpack(packed)
    assert list(zip(back_rows.tolist(), back.tolist(), strict=True)) == expected


def test_what_is_stored_does_not_depend_on_the_order_seen():
    rng = np.random.default_rng(0)
    rows, correct = np.arange(500) * 3, rng.random(500) < 0.5
    order = rng.permutation(500)
    assert pack(rows, correct) == pack(rows[order], correct[order])


def test_ten_thousand_images_take_under_two_kilobytes():
    rng = np.random.default_rng(0)
    assert len(json.dumps(pack(rng.permutation(10_000), rng.random(10_000) < 0.5))) < 2000
