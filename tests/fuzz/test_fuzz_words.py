"""Hostile words on the command line: a sentence and a promised exit code, whatever is typed."""

import sys

import pytest
from hostile import WORDS, attempt, inputs
from hypothesis import given
from hypothesis import strategies as st

from offsupport.cli.main import main
from offsupport.core.errors import ConfigError

pytestmark = pytest.mark.fault

VERBS = [
    ["adapt"], ["list"], ["diagnose"], ["train"], ["data", "make"], ["data", "check"], ["data"], ["bench", "run"],
    ["bench", "status"], ["bench", "verify"], ["bench", "diff"], ["bench"], ["reproduce"], ["report"], ["nothing"], [],
]  # fmt: skip
OPTIONS = [
    f"--{name}"
    for name in """
    model images method out hyper json seed threads size data scale methods corruptions severity limit seeds dry-run
    workers batch-size preset network source target classes frost-dir sheet executor address help
    labels shift runs distance set
    """.split()  # noqa: SIM905 - words read better than a list of strings
]
VALUES = [
    *WORDS,
    *"""
    digits-small zoo:nothing file:nowhere file:. timm:x table1 table2 smoke paper digits-c fog,snow all -1 0 1e9
    99999999999999999999 lr=1e-3 lr lr=nan = . nowhere /dev/null methods models tables ray a:b:c 16 empty --
    """.split(),  # noqa: SIM905
]
TYPED = st.builds(
    lambda verb, words: [*verb, *words],
    st.sampled_from(VERBS),
    st.lists(st.one_of(st.sampled_from(OPTIONS), st.sampled_from(VALUES), st.text(max_size=5)), max_size=6),
)


def no_work(*_arguments, **_options):
    raise ConfigError("This would begin to compute.", "Not here.")


@pytest.fixture
def idle(tmp_path, monkeypatch):
    """Everything up to the work itself is real."""
    import offsupport.bench.runs
    import offsupport.bench.verify
    import offsupport.data.making
    import offsupport.latent.process.draws
    import offsupport.studies.costs
    import offsupport.studies.models
    import offsupport.training.run

    for module, name in (
        (offsupport.bench.runs, "run_cells"),
        (offsupport.data.making, "_work_off"),
        (offsupport.latent.process.draws, "draw"),
        (offsupport.studies.costs._Pricing, "_trial"),
        (offsupport.studies.models, "_trained"),
        (offsupport.training.run, "fresh_objective"),
    ):
        monkeypatch.setattr(module, name, no_work)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    return monkeypatch


@inputs("command line")
@given(words=TYPED)
def test_words(idle, capsys, words):
    idle.setattr(sys, "argv", ["offsupport", *words])
    attempt(main)
    capsys.readouterr()
