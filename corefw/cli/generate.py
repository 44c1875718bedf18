"""``corefw generate``: continue many prompts with a model in this process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corefw.cli.client.connect import ENGINE_SECTIONS
from corefw.cli.config_file import add_config_flag
from corefw.cli.json_lines import open_input, open_output
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.cli.sampling_flags import add_sampling_flags, sampling_fields
from corefw.config.args import UserArgs, add_flags
from corefw.errors import ConfigError
from corefw.observability.logging import configure_logging

if TYPE_CHECKING:
    from corefw.frontend.results import RequestOutput

__all__ = ["add_arguments", "run"]

_DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw generate``."""
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="text to continue")
    parser.add_argument("--model", dest="model.model", default=argparse.SUPPRESS, help="default: the demo model")
    parser.add_argument(
        "-i", "--input-file", metavar="FILE",
        help="more prompts: one a line; in a .jsonl file objects with prompt, prompt_token_ids or messages; - is stdin",
    )  # fmt: skip
    parser.add_argument("-o", "--output-file", metavar="FILE", default="-", help="JSON lines (default: stdout)")
    parser.add_argument("--n", type=int, default=1, help="outputs a prompt (default: 1)")
    parser.add_argument("--log-level", default="WARNING", help="of the engine (default: WARNING)")
    add_sampling_flags(parser)
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser, ENGINE_SECTIONS)


def run(namespace: argparse.Namespace) -> int:
    """Generate for all prompts together; a line of JSON a prompt, in their order."""
    prompts: list[Any] = [*namespace.prompts]
    if namespace.input_file is not None:
        prompts += _read(namespace.input_file)
    if not prompts:
        raise ConfigError("no prompts; give some as arguments or with --input-file")
    chats = [prompt["messages"] for prompt in prompts if _is_chat(prompt)]
    if chats and len(chats) < len(prompts):
        raise ConfigError("some prompts are texts or ids, others have messages; give one kind in a run")
    configure_logging(namespace.log_level, "offline")
    from corefw.llm import LLM  # brings torch

    settings = UserArgs.from_namespace(namespace).keywords()
    with open_output(namespace.output_file) as output, LLM(**settings) as llm:
        fields = {"max_tokens": _DEFAULT_MAX_TOKENS, "n": namespace.n, **sampling_fields(namespace)}
        if "stop" in fields:
            fields["stop"] = tuple(fields["stop"])
        params = llm.default_params(**fields)
        for result in llm.chat(chats, params) if chats else llm.generate(prompts, params):
            print(json.dumps(_described(result), ensure_ascii=False), file=output)
    return 0


def _read(name: str) -> Sequence[Any]:
    with open_input(name) as file:
        lines = [line.rstrip("\n") for line in file]
    if not name.endswith(".jsonl"):
        return [line for line in lines if line]
    prompts = []
    for number, line in enumerate(lines, start=1):
        try:
            prompt = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name}, line {number}: not JSON: {error}") from None
        if not _is_prompt(prompt):
            raise ConfigError(
                f"{name}, line {number}: is neither a text nor an object with prompt (a text), prompt_token_ids "
                "(a list) or nothing but messages (a list of objects)"
            )
        prompts.append(prompt)
    return prompts


def _is_prompt(prompt: Any) -> bool:
    """Of the right shape; what is in it the engine checks."""
    if isinstance(prompt, (str, list)):
        return True
    if not isinstance(prompt, dict):
        return False
    if _is_chat(prompt):
        messages = prompt["messages"]
        return len(prompt) == 1 and isinstance(messages, list) and all(isinstance(item, dict) for item in messages)
    return isinstance(prompt.get("prompt", ""), (str, list)) and isinstance(prompt.get("prompt_token_ids", []), list)


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, dict) and "messages" in prompt


def _described(result: RequestOutput) -> dict[str, Any]:
    return {
        "prompt": result.prompt,
        "num_prompt_tokens": len(result.prompt_token_ids),
        "num_cached_tokens": result.num_cached_tokens,
        "outputs": [
            {
                "text": output.text,
                "token_ids": output.token_ids,
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
            }
            for output in result.outputs
        ],
    }
