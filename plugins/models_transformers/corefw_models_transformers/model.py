"""A transformers model as a model of corefw: flat tokens, paged attention, bound products.

Shapes: T tokens, R rows to sample from, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.utils import logging as transformers_logging

from corefw.errors import ConfigError, ModelFormatError
from corefw.interfaces.attention import AttentionLayerSpec
from corefw.models.layers.attention import Attention
from corefw.sdk.plugins import get_logger
from corefw_models_transformers.attention import ATTENTION, place_attention
from corefw_models_transformers.experts import EXPERTS, use_experts
from corefw_models_transformers.fixed_order import FixedOrder
from corefw_models_transformers.inspection import Inspection, inspect_model
from corefw_models_transformers.layer_calls import LayerCall
from corefw_models_transformers.linear import Linear, prepare_linears, replace_linears
from corefw_models_transformers.refusal import Refused, shown_error
from corefw_models_transformers.split_model import SplitModel

if TYPE_CHECKING:
    from corefw.interfaces.model import ModelRequest
    from corefw.models.layers.context import BuildContext

__all__ = ["TransformersForCausalLM"]

_MAX_NAMES = 8  # in a message
_log = get_logger("models_transformers")


class TransformersForCausalLM(nn.Module):
    """Any model that ``inspect_model`` doesn't refuse.

    Raises:
        ConfigError: it is refused, or spread over ranks.
    """

    def __init__(self, request: ModelRequest, build: BuildContext) -> None:
        super().__init__()
        info = request.info
        if build.tp.size > 1:
            raise ConfigError(
                "models of the implementation 'transformers' run on one rank; set the number of ranks to 1"
            )
        try:
            self._found: Inspection = inspect_model(
                info.files.root, info.architecture, request.dtype, trusted=request.trust_remote_code
            )
        except Refused as refused:
            raise ConfigError(f"{info.files.root}: {refused}") from None
        self._build = build
        self._attention = {layer.module: Attention(_spec(layer), build) for layer in self._found.layers}
        self.attention_layers: Sequence[Attention] = tuple(self._attention.values())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give transformers the tensors; it joins, renames and ties them as the model needs.

        Raises:
            ModelFormatError: tensors are missing or have a wrong shape.
        """
        # They may be views of a file that closes. Nobody keeps the dict, or weights would be there twice once laid out.
        model = self._load({name: tensor.clone() for name, tensor in weights}).to(self._build.device)
        for name, attention in self._attention.items():
            place_attention(model.get_submodule(name), attention)
        replace_linears(model, self._linear_of)
        prepare_linears(model, self._prepared, plain=self._found.read_elsewhere)
        use_experts(model, EXPERTS)
        self.model = SplitModel(model)

    def forward(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Hidden states after the last norm, [T, E]; needs a forward context."""
        with self._order():
            return self.model.hidden(input_ids_T, positions_T)

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        with self._order():
            return self.model.logits(hidden_RE)

    def _load(self, state: dict[str, torch.Tensor]) -> Any:
        with _quiet():
            try:
                model, report = self._found.kind.from_pretrained(
                    None,
                    config=self._found.config,
                    state_dict=state,
                    dtype=self._build.dtype,
                    attn_implementation=ATTENTION,
                    output_loading_info=True,
                )
            except (RuntimeError, ValueError) as error:
                raise ModelFormatError(f"transformers can't load the checkpoint ({shown_error(error)})") from error
        if report["missing_keys"]:
            raise ModelFormatError(
                f"the checkpoint misses {_listed(report['missing_keys'])}; is it complete, and does its configuration "
                "belong to it?"
            )
        if report["unexpected_keys"]:
            _log.warning("the model has no use for %s of its checkpoint", _listed(report["unexpected_keys"]))
        return model.eval()

    def _linear_of(self, in_features: int, out_features: int) -> Linear:
        kernel: Linear = self._build.binder.bind("linear", in_features=in_features, out_features=out_features)
        return kernel

    def _prepared(self, weight_OE: torch.Tensor) -> torch.Tensor:
        out_features, in_features = weight_OE.shape
        return self._build.binder.prepare_weight(
            "linear", weight_OE, in_features=in_features, out_features=out_features
        )

    def _order(self) -> AbstractContextManager[Any]:
        return FixedOrder(self._linear_of) if self._build.batch_invariant else nullcontext()


def _spec(layer: LayerCall) -> AttentionLayerSpec:
    return AttentionLayerSpec(
        name=layer.module,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        scale=layer.scale,
        sliding_window=layer.sliding_window,
        soft_cap=layer.soft_cap,
    )


def _listed(names: Iterable[str]) -> str:
    given = sorted(names)
    more = f" and {len(given) - _MAX_NAMES} more" if len(given) > _MAX_NAMES else ""
    return f"{len(given)} tensor(s): {', '.join(given[:_MAX_NAMES])}{more}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar and report; what matters of it becomes an error or a warning here."""
    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()
