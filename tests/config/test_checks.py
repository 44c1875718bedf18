"""Options are checked wherever they come from: flags and keywords alike, before anything is started."""

from __future__ import annotations

import argparse
import math
from typing import Any

import msgspec
import pytest

from corefw.config.args import SECTIONS, UserArgs, add_flags
from corefw.config.checks import check_api_key
from corefw.config.engine_config import PluginConfig, ServerConfig
from corefw.errors import ConfigError

# Option → its least and its largest value.
BOUNDS: dict[str, tuple[float, float]] = {
    "max_model_len": (1, 2**31),
    "seed": (-(2**63), 2**63 - 1),
    "block_size": (1, 65536),
    "weights_cache_bytes": (0, 2**63 - 1),
    "kv_cache_memory": (1, 2**63 - 1),
    "num_gpu_blocks_override": (2, 2**31),
    "max_num_seqs": (1, 65536),
    "max_num_active_seqs": (1, 65536),
    "max_num_batched_tokens": (1, 2**20),
    "long_prefill_token_threshold": (0, 2**20),
    "watermark": (0, math.nextafter(1, 0)),
    "tensor_parallel_size": (1, 65536),
    "pipeline_parallel_size": (1, 65536),
    "prefill_context_parallel_size": (1, 65536),
    "data_parallel_size": (1, 4096),
    "distributed_timeout_seconds": (1, 86400),
    "max_engine_restarts": (1, 2**31),
    "sse_keep_alive": (0, 7 * 24 * 3600),
    "api_server_count": (1, 256),
    "port": (0, 65535),
    "max_body_bytes": (1024, 2**63 - 1),
    "max_total_body_bytes": (1024, 2**63 - 1),
    "max_concurrent_requests": (1, 2**20),
    "request_timeout": (math.ulp(0), 7 * 24 * 3600),
    "max_n": (1, 65536),
    "max_logprobs": (-1, 2**24),
    "max_prompts": (1, 2**20),
    "shutdown_timeout": (0, 7 * 24 * 3600),
    "stream_interval": (1, 2**20),
}
# Option → the flags without which it could not have its largest value.
BESIDE = {
    "max_num_active_seqs": ("--max-num-seqs=65536",),
    "max_body_bytes": (f"--max-total-body-bytes={2**63 - 1}",),
    "max_total_body_bytes": ("--max-body-bytes=1024",),
}
TEXTS = (
    "uds",
    "ssl_certfile",
    "tokenizer",
    "generation_config",
    "load_format",
    "weights_cache",
    "revision",
    "scheduler",
    "scheduling_policy",
    "distributed_executor_backend",
    "platform",
    "attention_backend",
    "model",
)


def built(args: UserArgs) -> dict[str, Any]:
    """Every section, as the start makes them."""
    return {name: owner(**args.section(name)) for name, owner in SECTIONS.items()}


def from_flags(*flags: str) -> UserArgs:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    return UserArgs.from_namespace(parser.parse_args(flags))


def flag(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_a_number_is_accepted_up_to_its_bounds_and_no_further(name: str, bounds: tuple[float, float]) -> None:
    for value in bounds:
        sections = built(from_flags(f"{flag(name)}={value}", *BESIDE.get(name, ())))
        assert value in [getattr(section, name, None) for section in sections.values()]
        msgspec.msgpack.encode(list(sections.values()))
    for beyond in (bounds[0] - 1, bounds[1] + 1, 2**64, 10**5000):
        with pytest.raises(ConfigError, match=rf"^{flag(name)} must be in \[") as caught:
            built(UserArgs.from_keywords(**{name: beyond}))
        assert len(str(caught.value)) < 200


def test_no_number_is_without_a_bound() -> None:
    numbers = {
        name: value
        for section in built(UserArgs()).values()
        for name in section.__dataclass_fields__
        if isinstance(value := getattr(section, name), int | float) and not isinstance(value, bool)
    }
    assert numbers.keys() - {"decode_context_parallel_size", "ssl_cert_reqs"} <= BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", ["5", True, [5], math.nan, math.inf, -math.inf, 5j])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag(name)} must be "):
        built(UserArgs.from_keywords(**{name: value}))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e9"])
