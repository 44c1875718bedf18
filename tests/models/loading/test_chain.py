"""The loading chain: filters, then transforms, one tensor at a time; what goes wrong has a plugin's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch

from corefw.errors import PluginError
from corefw.interfaces.hooks.loading import WeightFilter, WeightTransform
from corefw.models.loading.chain import LoadingChain
from corefw.plugin_system.contributions import Contribution

Pairs = Iterable[tuple[str, torch.Tensor]]


class Without(WeightFilter):
    def __init__(self, part: str) -> None:
        self._part = part

    def skip(self, name: str) -> str | None:
        return f"it has {self._part}" if self._part in name else None


class Calling(WeightTransform):
    def __init__(self, call: Callable[[str, torch.Tensor], Any], end: Callable[[], Any] = tuple) -> None:
        self._call, self._end = call, end

    def transform(self, name: str, tensor: torch.Tensor) -> Pairs:
        made: Pairs = self._call(name, tensor)
        return made

    def finish(self) -> Pairs:
        made: Pairs = self._end()
        return made


def by(owner: str, value: Any) -> Contribution[Any]:
    return Contribution(owner, "dist", "hook", value)


def files(*names: str) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, torch.full((1,), float(index))) for index, name in enumerate(names, start=1))


def listed(chain: LoadingChain, *names: str) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in chain.apply(files(*names))}


def test_filters_come_first_and_transforms_follow_one_another() -> None:
    chain = LoadingChain(
        [by("f", Without("b")), by("g", Without("c"))],
        [
            by("x", Calling(lambda name, tensor: [(f"{name}x", tensor * 10)])),
            by("y", Calling(lambda name, tensor: [(f"{name}y", tensor + 1)])),
        ],
    )
    assert listed(chain, "a", "b", "c", "d") == {"axy": 11.0, "dxy": 41.0}
    assert chain.links("gguf") == "gguf → filter dist/f → filter dist/g → transform dist/x → transform dist/y"
    assert chain.outcome() == (
        "4 tensors of the files became 2; left out: b (by plugin dist/f: it has b), c (by plugin dist/g: it has c)"
    )


def test_a_filter_that_does_not_say_why_stops_the_load() -> None:
    careless = Without("b")
    careless.skip = lambda _name: False  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(PluginError, match="filter of plugin dist/f gave False for 'a'"):
        listed(LoadingChain([by("f", careless)], []), "a", "b")


def test_a_transform_drops_splits_and_adds_and_the_next_one_sees_what_it_made() -> None:
    def split(name: str, tensor: torch.Tensor) -> Pairs:
        return [] if name == "a" else [(f"{name}1", tensor), (f"{name}2", tensor)]

    chain = LoadingChain(
        [],
        [
            by("x", Calling(split, lambda: [("end", torch.zeros(1))])),
            by("y", Calling(lambda name, tensor: [(name.upper(), tensor)])),
        ],
    )
    assert listed(chain, "a", "b") == {"B1": 2.0, "B2": 2.0, "END": 0.0}


def test_tensors_pass_one_at_a_time() -> None:
    read: list[str] = []

    def reading() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            read.append(name)
            yield name, torch.zeros(1)

    chain = LoadingChain([], [by("x", Calling(lambda name, tensor: [(name, tensor)]))])
    passed = chain.apply(reading())
    assert read == []
    assert [next(passed)[0], list(read)] == ["a", ["a"]]


def raising(*_: object) -> Any:
    raise ValueError("no idea")


def raising_later(*_: object) -> Iterator[Any]:
    yield "first", torch.zeros(1)
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Calling(raising), "weight transform of plugin dist/x failed at 'a': ValueError: no idea"),
        (Calling(raising_later), "weight transform of plugin dist/x failed at 'a': ValueError: no idea"),
        (Calling(lambda *_: None), "weight transform of plugin dist/x failed at 'a': TypeError"),
        (Calling(lambda *pair: [pair], raising), "weight transform of plugin dist/x failed at 'the end'"),
        (Calling(lambda name, _: [name]), "weight transform of plugin dist/x at 'a' gave str"),
        (Calling(lambda name, _: [(name, 1.0)]), "weight transform of plugin dist/x at 'a' gave tuple"),
        (Calling(lambda _, tensor: [("same", tensor)]), r"makes 'same' twice \(transforms: dist/x\)"),
    ],
)
def test_a_transform_that_fails_is_named_with_the_tensor(transform: WeightTransform, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        listed(LoadingChain([], [by("x", transform)]), "a", "b")


def test_a_filter_that_fails_is_named_with_the_tensor() -> None:
    class Failing(WeightFilter):
        def skip(self, name: str) -> str | None:
            raise KeyError(name)

    with pytest.raises(PluginError, match="weight filter of plugin dist/f failed at 'a': KeyError: 'a'"):
        listed(LoadingChain([by("f", Failing())], []), "a")


def test_a_chain_without_links_is_false() -> None:
    assert not LoadingChain([], [])
    assert LoadingChain([by("f", Without("x"))], [])
