"""What is wrong with a grid of ranks is told before any rank is started."""

from __future__ import annotations

import pytest

from corefw.config.parallel import ParallelConfig
from corefw.engine.parallel_checks import check_communicator
from corefw.errors import PluginError
from corefw.plugin_system.manager import PluginManager


@pytest.mark.parametrize("size", [1, 2])
def test_a_communicator_that_is_not_there_is_named_with_its_option(size: int) -> None:
    plugins = PluginManager.discover(allow="")
    with pytest.raises(PluginError, match="'nccl' asked for by --communicator in communicators; known are gloo"):
        check_communicator(ParallelConfig(tensor_parallel_size=size, communicator="nccl"), plugins)
    check_communicator(ParallelConfig(tensor_parallel_size=size, communicator="gloo"), plugins)
