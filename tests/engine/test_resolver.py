"""From what the user said to a frozen configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from corefw.config.args import UserArgs
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.engine.resolver import resolve_config, with_tokenizer_size
from corefw.errors import ConfigError, ModelSourceError, PluginError
from corefw.interfaces.model_loader import ModelLoader
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.interfaces.platform import DeviceRuntime, Platform, Proposal
from corefw.interfaces.selection import Selection
from corefw.plugin_system.manager import LoadedPlugin


class Source(ModelSource):
    name = "memory"

    def supports(self, reference: str) -> str | None:
        return None if reference.startswith("mem:") else "does not start with mem:"

    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:
        return ModelFiles(reference=reference, source=self.name, root="/", weights=("w",))


class Loader(ModelLoader):
    name = "memory"

    def supports(self, files: ModelFiles) -> str | None:
        return None

    def read_info(self, files: ModelFiles) -> ModelInfo:
        return ModelInfo(
            files=files,
            loader=self.name,
            architecture="X",
            hf_config={"num_hidden_layers": 3, "num_attention_heads": 6},
            checkpoint_dtype=files.reference.removeprefix("mem:"),
            max_position=64,
            vocab_size=10,
            eos_ids=(1,),
        )

    def weights(self, info: ModelInfo, dtype: Any) -> Any:
        return iter(())


class Device(Platform):
    name = "plain"
    device_type = "cpu"
    computes_on_host = True
    reason: ClassVar[str | None] = None
    has: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    def unavailable_reason(self) -> str | None:
        return self.reason

    def dtypes(self) -> Sequence[str]:
        return self.has

    def attention_order(self) -> Sequence[str]:
        return ()

    def propose(self, model: ModelInfo, explicit: frozenset[str], *, interactive: bool) -> Sequence[Proposal]:
        return (Proposal("scheduler", "max_num_seqs", 7, "seven is right here"),)

    def runtime(self, local_rank: int) -> DeviceRuntime:
        raise NotImplementedError


def platform(name: str, reason: str | None = None, has: tuple[str, ...] = Device.has) -> type[Device]:
    return type(name, (Device,), {"name": name, "reason": reason, "has": has})


class Plugins:
    """A plugin set in memory, with the face of the manager that the resolver uses."""

    def __init__(self, *platforms: tuple[str, type[Platform]]) -> None:
        self.platforms = platforms or (("corefw", platform("plain")),)
        self.selections: list[Selection] = []
        self.verdicts = ()

    def found(self, group: str, name: str) -> None:
        """By metadata: nothing."""

    def names(self, group: str) -> tuple[str, ...]:
        return ("X",) if group == "model_plugins" else ()

    def get(self, group: str, name: str, *, setting: str) -> Any:
        raise PluginError(f"no {name} for {setting} in {group}")

    def load_all(self, group: str) -> tuple[LoadedPlugin, ...]:
        if group == "platform_plugins":
            return tuple(LoadedPlugin(kind.name, owner, kind) for owner, kind in self.platforms)
        return (LoadedPlugin("memory", "corefw", {"model_sources": Source, "model_loaders": Loader}[group]),)

    def collect(self, *_: object) -> tuple[()]:
        return ()

    def record(self, selection: Selection) -> None:
        self.selections.append(selection)

    def resolved(self) -> tuple[()]:
        return ()


def resolve(plugins: Any = None, **keywords: object) -> Any:
    return resolve_config(UserArgs.from_keywords(**{"model": "mem:bfloat16", **keywords}), plugins or Plugins())


@pytest.mark.parametrize("method", ["propose", "dtypes"])
@pytest.mark.parametrize(("answer", "why"), [(KeyError("table"), "KeyError: 'table'"), (None, "it returned NoneType")])
def test_a_platform_that_raises_or_answers_nonsense_is_named(method: str, answer: Any, why: str) -> None:
    def answering(*_: object, **__: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    answering.__name__ = method
    wrong = type("Wrong", (Device,), {"name": "wrong", method: answering})
    with pytest.raises(PluginError, match=f"platform 'wrong' failed in {method}: {why}"):
        resolve(Plugins(("mine", wrong)))


@pytest.mark.parametrize(("kind", "method"), [(Source, "resolve"), (Loader, "read_info")])
def test_a_source_or_loader_that_raises_is_named(kind: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise KeyError("table")

    monkeypatch.setattr(kind, method, failing)
    with pytest.raises(PluginError, match=f"model {kind.__name__.lower()} '.*' failed in failing: KeyError: 'table'"):
        resolve()


def test_a_proposal_changes_a_default_and_keeps_its_reason() -> None:
    config = resolve()
    assert config.scheduler.max_num_seqs == 7
    assert ("scheduler.max_num_seqs", "7", "seven is right here") in config.decisions


def test_several_ranks_are_told_with_their_executor() -> None:
    decisions = resolve(tensor_parallel_size=2, pipeline_parallel_size=3).decisions
    assert ("ranks", "6", "tensor 2 x pipeline 3, run by executor mp") in decisions
    assert "ranks" not in {what for what, _, _ in resolve().decisions}


def test_what_the_user_set_beats_a_proposal() -> None:
    assert resolve(max_num_seqs=3).scheduler.max_num_seqs == 3


@pytest.mark.parametrize(
    ("checkpoint", "has", "chosen"),
    [
        ("bfloat16", ("float32", "bfloat16"), "bfloat16"),
        ("float32", ("bfloat16", "float32"), "float32"),
        ("block", ("bfloat16", "float32"), "bfloat16"),
        ("block", ("float32",), "float32"),
        ("float16", ("bfloat16", "float32"), "bfloat16"),
    ],
)
def test_the_automatic_dtype_follows_checkpoint_and_device(checkpoint: str, has: tuple[str, ...], chosen: str) -> None:
    plugins = Plugins(("corefw", platform("plain", has=has)))
    assert resolve(plugins, model=f"mem:{checkpoint}").dtype == chosen


def test_a_dtype_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--dtype float16 isn't available on platform plain"):
        resolve(dtype="float16")


def test_an_external_platform_goes_over_a_built_in_one() -> None:
    config = resolve(Plugins(("corefw", platform("plain")), ("acme", platform("fast"))))
    assert config.platform == "fast"


def test_an_unavailable_external_platform_leaves_the_built_in_one_and_its_reason() -> None:
    plugins = Plugins(("corefw", platform("plain")), ("acme", platform("fast", "no such card")))
    config = resolve(plugins)
    assert config.platform == "plain"
    assert "not fast: no such card" in str(next(item for item in plugins.selections if item.what == "platform"))


def test_two_available_external_platforms_need_a_name() -> None:
    platforms = (("corefw", platform("plain")), ("a", platform("one")), ("b", platform("two")))
    with pytest.raises(ConfigError, match=r"one, two; choose one with --platform"):
        resolve(Plugins(*platforms))
    assert resolve(Plugins(*platforms), platform="two").platform == "two"


def test_a_platform_that_can_not_be_made_is_named() -> None:
    class Broken(Device):
        name = "broken"

        def __init__(self) -> None:
            raise OSError("no driver")

    with pytest.raises(PluginError, match=r"'broken' of acme can't be made: OSError: no driver"):
        resolve(Plugins(("acme", Broken)))


def test_a_context_beyond_what_the_model_declares_is_refused() -> None:
    assert resolve(max_model_len=64).max_model_len == 64
    with pytest.raises(ConfigError, match=r"--max-model-len 65 is more than the 64 positions"):
        resolve(max_model_len=65)


def test_a_reference_that_no_source_knows_says_what_each_expects() -> None:
    with pytest.raises(ModelSourceError, match="does not start with mem:"):
        resolve(model="elsewhere")


def test_ids_are_those_of_the_tokenizer_and_never_more_than_the_vocabulary() -> None:
    config = resolve()
    assert config.num_token_ids == config.model_info.vocab_size == 10
    assert with_tokenizer_size(config, 8).num_token_ids == 8
    assert with_tokenizer_size(config, 99).num_token_ids == 10


def test_one_of_several_engines_is_one_of_them() -> None:
    parallel = resolve(data_parallel_size=3, data_parallel_rank=2).parallel
    assert (parallel.num_own_engines, parallel.data_parallel_rank) == (1, 2)
    with pytest.raises(ConfigError, match="--data-parallel-rank 3 isn't one of --data-parallel-size 3"):
        resolve(data_parallel_size=3, data_parallel_rank=3)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"pipeline_parallel_size": 4}, "--pipeline-parallel-size 4 is more than the model's 3 layers; use at most 3"),
        ({"tensor_parallel_size": 7}, "--tensor-parallel-size 7 is more than the model's 6 query heads; use at most 6"),
        ({"data_parallel_size": 4096, "tensor_parallel_size": 2}, "--tensor-parallel-size 2 would be 8192 processes"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_before_a_rank_is_started(sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve(**sizes)


def test_ranks_of_an_executor_that_may_have_other_machines_are_not_counted_against_this_one() -> None:
    far = resolve(data_parallel_size=4096, data_parallel_rank=0, tensor_parallel_size=6).parallel
    assert far.num_own_engines == 1
    assert resolve(data_parallel_size=4096, distributed_executor_backend="far").parallel.num_own_engines == 4096
    assert resolve(data_parallel_size=4096, data_parallel_backend="far").parallel.num_own_engines == 4096


def test_a_communicator_that_is_not_there_stops_the_start_whatever_the_number_of_ranks() -> None:
    with pytest.raises(PluginError, match="no nccl for --communicator in communicators"):
        resolve(communicator="nccl")
