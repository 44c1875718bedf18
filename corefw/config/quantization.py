"""What weights, and inputs of products, are rounded to while a model is loaded: names, and what settings mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from corefw.errors import ConfigError

__all__ = [
    "ACTIVATION_KEYS",
    "CHECKPOINT_NAMES",
    "ONLINE",
    "PLAIN",
    "SHORTHANDS",
    "WEIGHT_KEYS",
    "OnlineQuantization",
    "QuantSpec",
    "Shorthand",
    "Target",
    "resolve_quantization",
]

ONLINE = "online"  # --quantization with nothing but settings
PLAIN = "none"  # as a key: not rounded
INT8_ROWS, INT4_GROUPS, INT8_TOKENS = "int8_per_channel_static", "int4_per_group_static", "int8_per_token"
_FLAG = "--quantization-config"
_MAX_SHOWN = 60

WEIGHT_KEYS = {
    INT8_ROWS: "-127 to 127 times a scale for each output",
    INT4_GROUPS: "0 to 15 times a scale, plus a least value, for each 32 inputs of an output",
    "fp8_per_tensor_static": "float8 e4m3 times a scale for the whole weight",
    "fp8_per_channel_static": "float8 e4m3 times a scale for each output",
    "fp8_per_block_static": "float8 e4m3 times a scale for 128 outputs by 128 inputs",
    "mxfp8": "float8 e4m3 times a power of two for each 32 inputs of an output",
    "mxfp4": "float4 e2m1 times a power of two for each 32 inputs of an output",
    "nvfp4_static": "float4 e2m1 times a float8 scale for each 16 inputs of an output",
}
ACTIVATION_KEYS = {
    INT8_TOKENS: "-127 to 127 times a scale for each token",
    "fp8_per_tensor_dynamic": "float8 e4m3 times a scale for the step",
    "fp8_per_token": "float8 e4m3 times a scale for each token",
    "fp8_per_block_dynamic": "float8 e4m3 times a scale for each 128 inputs of a token",
    "mxfp8": "float8 e4m3 times a power of two for each 32 inputs of a token",
    "mxfp4": "float4 e2m1 times a power of two for each 32 inputs of a token",
}


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """What layers of one kind are rounded to; None is the method's own default.

    Attributes:
        weight: one of ``WEIGHT_KEYS``, or ``none``.
        activation: one of ``ACTIVATION_KEYS``, or ``none``.
    """

    weight: str | None = None
    activation: str | None = None

    def over(self, base: QuantSpec | None) -> QuantSpec:
        """What is set here, and the rest of ``base``."""
        if base is None:
            return self
        return QuantSpec(self.weight or base.weight, self.activation or base.activation)

    @property
    def meaning(self) -> QuantSpec | None:
        """The same for all specs that mean the same; None where nothing is rounded."""
        if self.weight in (None, PLAIN):
            return None
        return QuantSpec(self.weight, None if self.activation == PLAIN else self.activation)

    def __str__(self) -> str:
        inputs = "" if self.activation in (None, PLAIN) else f", inputs {self.activation}"
        return f"{self.weight or PLAIN}{inputs}"


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A name for a spec of both kinds; a kind that it leaves out stays as it is."""

    linear: QuantSpec | None = None
    moe: QuantSpec | None = None


def _both(weight: str, activation: str | None = None) -> Shorthand:
    return Shorthand(QuantSpec(weight, activation), QuantSpec(weight, activation))


