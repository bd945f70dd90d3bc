"""Names that installed packages add to a registry: loaded when asked for, and never able to break the others."""

import importlib.metadata
import sys
import types

import pytest

from offsupport.core.errors import ConfigError
from offsupport.core.registry import Registry

GROUP = "offsupport.things"


@pytest.fixture
def installed(monkeypatch):
    """Return what pretends to install packages: module source by entry point name; and which were imported."""
    loaded = []

    class Point:
        def __init__(self, name, load):
            self.name, self.value, self._load = name, f"package_{name}", load

        def load(self):
            loaded.append(self.name)
            return self._load()

    def install(**points):
        found = [Point(name, load) for name, load in points.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group == GROUP else [])
        return loaded

    return install


def registry():
    made = Registry("thing", GROUP)
    made.register("ours")(1)
    return made


def test_a_package_is_imported_when_its_name_is_asked_for_and_not_before(installed):
    things = registry()
    loaded = installed(theirs=lambda: things.register("theirs")(2))
    assert things["ours"] == 1
    assert "theirs" in things
    assert loaded == []
    assert things["theirs"] == 2
    assert things["theirs"] == 2
    assert loaded == ["theirs"]


def test_listing_names_what_packages_add(installed):
    things = registry()
    installed(theirs=lambda: things.register("theirs")(2))
    assert list(things) == ["ours", "theirs"]
    assert len(things) == 2


def test_a_registry_without_a_group_has_no_door(installed):
    loaded = installed(theirs=lambda: pytest.fail("loaded"))
    things = Registry("thing")
    assert "theirs" not in things
    assert loaded == []


def broken():
    raise ZeroDivisionError("their mistake")


def test_a_broken_package_is_named_and_hides_nothing(installed):
    things = registry()
    installed(bad=broken, theirs=lambda: things.register("theirs")(2))
    with pytest.warns(UserWarning, match="package_bad"):
        assert list(things) == ["ours", "theirs"]
    with pytest.raises(ConfigError, match=r"'bad'.*package_bad.*ZeroDivisionError: their mistake.*uninstall"):
        things["bad"]


def test_a_package_that_registers_another_name_is_told_so(installed):
    things = registry()
    installed(promised=lambda: things.register("other")(2))
    with pytest.raises(ConfigError, match=r"package_promised does not register the thing 'promised'"):
        things["promised"]


def test_a_package_cannot_take_a_name_of_ours(installed):
    things = registry()
    loaded = installed(ours=lambda: pytest.fail("loaded"))
    assert things["ours"] == 1
    assert list(things) == ["ours"]
    assert loaded == []


def test_an_unknown_name_finds_the_nearest_of_all(installed):
    things = registry()
    installed(theirs=lambda: things.register("theirs")(2))
    with pytest.raises(ConfigError, match=r"Did you mean 'theirs'"):
        things["their"]


def test_a_real_entry_point_is_read_from_a_distribution(tmp_path, monkeypatch):
    folder = tmp_path / "outside-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nreal = outside_module\n")
    things = registry()
    module = types.ModuleType("outside_module")
    monkeypatch.setitem(sys.modules, "outside_module", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    module.__getattr__ = lambda name: pytest.fail("nothing of it is asked for but its import")
    with pytest.raises(ConfigError, match="outside_module does not register the thing 'real'"):
        things["real"]
    things = registry()
    things.register("real")(3)
    assert things["real"] == 3


def test_a_package_that_fails_half_way_has_added_nothing(installed):
    things = registry()

    def late():
        things.register("bad")(2)
        raise ZeroDivisionError("too late")

    installed(bad=late)
    with pytest.warns(UserWarning, match="too late"):
        assert list(things) == ["ours"]


def test_a_name_that_another_entry_point_brings_is_found(installed):
    things = registry()
    installed(promised=lambda: things.register("other")(2))
    with pytest.warns(UserWarning, match="does not register"):
        assert things["other"] == 2
