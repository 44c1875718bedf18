"""The front end and the bookkeeping half of the engine run without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.policy.sources import core_modules, module_name

_ROOMS = (
    "corefw",
    "corefw.errors",
    "corefw.env",
    "corefw.observability.",
    "corefw.messages.",
    "corefw.config.",
    "corefw.interfaces.",
    "corefw.plugin_system.",
    "corefw.models",
    "corefw.models.registry",
    "corefw.engine.",
    "corefw.frontend.",
    "corefw.server.",
    "corefw.cli.",
    "corefw.sdk",
    "corefw.sdk.config",
    "corefw.sdk.engine",
    "corefw.sdk.plugins",
    "corefw.sdk.rendering",
    "corefw.sdk.server",
    "corefw.sdk.shapes",
    "corefw.builtins.endpoints.",
    "corefw.builtins.kv_cache_specs.",
    "corefw.builtins.model_loaders.",
    "corefw.builtins.model_sources.",
    "corefw.builtins.platforms.",
    "corefw.builtins.schedulers.",
)


def _modules(room: str) -> list[str]:
    # A platform's device half runs in a worker and has torch in its hands.
    names = [module_name(path) for path in core_modules() if not path.stem.endswith("_runtime")]
    if not room.endswith("."):
        return [name for name in names if name == room]
    return [name for name in names if f"{name}.".startswith(room) and not name.endswith("__main__")]


def _imports_torch(code: str) -> str:
    code += "\nimport sys; print('TORCH' if 'torch' in sys.modules else 'FREE')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("room", _ROOMS, ids=lambda room: room.rstrip("."))
def test_a_room_imports_without_torch(room: str) -> None:
    names = _modules(room)
    code = "import sys, importlib\n" + "".join(
        f"importlib.import_module({name!r}); assert 'torch' not in sys.modules, {name!r}\n" for name in names
    )
    assert _imports_torch(code) == "FREE"


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"]], ids=" ".join)
def test_a_command_that_only_informs_imports_no_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['corefw', *{arguments!r}]\nfrom corefw.cli.main import main\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\nassert not code, code\n"
    )
    assert _imports_torch(code) == "FREE"
