from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from corefw.config.engine_config import ResolvedPlugin
from corefw.engine.process import CoreProcess
from corefw.errors import EngineStartError
from corefw.plugin_system.manager import PluginManager
from corefw.testing.pytest_plugin import RegisterPlugin
from tests.engine.fake_engine import config, expected, plugins, request
from tests.engine.leftovers import exists, nothing_left, short_directory, wait_until

# A core that dies with its parent does so at once; this is three times the promise.
DIES_WITHIN_S = 3.0
KILLS = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def sockets_in(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    tmp_path_factory.getbasetemp()  # else it would be made in the directory that is watched
    with short_directory(monkeypatch) as directory:
        yield directory


@pytest.fixture
async def spawned(sockets_in: Path) -> AsyncIterator[CoreProcess]:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        yield process
        process.close()


async def start_error(process: CoreProcess, model: str, **overrides: object) -> EngineStartError:
    process.configure(config(model=model, **overrides))
    with pytest.raises(EngineStartError) as raised:
        await process.connect()
    return raised.value


def test_spawning_needs_nothing_beyond_the_standard_library() -> None:
    code = "import sys, corefw.engine.process; print(*{m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    completed = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=repository())
    assert completed.stderr == ""
    assert set(completed.stdout.split()) == {"__main__", "corefw"}


@contextlib.contextmanager
def free_descriptors(number: int) -> Iterator[None]:
    """All that this process may have open are open, but so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(number):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_can_not_be_had_is_an_error_and_leaves_nothing(sockets_in: Path) -> None:
    errors: list[str] = []
    with nothing_left(sockets_in):
        while True:
            with free_descriptors(len(errors)):
                try:
                    process = CoreProcess.spawn(preload=())
                except EngineStartError as error:
                    errors.append(str(error))
                    continue
            process.close()
            break
    assert len(errors) >= 4  # the board's memory, the sockets, what says that the child runs, and that it doesn't
    assert set(errors) == {"no process for the engine core can be started: Too many open files"}


async def test_a_child_reports_its_stages_and_its_plan(spawned: CoreProcess) -> None:
    stages: list[str] = []
    spawned.configure(config())
    client = await spawned.connect(stages.append)
    assert client.plan.num_blocks == 256
    assert stages[0] == "importing"
    assert "loading the model" in stages
    await client.stop(5)
    assert spawned.exit_text() == "exited with status 0"


async def test_a_wrong_configuration_is_told_apart_by_its_kind(spawned: CoreProcess) -> None:
    error = await start_error(spawned, "fake:config-error")
    assert (error.kind, str(error)) == ("config", "told that the configuration is wrong")


async def test_a_missing_plugin_is_told_apart_by_its_kind(spawned: CoreProcess) -> None:
    error = await start_error(spawned, "fake", scheduler="defautl")
    assert error.kind == "plugin"
    assert "'defautl' asked for by --scheduler" in str(error)


async def test_a_child_without_the_parents_plugins_refuses_to_start(spawned: CoreProcess) -> None:
    foreign = ResolvedPlugin(group="schedulers", name="x", value="x:X", distribution="elsewhere", version="1")
    error = await start_error(spawned, "fake", resolved=(*plugins().resolved(), foreign))
    assert error.kind == "plugin"
    assert "elsewhere" in str(error)


async def test_any_other_error_carries_its_type_and_the_cores_traceback(spawned: CoreProcess) -> None:
    error = await start_error(spawned, "fake:error")
    assert (error.kind, str(error)) == ("engine", "ValueError: told to fail")
    assert "fake_executor.py" in error.details


async def test_a_child_that_exits_without_a_word_is_reported_with_its_status(spawned: CoreProcess) -> None:
    assert "exited with status 3 before it was ready" in str(await start_error(spawned, "fake:exit"))


async def test_a_child_that_is_killed_is_reported_with_the_signal(spawned: CoreProcess) -> None:
    assert "was killed by signal 9 (SIGKILL) before it was ready" in str(await start_error(spawned, "fake:kill"))


@pytest.mark.parametrize(
    ("source", "end"),
    [("import os; os._exit(3)", "exited with status 3"), (KILLS, "was killed by signal 9 (SIGKILL)")],
)
async def test_a_plugin_that_ends_the_child_while_it_is_loaded_is_named(
    spawned: CoreProcess, register_plugin: RegisterPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    source: str, end: str,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugin_that_ends.py").write_text(source, "utf-8")
    register_plugin("general_plugins", "ends", "plugin_that_ends", distribution="acme")
    error = await start_error(spawned, "fake", resolved=PluginManager.discover().resolved())
    expected = f"{end} before it was ready, while it was loading plugin acme/ends (general_plugins)"
    assert expected in str(error)


async def test_after_a_plugin_is_loaded_it_is_not_named_any_more(
    spawned: CoreProcess, register_plugin: RegisterPlugin
) -> None:
    register_plugin("general_plugins", "fine", "json", distribution="acme")
    error = await start_error(spawned, "fake:kill", resolved=PluginManager.discover().resolved())
    assert "before it was ready, while it was loading the model" in str(error)


async def test_a_child_that_died_before_its_configuration_is_reported(spawned: CoreProcess) -> None:
    os.kill(spawned.pid, signal.SIGKILL)
    assert spawned.wait(5)
    with pytest.raises(EngineStartError, match="SIGKILL"):
        spawned.configure(config())


async def test_what_a_child_prints_goes_to_standard_error(spawned: CoreProcess, capfd: pytest.CaptureFixture) -> None:
    process = CoreProcess.spawn(preload=("this",))  # prints when imported
    process.configure(config())
    client = await process.connect()
    await client.stop(5)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Beautiful is better than ugly" in captured.err


async def test_a_cancelled_start_leaves_no_process(spawned: CoreProcess) -> None:
    spawned.configure(config(model="fake:slow"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(spawned.connect(), 0.5)
    assert not spawned.alive


async def test_there_is_a_folder_of_sockets_only_while_they_are_being_connected(
    spawned: CoreProcess, sockets_in: Path
) -> None:
    spawned.configure(config())
    assert folders(sockets_in) == []
    client = await spawned.connect()
    assert folders(sockets_in) == []
    client.add_request(request("a"))
    received = [output async for output in first_outputs(client, 5)]
    assert received == expected("a")
    await client.stop(5)


def folders(parent: Path) -> list[Path]:
    return list(parent.iterdir())


async def first_outputs(client, num_tokens: int) -> AsyncIterator[int]:
    while num_tokens > 0:
        for output in (await client.next_outputs()).outputs:
            for token in output.new_token_ids:
                num_tokens -= 1
                yield token


async def test_the_child_ignores_interrupts_and_terminations(spawned: CoreProcess) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # at once: its interpreter is still starting
        os.kill(spawned.pid, number)
    spawned.configure(config())
    client = await spawned.connect()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(spawned.pid, number)
    client.add_request(request("a"))
    assert [token async for token in first_outputs(client, 5)] == expected("a")
    await client.stop(5)


def test_a_core_spawned_by_a_thread_outlives_it() -> None:
    code = """if True:
        import asyncio, threading
        from corefw.engine.process import CoreProcess
        from tests.engine.fake_engine import config
        spawned = []
        thread = threading.Thread(target=lambda: spawned.append(CoreProcess.spawn(preload=())))
        thread.start()
        thread.join()
        spawned[0].configure(config())
        async def start():
            client = await spawned[0].connect()
            await client.stop(5)
        asyncio.run(start())
        print(spawned[0].exit_text())
    """
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repository())
    assert completed.stdout.strip() == "exited with status 0", completed.stderr


def start_parent(stage: str, directory: Path) -> tuple[subprocess.Popen[str], int]:
    """A parent in a process group of its own, as a terminal would start it, and its core's process id."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.core_parent", stage],
        stdout=subprocess.PIPE,
        text=True,
        cwd=repository(),
        env={**os.environ, "TMPDIR": str(directory)},
        process_group=0,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("stage", ["spawned", "loading", "running", "stuck", "threaded"])
def test_the_core_dies_with_a_killed_parent(stage: str, sockets_in: Path) -> None:
    parent, core = start_parent(stage, sockets_in)
    with parent:
        assert exists(core)
        parent.kill()
        assert wait_until(lambda: not exists(core), DIES_WITHIN_S)
    assert list(sockets_in.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_lets_the_parent_drain(number: signal.Signals, sockets_in: Path) -> None:
    parent, core = start_parent("running", sockets_in)
    with parent:
        assert parent.stdout is not None
        os.killpg(parent.pid, number)
        # The first token was taken before the signal.
        assert parent.stdout.readline().split() == ["19", "length"]
        assert parent.wait(10) == 0
    assert not exists(core)
    assert list(sockets_in.iterdir()) == []


def test_a_core_starts_importing_before_it_is_configured(sockets_in: Path) -> None:
    process = CoreProcess.spawn(preload=("decimal", "no_such_module", "tests.engine.core_parent"))
    maps = Path(f"/proc/{process.pid}/maps")
    assert wait_until(lambda: "_decimal" in maps.read_text(), 10)
    process.close()


def repository() -> Path:
    return Path(__file__).parents[2]
