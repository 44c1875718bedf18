"""Rules that every module of the core keeps."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from tests.policy.packs import PACKS, package_of, python_files
from tests.policy.sources import CORE, core_modules, functions, module_name, parse

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
# ``module:function``, with the reason in a comment. An entry leaves as soon as its function has become shorter.
LONG_FUNCTIONS: frozenset[str] = frozenset()

_DEVICE_APIS = {"cuda", "hip", "mps", "musa", "npu", "xpu"}
_DEVICE_TYPES = _DEVICE_APIS | {"rocm", "tpu", "hpu"}
_PRIVATE_BY_CUSTOM = {"T", "logger"}  # a type variable, the module's logger
_VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def _where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(CORE.parent)}:{getattr(node, 'lineno', 1)}"


def _is_device_api(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _DEVICE_APIS and isinstance(node.value, ast.Name) and node.value.id == "torch"
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _DEVICE_APIS
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return any(isinstance(side, ast.Constant) and side.value in _DEVICE_TYPES for side in sides)
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
    return any(name.split(".")[:2] == ["torch", api] for name in names for api in _DEVICE_APIS)


def test_no_device_api_in_the_core() -> None:
    assert [_where(p, node) for p in core_modules() for node in ast.walk(parse(p)) if _is_device_api(node)] == []


def _reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in {"environ", "environb", "getenv"} and isinstance(node.value, ast.Name)
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
    return False


def test_environment_variables_are_read_in_one_place() -> None:
    others = [path for path in core_modules() if path != CORE / "env.py"]
    assert [_where(p, node) for p in others for node in ast.walk(parse(p)) if _reads_environment(node)] == []


def test_only_one_module_searches_for_distributions() -> None:
    searching = {"entry_points", "distributions", "Distribution", "DistributionFinder"}

    def reads(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.module == "importlib.metadata" and any(a.name in searching for a in node.names)
        return isinstance(node, ast.Attribute) and ast.unparse(node).endswith(
            tuple(f"metadata.{name}" for name in searching)
        )

    others = [path for path in core_modules() if path != CORE / "plugin_system" / "installed.py"]
    assert [_where(p, node) for p in others for node in ast.walk(parse(p)) if reads(node)] == []


def _searches_the_current_directory(path: Path) -> list[str]:
    """Uses of ``sys.executable`` that aren't the head of a command with ``-P``."""
    nodes = list(ast.walk(parse(path)))
    safe = set()
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):
            for word, next_word in pairwise(node.elts):
                if isinstance(next_word, ast.Constant) and next_word.value == "-P":
                    safe.add(word)
    used = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == "executable"]
    return [_where(path, node) for node in used if node not in safe]


def test_a_child_never_imports_from_the_current_directory() -> None:
    of_packs = [file for pack in PACKS for file in python_files(pack / package_of(pack))]
    commands = {path: _searches_the_current_directory(path) for path in (*core_modules(), *of_packs)}
    assert {path: where for path, where in commands.items() if where} == {}


def test_every_module_has_a_docstring() -> None:
    missing = [module_name(path) for path in core_modules() if not ast.get_docstring(parse(path))]
    assert missing == []


def test_no_module_has_a_vague_name() -> None:
    vague = [path for path in CORE.rglob("*") if path.stem.strip("_") in _VAGUE_NAMES]
    assert vague == []


def _defined(path: Path) -> set[str]:
    names: set[str] = set()
    for node in parse(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_") and name not in _PRIVATE_BY_CUSTOM}


def _exported(path: Path) -> list[str] | None:
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


_CONTRACTS = [p for room in ("interfaces", "messages", "config") for p in sorted((CORE / room).rglob("*.py"))]


@pytest.mark.parametrize("path", [p for p in _CONTRACTS if p.name != "__init__.py"], ids=module_name)
def test_a_contract_exports_all_that_it_defines_publicly(path: Path) -> None:
    exported = _exported(path)
    assert exported is not None, "has no __all__"
    assert sorted(_defined(path) - set(exported)) == []
    assert len(set(exported)) == len(exported)


def test_a_file_fits_in_the_reader_s_head() -> None:
    lengths = {module_name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in core_modules()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = {
        f"{module_name(path)}:{function.name}"
        for path in core_modules()
        for function in functions(path)
        if (function.end_lineno or function.lineno) - function.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)
