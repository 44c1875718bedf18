from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corefw.builtins.executors.external_launcher import ExternalLauncherExecutor
from corefw.config.args import UserArgs
from corefw.engine.resolver import resolve_config
from corefw.errors import ConfigError
from corefw.plugin_system.manager import PluginManager
from corefw.testing.executor_suite import ExecutorSuite
from corefw.testing.offline_runs import PROMPTS, open_tiny, tiny_llama, tokens_of

_ROOT = Path(__file__).parents[3]
_LIMIT_S = 240


@pytest.fixture(scope="module", params=["tensor", pytest.param("pipeline", marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the script told on each of two ranks."""
    out = tmp_path_factory.mktemp("launched") / "told"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ["-m", "tests.builtins.executors.launched_script", request.param, str(tiny_llama()), str(out)]
    done = subprocess.run(
        [*torchrun, *script], cwd=_ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]


def test_launched_ranks_give_the_tokens_of_one_process(ranks: list[dict[str, Any]]) -> None:
    with open_tiny() as llm:
        expected = tokens_of(llm)
    assert [told["greedy"] for told in ranks] == [expected, expected]


def test_launched_ranks_agree_where_requests_have_to_give_way(ranks: list[dict[str, Any]]) -> None:
    with open_tiny() as llm:
        expected = tokens_of(llm, PROMPTS * 2)
    assert [told["preempted"] for told in ranks] == [expected, expected]


def test_outputs_without_a_seed_are_the_same_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["seedless"] == ranks[1]["seedless"]
    assert any(first != second for first, second in ranks[0]["seedless"])


def test_nothing_stays_in_use_and_calls_answer_for_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert [(told["used"], len(told["batches"])) for told in ranks] == [(0, 2), (0, 2)]


def test_ranks_that_were_set_differently_all_refuse_to_start_and_say_in_what(ranks: list[dict[str, Any]]) -> None:
    expected = "the ranks weren't started alike: scheduler.max_num_seqs is 8 on rank 0, 9 on rank 1"
    assert [told["set differently"].partition(". ")[0] for told in ranks] == [expected, expected]


def test_ranks_that_are_driven_differently_all_stop_and_say_so(ranks: list[dict[str, Any]]) -> None:
    for told in ranks:
        assert "the ranks don't compute the same step (rank 0: step " in told["driven differently"]


@pytest.mark.slow
class TestOneLaunchedRank(ExecutorSuite):
    plugin = ExternalLauncherExecutor

    @pytest.fixture(autouse=True)
    def _launched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _launch(monkeypatch, 1)


def _launch(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    variables = {"RANK": 0, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def _open(**settings: Any) -> Any:
    return open_tiny(distributed_executor_backend="external_launcher", **settings).__enter__()


def test_a_script_that_nobody_launched_is_told_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="start the script with torchrun --nproc-per-node 2 SCRIPT"):
        _open(tensor_parallel_size=2)


def test_as_many_ranks_as_the_sizes_make_have_to_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    _launch(monkeypatch, 3)
    with pytest.raises(ConfigError, match="3 ranks were launched, but the parallel sizes make 2"):
        _open(tensor_parallel_size=2)


def test_a_server_is_not_driven_alike_on_every_rank() -> None:
    args = UserArgs.from_keywords(model=str(tiny_llama()), distributed_executor_backend="external_launcher")
    with pytest.raises(ConfigError, match="external_launcher is for scripts"):
        resolve_config(args, PluginManager.discover(""), interactive=True)
