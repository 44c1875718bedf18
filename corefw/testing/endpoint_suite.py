"""Conformance suite of endpoints: mounted in the whole app, behind the key, beside the core's routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from starlette.routing import Mount, Route, WebSocketRoute

from corefw.interfaces.endpoint import Endpoint
from corefw.server.mounting import is_builtin
from corefw.testing.in_process_server import in_process_server
from corefw.testing.suite import PluginSuite

__all__ = ["EndpointSuite"]

_TASKS = frozenset({"generate"})


class EndpointSuite(PluginSuite):
    """For ``corefw.endpoint_plugins``."""

    plugin: ClassVar[type[Endpoint]]
    group = "endpoint_plugins"

    def test_it_has_routes_of_its_own(self) -> None:
        routes = self.plugin().routes()
        assert routes, "routes() is empty"
        for route in routes:
            assert isinstance(route, Route | WebSocketRoute | Mount), f"routes() has a {type(route).__name__}"

    def test_its_prefix_is_a_path(self) -> None:
        prefix = self.plugin.prefix
        assert prefix is None or prefix == "" or (prefix.startswith("/") and not prefix.endswith("/")), repr(prefix)

    def test_nothing_of_it_is_open_to_everybody(self) -> None:
        open_to_all = () if is_builtin(self.plugin()) else self.plugin.public_paths
        assert not open_to_all, "only the core's own endpoints may have public paths"

    def test_it_is_mounted_beside_the_core_and_started_and_stopped(self) -> None:
        with in_process_server(self.plugin()) as client:
            assert client.get("/health").status == 200

    def test_every_route_needs_the_key(self) -> None:
        with in_process_server(self.plugin(), with_key=False) as client:
            for method, path in self._served():
                if path in self.plugin.public_paths:
                    continue
                status = client.request(method, path).status
                assert status == 401, f"{method} {path} without a key answers {status}"

    def test_with_the_key_a_bad_body_is_the_clients_fault(self) -> None:
        with in_process_server(self.plugin()) as client:
            for method, path in self._served():
                status = client.request(method, path, body=None if method in ("GET", "DELETE") else b"{").status
                assert status < 500, f"{method} {path} with a broken body answers {status}"
                assert status not in (401, 404, 405), f"{method} {path} isn't served: {status}"

    def test_its_part_of_the_document_is_of_its_routes(self) -> None:
        documented = set(self.plugin().openapi().get("paths", {}))
        own = {route.path_format for route in self.plugin().routes() if isinstance(route, Route)}
        assert documented <= own, f"openapi() has {sorted(documented - own)}, which aren't routes"
        with in_process_server(self.plugin()) as client:
            assert set(client.get("/openapi.json").json()["paths"]) >= {self._prefix + path for path in documented}

    @property
    def _prefix(self) -> str:
        return f"/plugins/{self.plugin.name}" if self.plugin.prefix is None else self.plugin.prefix

    def _served(self) -> Iterator[tuple[str, str]]:
        if self.plugin.required_tasks and not self.plugin.required_tasks & _TASKS:
            return
        for route in self.plugin().routes():
            if isinstance(route, Route) and "{" not in route.path:
                yield from (
                    (method, self._prefix + route.path) for method in sorted((route.methods or set()) - {"HEAD"})
                )
