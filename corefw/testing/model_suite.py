"""Conformance suites of model classes, and of implementations that compute models which no class is made for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.interfaces.model import ModelImplementation, ModelRequest
from corefw.models.layers.attention import Attention
from corefw.models.loading.hf_config import read_hf_info
from corefw.testing.paged_loop import PagedLoop, cpu_build_context, model_info
from corefw.testing.suite import NotChecked, PluginSuite, Suite, check_reason
from corefw.testing.tiny_models import llama_tensors, tiny_llama_config, write_tiny_llama

__all__ = ["ModelImplementationSuite", "ModelSuite"]

_PROMPT = [(13 * i) % 250 for i in range(45)]


class _ComputedSuite(Suite):
    """What holds of everything that computes a model."""

    def built(self) -> tuple[Any, ModelInfo]:
        """The model with its weights, for a CPU in float32, and its information."""
        raise NotImplementedError

    def test_its_attention_layers_are_there_and_named(self) -> None:
        model, info = self.built()
        layers = list(model.attention_layers)
        assert all(isinstance(layer, Attention) for layer in layers), "attention_layers has other things"
        assert len({layer.spec.name for layer in layers}) == len(layers) == info.num_layers

    def test_its_logits_have_a_column_for_each_token_id(self) -> None:
        model, info = self.built()
        logits = PagedLoop(model, cpu_build_context()).step({0: _PROMPT})[0]
        assert logits.shape[0] == len(_PROMPT)
        assert logits.shape[1] >= info.vocab_size or logits.shape[1] > 0
        assert bool(logits.isfinite().all()), "logits aren't finite"

    def test_a_token_never_sees_what_comes_after_it(self) -> None:
        model, _ = self.built()
        whole = PagedLoop(model, cpu_build_context()).step({0: _PROMPT})[0]
        model, _ = self.built()
        part = PagedLoop(model, cpu_build_context()).step({0: _PROMPT[:20]})[0]
        assert torch.allclose(whole[:20], part, atol=1e-4, rtol=1e-4), "logits depend on later tokens"

    def test_results_do_not_depend_on_chunks_and_neighbours(self) -> None:
        model, _ = self.built()
        alone = PagedLoop(model, cpu_build_context()).greedy(0, _PROMPT, 6)
        model, _ = self.built()
        loop = PagedLoop(model, cpu_build_context())
        loop.step({1: _PROMPT[::-1], 2: [5, 6, 7]})
        assert loop.greedy(0, _PROMPT, 6, chunk=7) == alone, "other tokens in chunks, beside other sequences"

    def test_a_token_has_the_same_bits_in_every_batch(self) -> None:
        model, _ = self.built()
        alone = PagedLoop(model, cpu_build_context()).step({0: _PROMPT})[0]
        model, _ = self.built()
        mixed = PagedLoop(model, cpu_build_context()).step({1: _PROMPT[3:30], 0: _PROMPT, 2: [9]})[0]
        assert torch.equal(alone, mixed), "in float32 a token's result must not depend on the batch"


class ModelSuite(_ComputedSuite):
    """For ``corefw.model_plugins``. The plugin is a class, or what else makes a module of (info, build).

    ``plugin_name`` is the architecture. Override ``hf_config`` and ``weights`` where it isn't of Llama's shape.
    """

    def hf_config(self) -> Mapping[str, Any]:
        """A small ``config.json``."""
        return tiny_llama_config(architectures=[self.name])

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Random tensors by their names in a checkpoint, as ``hf_config`` has them."""
        return llama_tensors(dict(self.hf_config())).items()

    def built(self) -> tuple[Any, ModelInfo]:
        info = model_info(self.hf_config())
        model = self.plugin(info, cpu_build_context())
        try:
            model.load_weights(iter(self.weights()))
        except ModelFormatError as error:
            if type(self).weights is not ModelSuite.weights:
                raise
            raise NotChecked(f"it isn't of Llama's shape; give hf_config() and weights(): {error}") from None
        return model.eval().requires_grad_(False), info

    def test_a_checkpoint_that_lacks_a_tensor_is_refused(self) -> None:
        self.built()
        model = self.plugin(model_info(self.hf_config()), cpu_build_context())
        kept = list(self.weights())
        try:
            model.load_weights(iter(kept[:-1]))
        except ModelFormatError:
            return
        raise AssertionError(f"load_weights() doesn't miss {kept[-1][0]}")

    def test_a_tensor_that_it_does_not_know_is_refused(self) -> None:
        self.built()
        model = self.plugin(model_info(self.hf_config()), cpu_build_context())
        try:
            model.load_weights(iter([*self.weights(), ("no.such.weight", torch.zeros(2))]))
        except ModelFormatError:
            return
        raise AssertionError("load_weights() ignores a tensor that it doesn't know")


class ModelImplementationSuite(PluginSuite, _ComputedSuite):
    """For ``corefw.model_implementations``."""

    plugin: ClassVar[type[ModelImplementation]]
    group = "model_implementations"

    def write_model(self, folder: Path) -> None:
        """Write a small model that it supports, as a Hugging Face directory. The default is a Llama."""
        write_tiny_llama(folder)

    def test_it_says_why_it_does_not_compute_a_model(self) -> None:
        config = tiny_llama_config(architectures=["NoSuchForCausalLM"], model_type="no_such")
        reason = self.plugin().supports(ModelRequest(info=model_info(config), dtype="float32"))
        check_reason(reason, "supports()")
        assert reason is not None, "supports() says yes to an architecture that doesn't exist"

    def test_it_describes_what_it_supports(self) -> None:
        with self._request() as request:
            described = self.plugin().describe(request)
            sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
            missing = [name for name in sizes if not described.hf_config.get(name)]
            assert not missing, f"describe() leaves out {', '.join(missing)}"
            assert min(described.max_position, described.vocab_size) > 0

    def built(self) -> tuple[Any, ModelInfo]:
        from safetensors.torch import load_file

        with self._request() as request:
            described = self.plugin().describe(request)
            wanted = ModelRequest(info=described, dtype="float32")
            model: Any = self.plugin().build(wanted, cpu_build_context())
            model.load_weights(iter(load_file(f"{described.files.root}/model.safetensors").items()))
            return model.eval().requires_grad_(False), described

    @contextmanager
    def _request(self) -> Iterator[ModelRequest]:
        with tempfile.TemporaryDirectory(prefix="corefw-model-") as name:
            folder = Path(name).resolve()
            self.write_model(folder)
            weights = (str(folder / "model.safetensors"),)
            files = ModelFiles(reference=str(folder), source="local", root=str(folder), weights=weights)
            request = ModelRequest(info=read_hf_info(files, "safetensors"), dtype="float32")
            if reason := self.plugin().supports(request):
                raise NotChecked(f"it doesn't support a tiny Llama; write a model in write_model(): {reason}")
            yield request
