"""Conformance suite of general plugins: hook modules, and functions that register something."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any, ClassVar

from corefw.interfaces.hooks.configuration import PluginSettings
from corefw.interfaces.hooks.marker import HOOK_PREFIX
from corefw.plugin_system.hooks import HOOKS, Hooks
from corefw.testing.configs import fake_config
from corefw.testing.suite import NotChecked, Suite

__all__ = ["HookModuleSuite"]

_FIRST = ("corefw_config_section", "corefw_configured")


class HookModuleSuite(Suite):
    """For ``corefw.general_plugins``. The plugin is a hook module, an object with hooks, or a function.

    Attributes:
        values: what an operator says in the plugin's own section; fields that aren't named keep their defaults.
    """

    plugin: ClassVar[Any]
    values: ClassVar[Mapping[str, Any]] = {}

    def test_every_hook_is_one_that_exists_and_is_marked(self) -> None:
        if isinstance(self.plugin, FunctionType):
            raise NotChecked("it is a function, not a hook module")
        assert Hooks().register(self.name, self.plugin), "it has no hooks"

    def test_a_function_registers_and_returns_nothing(self) -> None:
        if isinstance(self.plugin, FunctionType):
            required = [p for p in inspect.signature(self.plugin).parameters.values() if p.default is p.empty]
            assert not required, "it is called without arguments"
            assert self.plugin() is None, "it returned something"

    def test_its_section_can_be_filled_with_nothing(self) -> None:
        section = self._section()
        if section is not None:
            assert isinstance(section(), section), "every field of the section needs a default"

    def test_its_hooks_give_what_they_should(self) -> None:
        self._configure()
        for hook, call in self._calls():
            answer = call()
            wanted = _returned_class(hook)
            right = answer is None or wanted is None or isinstance(answer, wanted)
            assert right, f"{hook.__name__} gave {type(answer).__name__}, not {_annotation(hook)}"

    def test_its_hooks_may_be_called_again_for_a_further_engine(self) -> None:
        for _ in range(2):
            self._configure()
            kinds = [type(call()) for _, call in self._calls()]
        assert kinds == [type(call()) for _, call in self._calls()]

    def _section(self) -> type[Any] | None:
        hook = getattr(self.plugin, "corefw_config_section", None)
        return None if hook is None else hook()

    def _configure(self) -> None:
        section = self._section()
        sections = {} if section is None else {section: section(**self.values)}
        hook = getattr(self.plugin, "corefw_configured", None)
        if hook is not None:
            hook(settings=PluginSettings(sections))

    def _calls(self) -> Iterator[tuple[Callable[..., Any], Callable[[], Any]]]:
        """The plugin's own hooks, each with arguments; those that need a running server are left out."""
        examples = _examples()
        for name, spec in HOOKS.items():
            own = getattr(self.plugin, name, None)
            if own is None or name in _FIRST or not name.startswith(HOOK_PREFIX):
                continue
            wanted = [p for p in inspect.signature(own).parameters if p in inspect.signature(spec).parameters]
            if all(parameter in examples for parameter in wanted):
                yield spec, partial(own, **{each: examples[each] for each in wanted})


def _examples() -> dict[str, Any]:
    config = fake_config(hf_config={"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "head_dim": 8})
    return {
        "process": "engine_core",
        "config": config,
        "reference": "some/model",
        "model": config.model_info,
        "platform": "cpu",
        "explicit": frozenset(),
    }


def _annotation(hook: Callable[..., Any]) -> str:
    return str(inspect.signature(hook).return_annotation)


def _returned_class(hook: Callable[..., Any]) -> type | None:
    """The class that a hook's answer has to be of, where its module has it and one can ask."""
    name = _annotation(hook).partition(" |")[0].partition("[")[0]
    found = vars(inspect.getmodule(hook)).get(name)
    protocol = getattr(found, "_is_protocol", False)
    return found if isinstance(found, type) and not protocol else None
