"""What is wrong with a grid of ranks is told before any rank is started."""

from __future__ import annotations

import dataclasses

import pytest

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.config.parallel import ParallelConfig
from corefw.engine.parallel_checks import check_communicator, check_fits_model
from corefw.errors import ConfigError, PluginError
from corefw.plugin_system.manager import PluginManager


@pytest.mark.parametrize("size", [1, 2])
def test_a_communicator_that_is_not_there_is_named_with_its_option(size: int) -> None:
    plugins = PluginManager.discover(allow="")
    with pytest.raises(PluginError, match="'nccl' asked for by --communicator in communicators; known are gloo"):
        check_communicator(ParallelConfig(tensor_parallel_size=size, communicator="nccl"), plugins)
    check_communicator(ParallelConfig(tensor_parallel_size=size, communicator="gloo"), plugins)


def test_a_model_that_does_not_tell_its_layers_and_heads_is_left_to_its_class() -> None:
    files = ModelFiles(reference="x", source="x", root="/", weights=("w",))
    info = ModelInfo(
        files=files,
        loader="x",
        architecture="X",
        hf_config={},
        checkpoint_dtype="float32",
        max_position=64,
        vocab_size=10,
        eos_ids=(1,),
    )
    check_fits_model(ParallelConfig(tensor_parallel_size=2, pipeline_parallel_size=2), info)
    with pytest.raises(ConfigError, match="--tensor-parallel-size 2 is more than the model's 1 query heads; use at"):
        check_fits_model(
            ParallelConfig(tensor_parallel_size=2), dataclasses.replace(info, hf_config={"num_attention_heads": 1})
        )
