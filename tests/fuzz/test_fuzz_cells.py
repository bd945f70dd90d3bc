"""Hostile cells of every kind that a table brings: refused with a sentence, or ready to run."""

import pytest
from hostile import JUNK, altered, attempt, inputs
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from offsupport.bench import Cell
from offsupport.bench.cell import Place, prepare
from offsupport.core.errors import ConfigError
from offsupport.studies.models import MODELS, BuiltIn
from offsupport.studies.tables import TABLES, TableOptions

pytestmark = pytest.mark.fault

BROUGHT = ("fig3", "table1", "table3", "guarantees", "kl-choice", "poison", "regret", "protocols", "readings")
CELLS = {cell.kind: cell.config for table in BROUGHT for cell in TABLES[table].cells("smoke", TableOptions())}
SMALL = {"model": "hostile-tiny", "limit": 16, "source_images": 16}


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def no_work(*_arguments: object, **_options: object) -> None:
    raise ConfigError("This would begin to train.", "Not here.")


@inputs("cells")
@given(data=st.data())
def test_cells(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(sorted(CELLS)))
    small = {name: value for name, value in SMALL.items() if name in CELLS[kind]}
    stages = st.lists(st.sampled_from(["clean", "fog/5", "fog/", "fog/x", "a/b/c", "/", None, 1, []]), max_size=3)
    more = st.tuples(
        st.sampled_from(sorted(CELLS[kind])), st.one_of(JUNK, stages, st.sampled_from([10**9, -1, 0, 2**70]))
    )
    config = data.draw(
        st.one_of(altered(CELLS[kind] | small), more.map(lambda pair: CELLS[kind] | small | {pair[0]: pair[1]}))
    )

    def ready():
        if isinstance(config, dict):
            prepare([Cell(kind, config)], Place(tmp_path_factory.getbasetemp()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offsupport.training.train_on_the_spot", no_work)  # a name that is right means half a minute
        patch.setitem(MODELS._items, "hostile-tiny", BuiltIn("for this test", model, model, kept=False))
        attempt(ready)
