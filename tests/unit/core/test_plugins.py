from __future__ import annotations

import sys
from collections import OrderedDict

import pytest

from flexrlhf.core.errors import ConfigError, EngineMissing
from flexrlhf.core.plugins import import_package, load_plugin, require_package

TABLE = {"ordered": "collections:OrderedDict", "absent": "surely_absent_package.part:Thing"}


def test_plugin_is_loaded_by_name():
    assert load_plugin("The mapping", TABLE, "ordered") is OrderedDict


def test_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        load_plugin("The mapping", TABLE, "orderd")
    assert str(caught.value).splitlines() == [
        "The mapping 'orderd' is unknown.",
        "  Known: absent, ordered.",
        "  Did you mean 'ordered'?",
    ]


def test_missing_package_is_named_with_what_to_install():
    with pytest.raises(EngineMissing) as caught:
        load_plugin("The mapping", TABLE, "absent")
    assert "'absent' needs the package 'surely_absent_package'" in caught.value.wrong
    assert caught.value.do == "Install it: pip install surely-absent-package"


def test_package_of_an_extra_is_installed_with_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)  # as if it were absent
    for look in (import_package, require_package):
        with pytest.raises(EngineMissing, match=r"pip install 'flexrlhf\[train\]'"):
            look("math_verify", needed_by="The reward")


def test_package_is_required_without_importing_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    require_package("antigravity", needed_by="The reward")
    assert "antigravity" not in sys.modules
    with pytest.raises(EngineMissing, match="The reward needs the package 'surely_absent'"):
        require_package("surely_absent", needed_by="The reward")


def test_module_that_this_package_lacks_is_our_mistake():
    with pytest.raises(ModuleNotFoundError) as caught:
        load_plugin("The mapping", {"ours": "flexrlhf.no_such_room:Thing"}, "ours")
    assert not isinstance(caught.value, EngineMissing)
