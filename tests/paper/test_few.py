"""The table of few target images from made-up results, and what its grid asks for."""

import numpy as np
import pytest
from record_maker import make_record

from offsupport.methods import list_methods
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.ours import few

FEW = TABLES["few"]


def record(method, wrong, n=None):
    settings = {"protocol": "episodic", "batch_size": n} if n else {"protocol": "online"}
    return make_record(method, "fog", np.arange(200) >= wrong, "digits-c", **settings)


def test_every_method_but_those_of_other_networks_is_there():
    plain = {method for method in few.METHODS if not method.endswith("+sc")}
    assert not plain & {"tttpp", "mae-ttt", "mae-ttt+em"}
    assert plain <= set(list_methods())
    assert {"source", "bn", "tent", "shot", "memo", "eata", "sar", "ttac", "tesla", "tesla-s"} <= plain


@pytest.mark.parametrize(("scale", "images"), [("smoke", (64, 128)), ("small", (256, 1024))])
def test_batches_are_as_large_as_the_images_are_many(scale, images):
    cells = FEW.cells(scale, TableOptions(methods=("tent", "bn")))
    asked = {(c.config["protocol"], c.config["batch_size"], c.config["limit"]) for c in cells}
    assert asked == {*(("episodic", n, images[0]) for n in (1, 4, 16, 64)), ("online", 128, images[1])}
    assert len(cells) == 2 * 5
    assert all(len(cell.config["corruption"]) == 4 for cell in cells)


def test_columns_say_how_many_images():
    made = [record("source", 60, 4), record("source", 60), record("tent", 80, 4), record("tent", 20)]
    found = FEW.measure("smoke", made).to_dict()
    rows = {(row["method"], row["column"]): row["value"] for row in found["rows"]}
    assert rows == pytest.approx(
        {
            ("source", "digits-c/n-4"): 30.0,
            ("source", "digits-c/n-all"): 30.0,
            ("tent", "digits-c/n-4"): 40.0,
            ("tent", "digits-c/n-all"): 10.0,
        }
    )
    assert [claim["verdict"] for claim in found["claims"]] == ["does-not-hold", "holds"]
