"""The base of decoder-only language models: embedding, layers, norm, head, weights by name, and tap points.

Shapes: T tokens, R rows to sample from, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.decoder_layers import DecoderLayer, DecoderStyle, PreNormLayer
from corefw.models.layers.attention import Attention
from corefw.models.layers.parameter import Parameter
from corefw.models.layers.rope import RopeParameters, RotaryEmbedding, rope_parameters
from corefw.models.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from corefw.models.shape import head_size, layer_kind
from corefw.models.taps import Tap, install_taps

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo
    from corefw.models.layers.context import BuildContext

__all__ = ["DecoderForCausalLM", "DecoderLayer", "activation_op"]

StageTensors = dict[str, torch.Tensor]

_MAX_NAMES = 8  # in an error
_ACTIVATIONS = {"silu": "silu_and_mul", "gelu_pytorch_tanh": "gelu_tanh_and_mul"}
_LAYER_KINDS = ("full_attention", "sliding_attention")


class DecoderForCausalLM(nn.Module):
    """A decoder of layers of one shape, with named tap points. A family says how it differs: ``style``, ``rope``.

    A stage of a pipeline holds some of the layers, the first one the embedding as well, the last one norm and head.

    Tap points: ``layers.<i>.residual`` (the residual stream after layer i), ``layers.<i>.qkv`` (what attention gets),
    ``lm_head.input``, ``logits``. Only those in ``BuildContext.taps`` exist in the built model.

    Attributes:
        has_stages: whether it can hold a part of its layers: see ``BuildContext.stage``.
        accepts_blocks: whether ``load_weights`` hands tensors to parameters as they come, so that they may be blocks.
        can_be_restored: whether parameters and prepared weights are all that ``load_weights`` makes, so that a later
            start may get them without it. A class with a ``load_weights`` of its own has to say so again.
        accepts_embeds: whether ``forward`` takes embeddings, and ``embed`` makes those of token ids.
        can_choose: whether it has ``choose``, so that steps in which all are greedy need no logits.
        layer_class: of every layer; what ``build_layers`` makes.
        packed: checkpoint module → (module that holds it here, shard id), by the last two parts of the name. A
            checkpoint may have the joined module as well.
        ignored: endings of checkpoint names that are no weights.
        taps: by name, those that were built in.
        attention_layers: in layer order.
    """

    has_stages: ClassVar[bool] = True
    accepts_blocks: ClassVar[bool] = True
    can_be_restored: ClassVar[bool] = True
    accepts_embeds: ClassVar[bool] = True
    can_choose: ClassVar[bool] = True
    layer_class: ClassVar[Callable[..., DecoderLayer]] = PreNormLayer
    packed: ClassVar[Mapping[str, tuple[str, str]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    }
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")

    def __init__(self, info: ModelInfo, build: BuildContext) -> None:
        super().__init__()
        config = info.hf_config
        width = int(config["hidden_size"])
        self._style = self.style(config)
        self._embedding_scale = _rounded(self._style.embedding_scale, build.dtype)
        self._tied = bool(config.get("tie_word_embeddings", False))
        self._stage, self._width, self._build = build.stage, width, (build.dtype, build.device)
        self._layer_indices, self._num_layers = build.stage.layers(info.num_layers), info.num_layers
        if build.stage.is_first or (build.stage.is_last and self._tied):
            self.embed_tokens = VocabParallelEmbedding(info.vocab_size, width, build)
        layers = self.build_layers(info, build)
        self.layers = nn.ModuleDict({str(i): layer for i, layer in zip(self._layer_indices, layers, strict=True)})
        self.attention_layers: Sequence[Attention] = tuple(layer.attention for layer in layers)
        self.taps: Mapping[str, Tap] = {}
        if build.stage.is_last:
            self._build_head(info, build)
        if build.taps:
            self.taps = install_taps(build.taps, layers, self.attention_layers, self.lm_head)

    def _build_head(self, info: ModelInfo, build: BuildContext) -> None:
        self.norm = self._style.norm(self._width, float(info.hf_config["rms_norm_eps"]), build)
        self.lm_head = ParallelLMHead(
            info.vocab_size,
            self._width,
            build,
            tied=self.embed_tokens if self._tied else None,
            soft_cap=self._style.logit_cap,
        )

    def style(self, config: Mapping[str, Any]) -> DecoderStyle:
        """What the family does differently, from a configuration in Hugging Face terms."""
        return DecoderStyle(activation=activation_op(config))

    def rope(self, config: Mapping[str, Any], kind: str) -> RopeParameters:
        """The rotary embedding of layers of one kind (see ``layer_kind``)."""
        del kind
        return rope_parameters(config, head_size(config))

    def build_layers(self, info: ModelInfo, build: BuildContext) -> Sequence[DecoderLayer]:
        """The layers of this stage, in order.

        Raises:
            ModelFormatError: the configuration names a kind of layer that isn't known.
        """
        config = info.hf_config
        kinds = {index: layer_kind(config, index) for index in build.stage.layers(info.num_layers)}
        rotaries: dict[str, RotaryEmbedding] = {}
        for kind in sorted(set(kinds.values())):
            if kind not in _LAYER_KINDS:
                raise ModelFormatError(f"layer_types has {kind[:40]!r}; only {', '.join(_LAYER_KINDS)} are known")
            rope = self.rope(config, kind)
            alike = [rotary for rotary in rotaries.values() if rotary.rope == rope]
            rotaries[kind] = alike[0] if alike else RotaryEmbedding(rope, head_size(config), build)
        return [self.layer_class(config, index, self._style, rotaries[kind], build) for index, kind in kinds.items()]

    def embed(self, input_ids_T: torch.Tensor) -> torch.Tensor:
        """[T] → [T, E], as the first layer gets them: scaled, where the family does that."""
        hidden_TE: torch.Tensor = self.embed_tokens(input_ids_T)
        return hidden_TE if self._embedding_scale is None else hidden_TE * self._embedding_scale

    def forward(
        self,
        input_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        embeds_TE: torch.Tensor | None = None,
        received: StageTensors | None = None,
    ) -> torch.Tensor | StageTensors:
        """Hidden states after the last norm, [T, E]; needs a forward context. ``embeds_TE`` replaces ``embed``'s.

        Of a stage but the first, ``received`` are the tensors that the one before it gave; a stage but the last gives
        some.
        """
        hidden_TE: torch.Tensor
        residual_TE: torch.Tensor | None = None
        if received is not None:
            hidden_TE, residual_TE = received["hidden"], received["residual"]
        else:
            hidden_TE = self.embed(input_ids_T) if embeds_TE is None else embeds_TE
        for layer in self.layers.values():
            hidden_TE, residual_TE = layer(positions_T, hidden_TE, residual_TE)
        if not self._stage.is_last:
            assert residual_TE is not None, "a stage has at least one layer"
            return {"hidden": hidden_TE, "residual": residual_TE}
        normed_TE: torch.Tensor = self.norm(hidden_TE, residual_TE)[0]
        return normed_TE

    def empty_received(self, num_tokens: int) -> StageTensors | None:
        """What a step of so many tokens receives, zeros, to measure memory; None at the first stage."""
        if self._stage.is_first:
            return None
        dtype, device = self._build
        shape = (num_tokens, self._width)
        return {name: torch.zeros(shape, dtype=dtype, device=device) for name in ("hidden", "residual")}

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        logits_RV: torch.Tensor = self.lm_head(hidden_RE)
        return logits_RV

    def choose(self, hidden_RE: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, E] → of the first ``num_ids`` ids the largest logit [R], and whose it is [R], the lowest among equals."""
        return self.lm_head.choose(hidden_RE, num_ids)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every parameter exactly once, from tensors under their Hugging Face names; other stages' are left out.

        Raises:
            ModelFormatError: a tensor is missing, unexpected, there twice or of a wrong shape; names them.
        """
        parameters: dict[str, Any] = dict(self.named_parameters(remove_duplicate=True))
        unexpected: list[str] = []
        for name, tensor in weights:
            if name.endswith(self.ignored) or (self._tied and name == "lm_head.weight"):
                continue
            own_name, shard_id = self._place(name)
            parameter = parameters.get(own_name)
            if not isinstance(parameter, Parameter):
                if not self._is_elsewhere(own_name):
                    unexpected.append(name)
                continue
            _load(parameter, name, tensor, shard_id)
        missing = {self._checkpoint_name(name, s): None for name, p in parameters.items() for s in p.missing()}
        _refuse("misses", list(missing))
        _refuse("has unexpected", unexpected)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a parameter is another stage's, which then misses it if it isn't there."""
        module, _, rest = name.partition(".")
        if module == "layers":
            index = rest.partition(".")[0]
            return index.isdecimal() and int(index) < self._num_layers and int(index) not in self._layer_indices
        return module in ("embed_tokens", "norm", "lm_head") and module not in self._modules

    def _place(self, name: str) -> tuple[str, str]:
        parts = name.removeprefix("model.").split(".")
        if len(parts) >= 2 and parts[-2] in self.packed:
            parts[-2], shard_id = self.packed[parts[-2]]
            return ".".join(parts), shard_id
        return ".".join(parts), ""

    def _checkpoint_name(self, name: str, shard_id: str) -> str:
        parts = name.split(".")
        for theirs, ours in self.packed.items():
            if ours == (parts[-2], shard_id):
                parts[-2] = theirs
        return ("" if parts[0] == "lm_head" else "model.") + ".".join(parts)


def activation_op(config: Mapping[str, Any], default: str = "silu") -> str:
    """The op of a gated MLP with the activation of a configuration.

    Raises:
        ModelFormatError: there is none.
    """
    name = config.get("hidden_activation") or config.get("hidden_act") or default
    if name not in _ACTIVATIONS:
        raise ModelFormatError(f"the activation is {str(name)[:40]!r}; only {', '.join(_ACTIVATIONS)} are known")
    return _ACTIVATIONS[name]


def _rounded(value: float | None, dtype: torch.dtype) -> float | None:
    return None if value is None else float(torch.tensor(value).to(dtype))


def _load(parameter: Parameter, name: str, tensor: torch.Tensor, shard_id: str) -> None:
    try:
        parameter.load(tensor, shard_id)
    except ModelFormatError as error:
        raise ModelFormatError(f"checkpoint tensor {name!r} {error}") from None


def _refuse(what: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        raise ModelFormatError(
            f"the checkpoint {what} {len(names)} tensor(s): {', '.join(names[:_MAX_NAMES])}{more}; "
            "is it complete, and does its configuration belong to it?"
        )
