"""The provider against the suite of its family, at every level of instructions."""

from __future__ import annotations

import pytest

from corefw.testing.op_provider_suite import OpProviderSuite
from corefw_cpu_kernels.provider import CpuKernels


@pytest.mark.usefixtures("level")
class TestCpuKernels(OpProviderSuite):
    plugin = CpuKernels
