"""The attention backend against the suite of its family, at every level of instructions."""

from __future__ import annotations

import pytest

from corefw.testing.attention_suite import AttentionBackendSuite
from corefw_cpu_kernels.attention import CpuKernelsAttention


@pytest.mark.usefixtures("level")
class TestCpuKernelsAttention(AttentionBackendSuite):
    plugin = CpuKernelsAttention
