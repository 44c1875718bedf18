"""``corefw explain``: what a server with these flags would choose, and why nothing else."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw import env
from corefw.cli.config_file import add_config_flag
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.config.args import UserArgs, add_flags
from corefw.config.engine_config import ServerConfig
from corefw.observability.logging import configure_logging

if TYPE_CHECKING:
    from corefw.config.redaction import Redactor
    from corefw.engine.explain import Explanation

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw explain``: those of ``corefw serve``, and a device."""
    parser.add_argument(
        "model.model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="as for corefw serve; its files are fetched, its weights aren't read",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--capability-file",
        metavar="FILE",
        help="JSON or YAML that describes a device to explain for, instead of this machine's",
    )
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Print the choices; 1 when an engine wouldn't start so."""
    from corefw.config.device_description import read_device_description
    from corefw.config.redaction import Redactor
    from corefw.engine.explain import explain
    from corefw.plugin_system.manager import PluginManager

    args = UserArgs.from_namespace(namespace)
    server_config = ServerConfig(**args.section("server"))
    configure_logging(server_config.log_level or "WARNING", "explain", server_config.log_format)
    file = namespace.capability_file
    described = None if file is None else read_device_description(Path(file))
    section = args.section("plugins")
    plugins = PluginManager.discover(
        section.get("plugins"), section.get("plugin_policy", "normal"), section.get("plugin_lock")
    )
    explanation = explain(args, plugins, described)
    shown = _as_json(explanation, Redactor(args, env.secrets()), args)
    print(json.dumps(shown, indent=2) if namespace.json else _as_text(shown))
    if explanation.problem is not None:
        print(f"corefw explain: {shown['problem']}", file=sys.stderr)
        return 1
    return 0


def _as_json(explanation: Explanation, redactor: Redactor, args: UserArgs) -> dict[str, Any]:
    text, config = redactor.text, explanation.config
    return {
        "model": {
            "reference": text(config.model.model),
            "architecture": config.model_info.architecture,
            "max_model_len": config.max_model_len,
        },
        "selections": [
            {
                "what": selection.what,
                "chosen": text(selection.chosen),
                "reason": text(selection.reason),
                "rejected": {rejected.name: text(rejected.reason) for rejected in selection.rejected},
            }
            for selection in explanation.selections
        ],
        "decisions": [
            {"what": what, "chosen": text(chosen), "why": text(why)} for what, chosen, why in explanation.decisions
        ],
        "settings": redactor.settings(args),
        "problem": None if explanation.problem is None else text(explanation.problem),
    }


def _as_text(shown: dict[str, Any]) -> str:
    model = shown["model"]
    lines = [f"{model['reference']}: {model['architecture']}, up to {model['max_model_len']} tokens"]
    for selection in shown["selections"]:
        lines.append(f"{selection['what']}: {selection['chosen']} ({selection['reason']})")
        lines += [f"  not {name}: {reason}" for name, reason in selection["rejected"].items()]
    lines += [f"{decision['what']}: {decision['chosen']} ({decision['why']})" for decision in shown["decisions"]]
    lines += [f"set: {key} = {value}" for key, value in shown["settings"].items()]
    return "\n".join(lines)
