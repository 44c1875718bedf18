"""The routes pass the suite of endpoints."""

from __future__ import annotations

from corefw.testing.endpoint_suite import EndpointSuite
from corefw_endpoints.detokenize import DetokenizeEndpoint
from corefw_endpoints.tokenize import TokenizeEndpoint
from corefw_endpoints.tokenizer_info import TokenizerInfoEndpoint


class TestTokenize(EndpointSuite):
    plugin = TokenizeEndpoint


class TestDetokenize(EndpointSuite):
    plugin = DetokenizeEndpoint


class TestTokenizerInfo(EndpointSuite):
    plugin = TokenizerInfoEndpoint


def test_the_suite_has_its_cases() -> None:
    assert TestTokenize.group == "endpoint_plugins"
