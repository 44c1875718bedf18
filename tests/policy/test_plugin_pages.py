"""Every Python snippet of these pages is a piece of a sample plugin that an end-to-end test runs."""

from __future__ import annotations

import re

import pytest

from tests.policy.sources import ROOT

_PAGES = {
    "scheduling": "scheduling",
    "configuration": "house",
    "loading": "weights",
    "front_end": "gate",
    "server": "doors",
    "kv_connector": "file_connector",
    "kv_cache": "kv_policies",
    "io_processor": "colours",
}
_SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(("page", "sample"), _PAGES.items())
def test_each_snippet_of_a_page_is_in_its_sample(page: str, sample: str) -> None:
    text = (ROOT / "docs" / "plugins" / f"{page}.md").read_text(encoding="utf-8")
    package = ROOT / "tests" / "sample_plugins" / sample / f"corefw_sample_{sample}"
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(package.glob("*.py")))
    snippets = _SNIPPET.findall(text)
    assert snippets
    assert [snippet for snippet in snippets if snippet not in source] == []
