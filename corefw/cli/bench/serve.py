"""``corefw bench serve``: drives any OpenAI-compatible server and measures what its clients see. Needs no torch."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corefw import env
from corefw.cli.bench.arrivals import arrival_times
from corefw.cli.bench.load import Load, Measured, run_load, send_one
from corefw.cli.bench.prompts import BenchPrompt, IdPrompts, PromptMaker, WordPrompts, add_dataset_flags, make_prompts
from corefw.cli.bench.summary import format_summary, parse_goodput, summarise
from corefw.cli.client.connect import base_url
from corefw.cli.client.http import HttpTransport
from corefw.cli.client.transport import Transport, TransportError, first_model
from corefw.errors import ConfigError

__all__ = ["add_arguments", "run"]

_ROUTES = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
_CALIBRATION_WORDS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw bench serve``."""
    server = parser.add_argument_group("server")
    server.add_argument("--backend", choices=tuple(_ROUTES), default="openai", help="route to use (default: openai)")
    server.add_argument("--base-url", help="default: http://HOST:PORT")
    server.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    server.add_argument("--port", type=int, default=8000, help="default: 8000")
    server.add_argument("--endpoint", help="path of the route, if it isn't the usual one")
    server.add_argument("--api-key", help="default: COREFW_API_KEY")
    server.add_argument("--model", help="default: the server's first")
    server.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json or its directory: prompts of exact length")
    load = parser.add_argument_group("load")
    load.add_argument("--num-prompts", type=int, default=100, help="requests (default: 100)")
    load.add_argument("--request-rate", type=float, default=float("inf"), help="per second (default: inf, all at once)")
    load.add_argument("--burstiness", type=float, default=1.0, help="1 is Poisson, less comes in bursts (default: 1)")
    load.add_argument("--max-concurrency", type=int, help="requests under way at once")
    load.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate rise")
    load.add_argument("--ramp-up-start-rps", type=float, help="rate at the first request")
    load.add_argument("--ramp-up-end-rps", type=float, help="rate at the last request")
    load.add_argument("--num-warmups", type=int, default=1, help="requests before, not measured (default: 1)")
    load.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    load.add_argument(
        "--ignore-eos", action="store_true", help="outputs of exact length, where the server has that field"
    )
    load.add_argument("--temperature", type=float, default=0.0, help="default: 0")
    load.add_argument("--extra-body", metavar="JSON", help="further fields of every request")
    add_dataset_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--metric-percentiles", default="99", help="comma list (default: 99)")
    output.add_argument("--goodput", nargs="+", default=(), metavar="NAME:MS", help="limits: ttft:MS tpot:MS e2el:MS")
    output.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    output.add_argument("--save-detailed", action="store_true", help="every request's figures, too")
    output.add_argument("--result-dir", default=".", help="default: here")
    output.add_argument("--result-filename", help="default: from backend, rate, model and time")
    output.add_argument("--metadata", nargs="*", default=(), metavar="KEY=VALUE", help="to keep with the result")
    output.add_argument("--plot", metavar="FILE", help="write a picture; needs the extra corefw[bench]")
    output.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


@dataclass(frozen=True, slots=True)
class _Settings:
    """Flags after their checks."""

    goodput: dict[str, float]
    percents: list[float]
    ramp: tuple[str, float, float] | None
    extra: dict[str, Any]
    metadata: dict[str, str]


def run(namespace: argparse.Namespace) -> int:
    """Measure; 1 when a request failed."""
    settings = _settings(namespace)
    if namespace.plot:
        from corefw.cli.bench.pictures import require

        require(Path(namespace.plot))
    import uvloop

    result, measured = uvloop.run(_run(namespace, settings))
    print(format_summary(result, settings.percents))
    for error in sorted({item.error for item in measured if item.error})[:5]:
        print(f"failed: {error}", file=sys.stderr)
    if namespace.save_result or namespace.save_detailed or namespace.result_filename:
        _save(namespace, result, measured)
    if namespace.plot:
        from corefw.cli.bench.pictures import draw

        draw(Path(namespace.plot), measured, f"{result['model_id']}, {namespace.request_rate:g} requests/s")
    return 1 if result["failed"] else 0


def _settings(options: argparse.Namespace) -> _Settings:
    if options.num_prompts < 1:
        raise ConfigError(f"--num-prompts must be at least 1, got {options.num_prompts}")
    ramp = (options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps)
    if any(part is not None for part in ramp) and None in ramp:
        raise ConfigError("--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps go together")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency must be at least 1, got {options.max_concurrency}")
    if options.tokenizer is not None and (options.backend == "openai-chat" or options.dataset_path is not None):
        raise ConfigError("--tokenizer makes prompts of token ids: it goes with --backend openai and made-up datasets")
    try:
        percents = [float(word) for word in options.metric_percentiles.split(",")]
        extra = json.loads(options.extra_body or "{}")
        metadata = dict(word.split("=", 1) for word in options.metadata)
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles, --extra-body or --metadata: {error}") from None
    return _Settings(parse_goodput(options.goodput), percents, None if None in ramp else ramp, extra, metadata)


