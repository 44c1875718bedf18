from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.config.args import UserArgs
from corefw.config.model_info import ModelInfo
from corefw.engine.resolver import resolve_config
from corefw.errors import ConfigError
from corefw.models.loading.remote_code import refuse_remote_code
from corefw.plugin_system.manager import PluginManager
from tests.models.loading.hf_directory import files_of, write_directory

CODE = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
FAMILIES = ("LlamaForCausalLM", "Qwen3ForCausalLM")


def info_of(root: Path, **config: Any) -> ModelInfo:
    write_directory(root, config={"auto_map": CODE, **config})
    (root / "modeling_x.py").write_text("raise SystemExit('code of a model was run')")
    return SafetensorsLoader().read_info(files_of(root))


def test_a_model_that_only_its_own_code_fits_is_refused_with_the_code_and_the_families(tmp_path: Path) -> None:
    info = info_of(tmp_path, architectures=["XForCausalLM"])
    with pytest.raises(ConfigError, match=r"modeling_x\.XForCausalLM.*'XForCausalLM'.*LlamaForCausalLM.*never runs"):
        refuse_remote_code(info, FAMILIES, trusted=False)
    refuse_remote_code(info, FAMILIES, trusted=True)


def test_code_beside_a_known_family_is_not_needed(tmp_path: Path) -> None:
    refuse_remote_code(info_of(tmp_path), FAMILIES, trusted=False)


def test_an_unknown_family_without_code_is_left_to_others(tmp_path: Path) -> None:
    info = dataclasses.replace(info_of(tmp_path, auto_map=None), architecture="XForCausalLM")
    refuse_remote_code(info, FAMILIES, trusted=False)


def test_the_start_is_refused_unless_the_operator_trusts_the_code(tmp_path: Path) -> None:
    info_of(tmp_path, architectures=["XForCausalLM"])
    plugins = PluginManager.discover("")
    with pytest.raises(ConfigError, match="--trust-remote-code"):
        resolve_config(UserArgs.from_keywords(model=str(tmp_path)), plugins)
    with pytest.raises(ConfigError, match=r"'XForCausalLM' is not supported.*pip install corefw-models-transformers"):
        resolve_config(UserArgs.from_keywords(model=str(tmp_path), trust_remote_code=True), plugins)