def test_a_time_to_shut_down_is_finite_and_bounded(value: str) -> None:
    with pytest.raises(ConfigError, match="--shutdown-timeout must be in"):
        built(from_flags(f"--shutdown-timeout={value}"))


@pytest.mark.parametrize("flags", [("--block-size", "x" * 9999), ("--block-size", "9" * 9999), ("--dtype", "x" * 9999)])
def test_a_flag_of_the_wrong_kind_is_refused_without_repeating_all_of_it(flags: tuple[str, ...]) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        from_flags(*flags)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "a\nb", "\x00", "\x7f", "\x85", "\u2028", "\udcff", "x" * 4097, 5, b"x", True])
def test_a_name_is_printable_text(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag(name)} ") as caught:
        built(UserArgs.from_keywords(**{name: value}))
    assert len(str(caught.value)) < 200


def test_a_name_may_have_any_letters_and_blanks() -> None:
    name = "modèle 模型 " + "x" * 4000
    assert built(UserArgs.from_keywords(served_model_name=[name]))["model"].served_model_name == (name,)


@pytest.mark.parametrize("value", ["", "a\nb", "\x00", "\x7f", "\x85", "\u2028", "\udcff", "x" * 4097])
def test_every_name_of_a_list_is_printable_text(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--served-model-name ") as caught:
        built(UserArgs.from_keywords(served_model_name=["fine", value]))
    assert len(str(caught.value)) < 200


def test_a_name_that_is_given_twice_is_refused() -> None:
    assert built(from_flags("--served-model-name=a", "--served-model-name=b"))["model"].served_model_name == ("a", "b")
    with pytest.raises(ConfigError, match="--served-model-name 'a' is given twice"):
        built(from_flags("--served-model-name=a", "--served-model-name=b", "--served-model-name=a"))


def test_a_template_may_be_long_and_have_many_lines() -> None:
    template = "{{ x }}\n\t" * 9999
    assert built(UserArgs.from_keywords(chat_template=template))["model"].chat_template == template
    with pytest.raises(ConfigError, match="--chat-template isn't valid Unicode"):
        built(UserArgs.from_keywords(chat_template="\udcff"))


def test_an_empty_allowlist_means_that_nothing_is_allowed() -> None:
    assert PluginConfig(plugins="").plugins == ""


@pytest.mark.parametrize("name", ["enable_prefix_caching", "enable_chunked_prefill", "tokenizer_cache"])
@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag(name)} must be true or false"):
        built(UserArgs.from_keywords(**{name: value}))


@pytest.mark.parametrize("value", ["debug", "DEBUG", "Debug", " debug "])
def test_the_level_of_the_log_is_read_like_the_environment_variable(value: str) -> None:
    assert built(from_flags("--log-level", value))["server"].log_level == "DEBUG"
    assert ServerConfig(log_level=value).log_level == "DEBUG"


def test_an_unknown_level_of_the_log_is_refused() -> None:
    with pytest.raises(argparse.ArgumentError, match="invalid choice: 'loud'"):
        from_flags("--log-level", "loud")
    with pytest.raises(ConfigError, match="--log-level 'LOUD' is unknown; use one of DEBUG, INFO, WARNING, ERROR"):
        ServerConfig(log_level="loud")


@pytest.mark.parametrize(
    "key", ["", " ", " secret", "secret ", "secret\n", "sec\tret", "sec\x7fret", "schlüssel", "\udcff"]
)
def test_a_key_that_no_client_could_send_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key") as caught:
        built(UserArgs.from_keywords(api_key=["fine", key]))
    assert "sec" not in str(caught.value)
    with pytest.raises(ConfigError, match="COREFW_API_KEY"):
        check_api_key("COREFW_API_KEY", key)


def test_keys_are_a_list_of_texts() -> None:
    assert built(UserArgs.from_keywords(api_key=["a b", "~"]))["server"].api_key == ("a b", "~")
    for wrong in ("secret", 5, [5], None):
        with pytest.raises(ConfigError, match="--api-key must be a list of texts"):
            built(UserArgs.from_keywords(api_key=wrong))