async def _run(options: argparse.Namespace, settings: _Settings) -> tuple[dict[str, Any], list[Measured]]:
    url = base_url(options.base_url or f"http://{options.host}:{options.port}")
    transport = HttpTransport(url, api_key=options.api_key or env.api_key())
    try:
        model = options.model or await first_model(transport)
        load = _load(options, settings, model)
        prompts = make_prompts(options, await _maker(options, transport, load))
        for prompt in (prompts[i % len(prompts)] for i in range(options.num_warmups)):
            await _warm_up(transport, load, prompt)
        return await _measure(options, settings, transport, load, prompts, model)
    finally:
        await transport.close()


async def _measure(
    options: argparse.Namespace,
    settings: _Settings,
    transport: Transport,
    load: Load,
    prompts: Sequence[BenchPrompt],
    model: str,
) -> tuple[dict[str, Any], list[Measured]]:
    rng = random.Random(options.seed + 1)
    times_s = arrival_times(len(prompts), options.request_rate, options.burstiness, rng, settings.ramp)
    on_end, finish = _progress(len(prompts), options.disable_tqdm or not sys.stderr.isatty())
    cpu_s = time.process_time()
    measured, duration_s = await run_load(transport, load, prompts, times_s, options.max_concurrency, on_end)
    cpu_s = time.process_time() - cpu_s
    finish()
    figures = summarise(measured, duration_s, settings.percents, settings.goodput)
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "model_id": model,
        "dataset_name": options.dataset_name,
        "num_prompts": len(prompts),
        "request_rate": options.request_rate if options.request_rate != float("inf") else "inf",
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        "ramp": settings.ramp,
        **settings.metadata,
        **figures,
        "client_cpu_us_per_token": cpu_s * 1e6 / max(1, figures["total_output_tokens"]),
        "client_cpu_share": cpu_s / duration_s,
    }, measured


def _load(options: argparse.Namespace, settings: _Settings, model: str) -> Load:
    fields: dict[str, Any] = {"model": model, "temperature": options.temperature}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    return Load(
        path=options.endpoint or _ROUTES[options.backend],
        chat=options.backend == "openai-chat",
        fields={**fields, **settings.extra},
    )


async def _maker(options: argparse.Namespace, transport: Transport, load: Load) -> PromptMaker:
    """Prompts of wanted lengths: exact with a tokenizer, else by asking the server how long a text is."""
    if options.dataset_name in ("sharegpt", "custom"):
        return WordPrompts()
    if options.tokenizer is not None:
        return _id_prompts(Path(options.tokenizer))
    one = WordPrompts()
    lengths = []
    for num_words in (1, 1 + _CALIBRATION_WORDS):
        text = one.join(one.make(num_words, random.Random(0)))
        lengths.append((await _warm_up(transport, load, BenchPrompt(text, 1))).num_prompt_tokens)
    per_word = (lengths[1] - lengths[0]) / _CALIBRATION_WORDS
    return WordPrompts(per_word if per_word > 0 else 1.0)


def _id_prompts(path: Path) -> IdPrompts:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"--tokenizer {str(path)[:200]!r} can't be read: {error}") from None
    special = [token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    # Control tokens lie at one end of the vocabulary or the other.
    first = max((token_id + 1 for token_id in special if token_id < size // 2), default=0)
    last = min((token_id for token_id in special if token_id >= size // 2), default=size)
    return IdPrompts(range(first, max(first + 1, min(last, size))))


async def _warm_up(transport: Transport, load: Load, prompt: BenchPrompt) -> Measured:
    """One request before; it has to work."""
    measured = await send_one(transport, load.path, load.body(prompt), time.perf_counter())
    if measured.error:
        raise TransportError(f"the first request failed: {measured.error}")
    return measured


def _progress(total: int, disable: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    if disable:
        return (lambda: None), (lambda: None)
    import importlib

    bar: Any = importlib.import_module("tqdm").tqdm(total=total, unit="request")
    return (lambda: bar.update()), bar.close


def _save(options: argparse.Namespace, result: dict[str, Any], measured: Sequence[Measured]) -> None:
    model = result["model_id"].replace("/", "-").replace(":", "-").strip("-")
    name = options.result_filename or f"{options.backend}-{options.request_rate:g}qps-{model}-{result['date']}.json"
    path = Path(options.result_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.save_detailed:
        result = {
            **result,
            "input_lens": [item.num_prompt_tokens for item in measured],
            "output_lens": [item.num_output_tokens for item in measured],
            "start_times": [item.sent_s for item in measured],
            "ttfts": [item.ttft_s for item in measured],
            "itls": [item.itl_s for item in measured],
            "latencies": [item.latency_s for item in measured],
            "errors": [item.error for item in measured],
        }
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(f"result: {path}", file=sys.stderr)
