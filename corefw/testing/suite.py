"""What all conformance suites share. A suite is a class of tests that need nothing but the plugin's class.

Derive from the suite of an interface, give it your class, and let pytest run it::

    class TestMine(EndpointSuite):
        plugin = MyEndpoint

``corefw plugins check`` runs the same suites without pytest. A suite that needs more than the class, such as files of a
format, has a method to override that says so; until then the cases that need it are left out, with that reason.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar
from unittest import SkipTest

from corefw.plugin_system.groups import Group, group_named
from corefw.plugin_system.loading import attribute_of
from corefw.plugin_system.versions import class_version_reason

__all__ = ["NotChecked", "PluginSuite", "Suite", "check_reason"]

_IMPORT_LIMIT_S = 60.0


class NotChecked(SkipTest):
    """A case that can't be decided, and what the suite would have to be told."""


class Suite:
    """A class of tests: the methods that begin with ``test_``, without arguments. Each runs on an object of its own.

    Attributes:
        plugin: what is checked.
        plugin_name: name of its entry point; None takes what ``name`` says.
    """

    plugin: ClassVar[Any]
    plugin_name: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """The plugin's name, for messages and settings."""
        return self.plugin_name or str(getattr(self.plugin, "name", "") or self.plugin.__name__)


class PluginSuite(Suite):
    """What holds for every class of a group that has an interface.

    Attributes:
        group: without the prefix ``corefw.``.
        torch_free: whether importing the module must not import torch.
    """

    group: ClassVar[str]
    torch_free: ClassVar[bool] = True

    def test_it_derives_from_the_interface(self) -> None:
        interface = attribute_of(str(self._group.interface))
        assert isinstance(interface, type)
        assert isinstance(self.plugin, type), f"{self.plugin!r} isn't a class"
        assert issubclass(self.plugin, interface), f"{self.plugin.__name__} doesn't derive from {self._group.interface}"

    def test_it_is_called_by_its_own_name(self) -> None:
        name = getattr(self.plugin, "name", self.plugin_name)
        assert isinstance(name, str), "it has no class attribute 'name'"
        assert name, "its name is empty"
        assert self.plugin_name in (None, name), f"the entry point is {self.plugin_name!r}, the class says {name!r}"

    def test_its_version_is_accepted(self) -> None:
        reason = class_version_reason(self._group, getattr(self.plugin, "api_version", 1))
        assert reason is None, reason

    def test_it_implements_every_method(self) -> None:
        missing = sorted(getattr(self.plugin, "__abstractmethods__", ()))
        assert not missing, f"{self.plugin.__name__} doesn't implement {', '.join(missing)}"

    def test_importing_it_brings_no_torch(self) -> None:
        if self.torch_free:
            brought = _imported_with(self.plugin.__module__, "torch")
            assert not brought, f"importing {self.plugin.__module__} imports torch; import it where it is needed"

    @property
    def _group(self) -> Group:
        return group_named(self.group)


def check_reason(reason: object, what: str) -> None:
    """An answer to "can you do this?" is None for yes, else a sentence."""
    assert reason is None or (isinstance(reason, str) and reason.strip()), (
        f"{what} gave {reason!r}, not None or why not"
    )


def _imported_with(module: str, other: str) -> bool:
    """Whether a fresh process that imports ``module`` has ``other`` then."""
    if module == "__main__" or module not in sys.modules or getattr(sys.modules[module], "__file__", None) is None:
        return False  # written in a test, it has no module to import
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; print({other!r} in sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S, check=False)
    assert done.returncode == 0, f"{module} can't be imported: {done.stderr[-500:]}"
    return done.stdout.split()[-1] == "True"
