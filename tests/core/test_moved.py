"""Modules that 0.2.0 named in its docs: they work from there for one version, and say where they are now."""

import importlib
import sys

import pytest

from offsupport.core.moved import MODULES

DOCUMENTED = [
    ("offsupport.bench.correctness", "unpack"),
    ("offsupport.bench.results", "parts_of"),
    ("offsupport.latent.draws", "draw"),
    ("offsupport.methods.adapter", "Adapter"),
    *(("offsupport.methods.factory", name) for name in ("adapt", "list_methods", "load_adapted", "source_stats")),
    ("offsupport.nn.architectures", "build_network"),
    ("offsupport.report.runs", "write_report"),
    *(("offsupport.theory.deep", name) for name in ("ModelDiagnosis", "diagnose_model")),
]


@pytest.mark.parametrize(("old", "name"), DOCUMENTED)
def test_an_old_module_is_imported_and_says_where_it_is_now(old, name, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import from {MODULES[old]}") as said:
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(MODULES[old]), name)
    assert len(said) == 1
    assert {old for old, _ in DOCUMENTED} == set(MODULES)


def test_a_name_that_was_never_there_is_no_attribute(monkeypatch):
    monkeypatch.delitem(sys.modules, "offsupport.latent.draws", raising=False)
    with pytest.warns(DeprecationWarning, match="has moved"):
        old = importlib.import_module("offsupport.latent.draws")
    with pytest.raises(AttributeError, match="dwar"):
        old.dwar  # noqa: B018


def test_the_extrapolator_is_found_where_its_file_was():
    with pytest.warns(DeprecationWarning, match=r"offsupport\.latent\.extrapolator\.Extrapolator has moved"):
        from offsupport.latent.extrapolator import Extrapolator
    assert Extrapolator.__name__ == "Extrapolator"


def test_other_missing_modules_stay_missing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("offsupport.nowhere")
