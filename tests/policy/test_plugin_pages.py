"""Every Python snippet of these pages is a piece of code that other tests run: a sample plugin's or the scaffold's."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from corefw.cli.plugins.kinds import KINDS
from corefw.cli.plugins.scaffold import Project, render
from corefw.plugin_system.groups import GROUPS
from tests.policy.sources import ROOT


@dataclass(frozen=True)
class Sample:
    """A distribution of ``tests/sample_plugins``."""

    name: str

    def source(self) -> str:
        """All of its modules."""
        package = ROOT / "tests" / "sample_plugins" / self.name / f"corefw_sample_{self.name}"
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(package.glob("*.py")))


@dataclass(frozen=True)
class New:
    """What ``corefw plugins new KIND NAME`` writes."""

    kind: str
    name: str

    def source(self) -> str:
        """All of its modules, those of its tests too."""
        return "\n".join(text for path, text in render(Project(self.kind, self.name)) if path.endswith(".py"))


_PAGES: dict[str, tuple[Sample | New, ...]] = {
    "attention_backend": (New("attention-backend", "my-attention"),),
    "authors": (New("strategy", "my-thing"),),
    "communicator": (New("communicator", "my-link"),),
    "configuration": (Sample("house"),),
    "core_launcher": (New("core-launcher", "my-launcher"),),
    "endpoint": (New("endpoint", "my-oracle"),),
    "executor": (New("executor", "my-executor"),),
    "front_end": (Sample("gate"),),
    "general": (New("general", "my-house"), Sample("general")),
    "io_processor": (Sample("colours"),),
    "kv_cache": (Sample("kv_policies"),),
    "kv_cache_spec": (New("kv-cache-spec", "my-state"),),
    "kv_connector": (Sample("file_connector"),),
    "loading": (Sample("weights"),),
    "logits_processor": (New("logits-processor", "never-say"),),
    "model": (New("model", "MyForCausalLM"), New("model-implementation", "my-models")),
    "model_loader": (New("loader", "my-format"),),
    "model_source": (New("source", "my-shelf"),),
    "op_provider": (New("op-provider", "my-ops"),),
    "platform": (New("platform", "my-board"),),
    "quantization_method": (New("quantization-method", "my-bits"),),
    "scheduling": (Sample("scheduling"), New("scheduler", "my-scheduler")),
    "server": (Sample("doors"),),
    "stat_logger": (New("stat-logger", "my-ledger"), Sample("stats")),
}
# Pages whose snippets are run as they stand: what they print.
_WHOLE = {"compatibility": "connectors are used here\n"}
_WITHOUT_PYTHON = {"engine_hooks", "hooks", "tools"}
_FOLDER = ROOT / "docs" / "plugins"
_SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ENTRY = re.compile(r"^[\w.-]+ = \"corefw_.*\"$", re.MULTILINE)
_NEW = re.compile(r"`corefw plugins new (\S+) (\S+)`")


def _text(page: str) -> str:
    return (_FOLDER / f"{page}.md").read_text(encoding="utf-8")


def _is_in(snippet: str, source: str) -> bool:
    """Blank lines don't count, and methods stand without their class in a page."""
    lines = [line for line in snippet.splitlines() if line.strip()]
    whole = "\n".join(line for line in source.splitlines() if line.strip()) + "\n"
    return any("\n".join(f"{indent}{line}" for line in lines) + "\n" in whole for indent in ("", "    "))


def test_every_page_is_in_a_table() -> None:
    tables = [set(_PAGES), set(_WHOLE), _WITHOUT_PYTHON]
    assert set().union(*tables) == {path.stem for path in _FOLDER.glob("*.md")}
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.parametrize("page", _PAGES)
def test_each_snippet_of_a_page_is_in_code_that_is_run(page: str) -> None:
    snippets = _SNIPPET.findall(_text(page))
    sources = [each.source() for each in _PAGES[page]]
    assert snippets
    assert [snippet for snippet in snippets if not any(_is_in(snippet, source) for source in sources)] == []
    assert [source for source in sources if not any(_is_in(snippet, source) for snippet in snippets)] == []


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_tells_the_command_and_the_entry_points_that_there_are(page: str) -> None:
    text = _text(page)
    written = [New(*found) for found in _NEW.findall(text) if found[0] in KINDS]
    assert [each for each in written if each not in _PAGES[page]] == []
    known = "\n".join(_project_file(each) for each in _PAGES[page])
    assert [line for line in _ENTRY.findall(text) if line not in known.splitlines()] == []


def _project_file(origin: Sample | New) -> str:
    if isinstance(origin, New):
        return dict(render(Project(origin.kind, origin.name)))["pyproject.toml"]
    return (ROOT / "tests" / "sample_plugins" / origin.name / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", _WHOLE)
def test_a_snippet_that_is_a_whole_program_prints_what_it_should(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for snippet in _SNIPPET.findall(_text(page)):
        exec(compile(snippet, page, "exec"), {})
    assert capsys.readouterr().out == _WHOLE[page]


@pytest.mark.parametrize("page", sorted(_WITHOUT_PYTHON))
def test_a_page_that_has_no_snippet_has_none(page: str) -> None:
    assert _SNIPPET.findall(_text(page)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page_with_an_example_and_authors_find_it(kind: str) -> None:
    (group, *_) = KINDS[kind].entries
    (page,) = {each.docs for each in GROUPS if each.name == group}
    name = page.removeprefix("docs/plugins/")
    assert name.removesuffix(".md") in _PAGES
    (line,) = re.findall(rf"^\| `{kind}` .*", _text("authors"), re.MULTILINE)
    assert f"]({name})" in line
