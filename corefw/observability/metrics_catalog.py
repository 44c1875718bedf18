"""Every metric once: its name here, its names in vLLM, what it means, its buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CACHE_INFO",
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "FINISH_REASONS",
    "HTTP_REQUESTS",
    "INFO",
    "METRICS_NAMES",
    "PLUGINS_QUARANTINED",
    "PLUGIN_INFO",
    "REQUESTS",
    "REQUEST_HISTOGRAMS",
    "STEP_TOKENS",
    "STEP_TOKEN_BOUNDS",
    "Metric",
    "Naming",
    "PluginFigures",
    "bounds_of",
]

METRICS_NAMES = ("corefw", "vllm")
FINISH_REASONS = ("stop", "length", "abort", "error")

# The buckets are vLLM's: dashboards with fixed ones (heat maps, shares below a limit) fit as they are.
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_OUTPUTS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        key: name without its prefix; a counter's without ``_total``.
        help: what it counts.
        vllm: names in vLLM without the prefix, older ones last.
        bounds: upper bounds of the buckets; None for token counts, whose largest is the context length.
    """

    key: str
    help: str
    vllm: tuple[str, ...]
    bounds: tuple[float, ...] | None = None


ENGINE_GAUGES = (
    Metric("num_requests_running", "Requests that hold a batch slot.", ("num_requests_running",)),
    Metric("num_requests_waiting", "Requests that wait for a slot.", ("num_requests_waiting",)),
    Metric("kv_cache_usage", "Share of KV blocks in use, 0 to 1.", ("kv_cache_usage_perc", "gpu_cache_usage_perc")),
)
ENGINE_COUNTERS = (
    Metric("num_preemptions", "Requests put back for lack of KV blocks.", ("num_preemptions",)),
    Metric(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    ),
    Metric(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    ),
    Metric("prompt_tokens", "Prompt tokens computed.", ("prompt_tokens",)),
    Metric("generation_tokens", "Tokens generated.", ("generation_tokens",)),
)
STEP_TOKENS = Metric(
    "step_tokens", "Tokens computed in one step, of all its requests.", ("iteration_tokens_total",), STEP_TOKEN_BOUNDS
)
REQUESTS = Metric("requests", "Sequences that ended, by reason (stop, length, abort, error).", ("request_success",))
REQUEST_HISTOGRAMS = (
    Metric(
        "time_to_first_token_seconds",
        "From a request's arrival to the first token, a sequence.",
        ("time_to_first_token_seconds",),
        _FIRST_TOKEN_S,
    ),
    Metric(
        "inter_token_latency_seconds",
        "Between two tokens of a sequence; k tokens that come together count k times with a k-th of the time.",
        ("inter_token_latency_seconds", "time_per_output_token_seconds"),
        _BETWEEN_TOKENS_S,
    ),
    Metric(
        "request_time_per_output_token_seconds",
        "Mean time between two tokens of a sequence that ended.",
        ("request_time_per_output_token_seconds",),
        _BETWEEN_TOKENS_S,
    ),
    Metric(
        "e2e_request_latency_seconds",
        "From a request's arrival to its end, a sequence.",
        ("e2e_request_latency_seconds",),
        _WHOLE_S,
    ),
    Metric(
        "request_queue_time_seconds",
        "From handing a sequence to the engine to its first step.",
        ("request_queue_time_seconds",),
        _WHOLE_S,
    ),
    Metric(
        "request_prefill_time_seconds",
        "From a sequence's first step to its first token.",
        ("request_prefill_time_seconds",),
        _WHOLE_S,
    ),
    Metric(
        "request_decode_time_seconds",
        "From a sequence's first token to its last.",
        ("request_decode_time_seconds",),
        _WHOLE_S,
    ),
    Metric(
        "request_inference_time_seconds",
        "From a sequence's first step to its last token.",
        ("request_inference_time_seconds",),
        _WHOLE_S,
    ),
    Metric("request_prompt_tokens", "Prompt tokens of a sequence that ended.", ("request_prompt_tokens",)),
    Metric(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a sequence that ended, without those from the prefix cache.",
        ("request_prefill_kv_computed_tokens",),
    ),
    Metric("request_generation_tokens", "Tokens generated of a sequence that ended.", ("request_generation_tokens",)),
    Metric(
        "request_max_num_generation_tokens",
        "Tokens generated of the longest of a prompt's n sequences.",
        ("request_max_num_generation_tokens",),
    ),
    Metric("request_params_n", "Parameter n, a prompt.", ("request_params_n",), _OUTPUTS),
    Metric("request_params_max_tokens", "Parameter max_tokens where it was given.", ("request_params_max_tokens",)),
)
HTTP_REQUESTS = Metric(
    "http_requests", "HTTP requests answered, by method, route and status (499: the client went first).", ()
)
INFO = Metric("info", "What this server is; always 1.", ())
PLUGIN_INFO = Metric("plugin_info", "A plugin that was found, and its state; always 1.", ())
PLUGINS_QUARANTINED = Metric(
    "plugin_contributions_quarantined", "Hooks' contributions that aren't called any more, since they kept failing.", ()
)
CACHE_INFO = Metric("cache_config_info", "How the KV cache is made; always 1.", ("cache_config_info",))


@dataclass(frozen=True, slots=True)
class PluginFigures:
    """What is told of plugins.

    Attributes:
        plugins: labels a plugin; a bounded number of them.
        num_quarantined: contributions that aren't called any more.
    """

    plugins: tuple[Mapping[str, str], ...] = ()
    num_quarantined: int = 0


@dataclass(frozen=True, slots=True)
class Naming:
    """Under which names and labels everything is told.

    Attributes:
        family: one of ``METRICS_NAMES``.
        model: the served name.
    """

    family: str
    model: str

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM's names are used."""
        return self.family == "vllm"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of everything that the engine or a request brings."""
        return {"model_name": self.model, "engine": "0"} if self.is_vllm else {"model_name": self.model}

    @property
    def reason_label(self) -> str:
        """Label for why a sequence ended."""
        return "finished_reason" if self.is_vllm else "finish_reason"

    def names(self, metric: Metric) -> tuple[str, ...]:
        """A metric's names; what vLLM doesn't have keeps its own one."""
        if self.is_vllm and metric.vllm:
            return tuple(f"vllm:{name}" for name in metric.vllm)
        return (f"corefw:{metric.key}",)

    def http(self, method: str, route: str, status: int) -> tuple[str, Mapping[str, str]]:
        """Name and labels of the HTTP counter; with vLLM it has no prefix, and statuses count by their first digit."""
        if self.is_vllm:
            return "http_requests", {"handler": route, "method": method, "status": f"{status // 100}xx"}
        return "corefw:http_requests", {"method": method, "route": route, "status": str(status)}


def bounds_of(metric: Metric, max_model_len: int) -> tuple[float, ...]:
    """Upper bounds of a histogram's buckets, the last (infinite) one left out."""
    if metric.bounds is not None:
        return metric.bounds
    scale = (digit * 10**power for power in range(len(str(max_model_len))) for digit in (1, 2, 5))
    return tuple(bound for bound in scale if bound <= max_model_len)
