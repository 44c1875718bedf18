"""Conformance suite of platforms: the torch-free half, and the device's where the hardware is there."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from corefw.config.args import SECTIONS
from corefw.errors import PluginUnavailable
from corefw.interfaces.kv_cache import DTYPE_BYTES
from corefw.interfaces.platform import DeviceDescription, DeviceRuntime, Platform, Proposal
from corefw.testing.configs import fake_model_info
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

__all__ = ["PlatformSuite"]

_GIB = 2**30


class PlatformSuite(PluginSuite):
    """For ``corefw.platform_plugins``."""

    plugin: ClassVar[type[Platform]]
    group = "platform_plugins"

    def describe_device(self) -> DeviceDescription:
        """A device that ``from_capability`` takes; override it where more than these keys are needed."""
        return DeviceDescription(platform=self.name, memory_bytes=16 * _GIB)

    def test_it_says_whether_it_is_available_and_sticks_to_it(self) -> None:
        platform = self.plugin()
        reason = platform.unavailable_reason()
        check_reason(reason, "unavailable_reason()")
        assert platform.unavailable_reason() == reason, "unavailable_reason() changes its mind"

    def test_it_names_dtypes_that_the_engine_knows(self) -> None:
        dtypes = self.plugin().dtypes()
        unknown = [name for name in dtypes if name not in DTYPE_BYTES]
        assert dtypes, "dtypes() is empty"
        assert not unknown, f"dtypes() has {unknown}; known are {sorted(DTYPE_BYTES)}"

    def test_it_names_attention_backends(self) -> None:
        order = self.plugin().attention_order()
        assert not isinstance(order, str), "attention_order() is one text; write a tuple"
        assert all(isinstance(name, str) for name in order), f"attention_order() has {order!r}"

    def test_its_proposals_are_of_options_that_exist(self) -> None:
        for proposal in self.plugin().propose(fake_model_info(), frozenset(), interactive=True):
            assert isinstance(proposal, Proposal)
            known = SECTIONS.get(proposal.section)
            assert known is not None, f"there is no section {proposal.section!r}; they are {', '.join(SECTIONS)}"
            names = [item.name for item in fields(known)]
            assert proposal.field in names, f"section {proposal.section} has no {proposal.field!r}"
            assert proposal.reason, f"{proposal.section}.{proposal.field} is proposed without a reason"

    def test_it_answers_from_a_description_or_says_that_it_cannot(self) -> None:
        try:
            platform = self.plugin.from_capability(self.describe_device())
        except PluginUnavailable as reason:
            assert str(reason), "from_capability() refuses without a reason"
            return
        assert isinstance(platform, self.plugin)
        assert platform.dtypes()
        assert platform.unavailable_reason() is None, "it is described as there, and says that it isn't"

    def test_its_devices_numbers_lead_back_to_where_they_came_from(self) -> None:
        ids = self._available().device_ids()
        if ids is None:
            return
        for logical in range(len(ids.assigned)):
            assert ids.logical_of(ids.physical_of(logical)) == logical, f"logical device {logical} is another one"
            assert ids.visible_of_physical(ids.physical_of(logical)) == ids.visible_of(logical)
        assert ids.variable in ids.visibility([0]), "a child isn't told by the platform's own variable"

    def test_its_device_is_of_its_type(self) -> None:
        assert self._runtime().device.type == self.plugin.device_type

    def test_its_memory_adds_up(self) -> None:
        runtime = self._runtime()
        total, free = runtime.total_memory_bytes(), runtime.free_memory_bytes()
        assert 0 < free <= total, f"{free} bytes free of {total}"
        budget = runtime.cache_budget_bytes(_GIB)
        assert 0 < budget <= _GIB, f"cache_budget_bytes() takes {budget} of {_GIB} bytes"
        runtime.reset_peak_memory()
        assert runtime.peak_memory_bytes() >= 0

    def test_its_device_computes_and_is_seeded(self) -> None:
        import torch

        runtime = self._runtime()
        drawn = []
        for _ in range(2):
            runtime.seed_everything(5)
            drawn.append(torch.randn(4, device=runtime.device).cpu())
        runtime.synchronize()
        assert torch.equal(*drawn), "seed_everything() doesn't seed the device's random numbers"

    def _runtime(self) -> DeviceRuntime:
        return self._available().runtime(0)

    def _available(self) -> Platform:
        platform = self.plugin()
        if reason := platform.unavailable_reason():
            raise NotChecked(f"the hardware isn't here: {reason}")
        return platform
