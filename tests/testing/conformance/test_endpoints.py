"""The core's own routes pass the suite of endpoints."""

from __future__ import annotations

from corefw.builtins.endpoints.chat import ChatEndpoint
from corefw.builtins.endpoints.completions import CompletionsEndpoint
from corefw.builtins.endpoints.docs import DocsEndpoint
from corefw.builtins.endpoints.metrics import MetricsEndpoint
from corefw.builtins.endpoints.models import ModelsEndpoint
from corefw.builtins.endpoints.openapi import OpenApiEndpoint
from corefw.builtins.endpoints.system import SystemEndpoint
from corefw.testing.endpoint_suite import EndpointSuite
from corefw.testing.in_process_server import builtin_endpoints


class TestCompletions(EndpointSuite):
    plugin = CompletionsEndpoint


class TestChat(EndpointSuite):
    plugin = ChatEndpoint


class TestModels(EndpointSuite):
    plugin = ModelsEndpoint


class TestSystem(EndpointSuite):
    plugin = SystemEndpoint


class TestMetrics(EndpointSuite):
    plugin = MetricsEndpoint


class TestOpenApi(EndpointSuite):
    plugin = OpenApiEndpoint


class TestDocs(EndpointSuite):
    plugin = DocsEndpoint


def test_each_of_them_has_its_suite() -> None:
    suites = {suite.plugin for suite in EndpointSuite.__subclasses__() if suite.__module__ == __name__}
    assert suites == {type(endpoint) for endpoint in builtin_endpoints()}