SHORTHANDS = {
    "int8_per_channel": _both(INT8_ROWS),
    "int8_dynamic": _both(INT8_ROWS, INT8_TOKENS),
    "int4_per_group": _both(INT4_GROUPS),
    "int8_per_channel_weight_only": Shorthand(moe=QuantSpec(INT8_ROWS)),
    "fp8_per_tensor": _both("fp8_per_tensor_static"),
    "fp8_per_channel": _both("fp8_per_channel_static"),
    "fp8_per_block": _both("fp8_per_block_static"),
    "mxfp8": _both("mxfp8"),
    "mxfp4": _both("mxfp4"),
    "nvfp4_per_token": Shorthand(moe=QuantSpec("nvfp4_static")),
}
# Names of methods by which checkpoints are made; as settings they leave everything to the checkpoint.
CHECKPOINT_NAMES = frozenset(
    {
        "auto_awq",
        "auto_gptq",
        "awq",
        "bitsandbytes",
        "compressed-tensors",
        "fp8",
        "gptq",
        "modelopt",
        "quark",
        "torchao",
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """A spec for the layers that a pattern matches.

    Attributes:
        pattern: a name, ``re:`` and an expression, or a name with wildcards.
        linear: for linear layers; None where the value has no such part.
        moe: for layers of experts; likewise.
        value: as it was given.
    """

    pattern: str
    linear: QuantSpec | None
    moe: QuantSpec | None
    value: str


@dataclass(frozen=True, slots=True)
class OnlineQuantization:
    """Settings that are complete and belong together.

    Attributes:
        linear: of linear layers; None: plain.
        moe: of layers of experts; None: plain.
        lm_head: of the output head, and an embedding that shares its weight; None: plain.
        targets: instead of those, by name of the layer.
        ignore: patterns of layers that stay plain.
    """

    linear: QuantSpec | None = None
    moe: QuantSpec | None = None
    lm_head: QuantSpec | None = None
    targets: tuple[Target, ...] = ()
    ignore: tuple[str, ...] = ()

    @property
    def specs(self) -> tuple[QuantSpec, ...]:
        """All that layers may be given."""
        found = [self.linear, self.moe, self.lm_head]
        found += [spec for target in self.targets for spec in (target.linear, target.moe)]
        return tuple(dict.fromkeys(spec for spec in found if spec is not None))

    def __str__(self) -> str:
        parts = {"linear": self.linear, "moe": self.moe, "lm_head": self.lm_head}
        told = [f"{kind} {spec}" for kind, spec in parts.items() if spec is not None]
        told += [f"{target.pattern} {target.value}" for target in self.targets]
        told += [f"not {pattern}" for pattern in self.ignore]
        return "; ".join(told)


def resolve_quantization(asked: str | None, settings: Mapping[str, Any]) -> OnlineQuantization:
    """A shorthand and settings over it, field by field.

    Args:
        asked: a shorthand; ``online`` or None where there are settings alone.
        settings: keys ``linear``, ``moe``, ``lm_head``, ``targets``, ``ignore``.

    Raises:
        ConfigError: names the field, and the names that are near.
    """
    base = SHORTHANDS.get(asked or ONLINE, Shorthand())
    _check_keys(settings, ("linear", "moe", "lm_head", "targets", "ignore"), "")
    given = {
        kind: _spec(settings[kind], kind) for kind in ("linear", "moe", "lm_head") if settings.get(kind) is not None
    }
    targets = _targets(settings.get("targets"))
    if targets and (given or base != Shorthand()):
        also = f"--quantization {asked}, which sets linear and moe" if base != Shorthand() else ", ".join(given)
        raise ConfigError(
            f"{_FLAG}: targets can't be beside {also}: which of them a layer has would be unclear; "
            f"use --quantization {ONLINE} and targets alone"
        )
    linear, moe, head = (given.get(kind) for kind in ("linear", "moe", "lm_head"))
    return OnlineQuantization(
        linear=linear.over(base.linear) if linear else base.linear,
        moe=moe.over(base.moe) if moe else base.moe,
        lm_head=head,
        targets=targets,
        ignore=_patterns(settings.get("ignore")),
    )


def _spec(value: Any, field: str) -> QuantSpec:
    """A shorthand's part, a weight key alone, or a mapping of both keys."""
    if isinstance(value, str):
        if value in SHORTHANDS:
            part = SHORTHANDS[value].moe if field == "moe" else SHORTHANDS[value].linear
            if part is None:
                raise ConfigError(
                    f"{_FLAG}: {field}: {value} has no part for {_kind(field)} layers; see docs/quantization.md"
                )
            return part
        return QuantSpec(_key(value, (*WEIGHT_KEYS, PLAIN), f"{field}", SHORTHANDS))
    if not isinstance(value, Mapping):
        _fail(field, f"must be a name, or a mapping with weight and activation, got {type(value).__name__}")
    _check_keys(value, ("weight", "activation"), f"{field}.")
    weight, activation = value.get("weight"), value.get("activation")
    return QuantSpec(
        None if weight is None else _key(weight, (*WEIGHT_KEYS, PLAIN), f"{field}.weight"),
        None if activation is None else _key(activation, (*ACTIVATION_KEYS, PLAIN), f"{field}.activation"),
    )


def _targets(value: Any) -> tuple[Target, ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        _fail("targets", f"must be a mapping of layers to what they are rounded to, got {type(value).__name__}")
    return tuple(_target(pattern, spec) for pattern, spec in value.items())


def _target(pattern: Any, value: Any) -> Target:
    (pattern,) = _patterns([pattern], "targets")
    if isinstance(value, str) and value in SHORTHANDS:
        return Target(pattern, SHORTHANDS[value].linear, SHORTHANDS[value].moe, value)
    spec = _spec(value, f"targets.{pattern[:_MAX_SHOWN]}")
    return Target(pattern, spec, spec, str(spec))


def _patterns(value: Any, field: str = "ignore") -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        _fail(field, "must be a list of names of layers, which may have wildcards or begin with re:")
    for pattern in value:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            _fail(field, f"{pattern[:_MAX_SHOWN]!r} is no regular expression: {error}")
    return tuple(value)


def _check_keys(value: Mapping[str, Any], known: Iterable[str], field: str) -> None:
    for key in value:
        _key(key, tuple(known), f"{field}{str(key)[:_MAX_SHOWN]}", what="setting")


def _key(value: Any, known: tuple[str, ...], field: str, also: Iterable[str] = (), what: str = "name") -> str:
    if not isinstance(value, str):
        _fail(field, f"must be a {what}, got {type(value).__name__}")
    if value not in known:
        near = difflib.get_close_matches(value, (*known, *also), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join((*also, *known))}"
        _fail(field, f"{value[:_MAX_SHOWN]!r} is no {what} that is known; {hint}")
    return value


def _kind(field: str) -> str:
    return "linear" if field == "lm_head" else field


def _fail(field: str, problem: str) -> NoReturn:
    raise ConfigError(f"{_FLAG}: {field}: {problem}")
