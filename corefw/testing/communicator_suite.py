"""Conformance suite of communicators: ranks in threads of this process add up, gather and hand on what they should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.interfaces.communicator import Communicator, CommunicatorGroup
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

if TYPE_CHECKING:
    import torch

__all__ = ["CommunicatorSuite"]

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Member:
    communicator: Communicator
    rank: int
    device: torch.device


class CommunicatorSuite(PluginSuite):
    """For ``corefw.communicators``. Override ``devices`` where tensors live elsewhere than in host memory."""

    plugin: ClassVar[type[Communicator]]
    group = "communicators"

    def devices(self) -> Sequence[str]:
        """A device a rank; as many ranks as there are names."""
        if self.plugin.unavailable_reason("cpu") is None:
            return ("cpu", "cpu", "cpu")
        raise NotChecked("it moves no tensors in host memory: override devices()")

    def test_it_says_for_which_devices_it_is(self) -> None:
        for device_type in ("cpu", "no-such-device"):
            check_reason(self.plugin.unavailable_reason(device_type), f"unavailable_reason({device_type!r})")
        assert self.plugin.unavailable_reason("no-such-device"), "it says that it moves tensors of any device"

    def test_every_rank_gets_the_same_sum(self) -> None:
        def work(me: _Member) -> list[float]:
            import torch

            return (
                me.communicator.all_reduce(torch.arange(6.0, device=me.device).view(2, 3) + me.rank).flatten().tolist()
            )

        results = self._on_each_rank(work)
        size = len(results)
        expected = [size * element + sum(range(size)) for element in range(6)]
        assert results == [expected] * size, f"the sums are {results}, not {expected}"

    def test_sums_keep_the_dtypes_that_models_compute_in(self) -> None:
        for name in ("float32", "bfloat16", "float16"):

            def work(me: _Member, name: str = name) -> tuple[str, float]:
                import torch

                total = me.communicator.all_reduce(torch.ones(5, dtype=getattr(torch, name), device=me.device))
                return str(total.dtype), float(total[-1])

            results = self._on_each_rank(work)
            assert results == [(f"torch.{name}", float(len(results)))] * len(results), f"{name}: {results}"

    def test_what_is_gathered_stands_in_the_order_of_ranks(self) -> None:
        def work(me: _Member) -> list[Any]:
            import torch

            return [part.tolist() for part in me.communicator.all_gather(torch.full((1, 2), me.rank, device=me.device))]

        results = self._on_each_rank(work)
        expected = [[[rank, rank]] for rank in range(len(results))]
        assert results == [expected] * len(results), f"gathered {results}, not {expected}"

    def test_a_view_is_reduced_as_it_looks(self) -> None:
        def work(me: _Member) -> list[float]:
            import torch

            return me.communicator.all_reduce(torch.arange(6.0, device=me.device).view(2, 3).t()).flatten().tolist()

        results = self._on_each_rank(work)
        expected = [len(results) * element for element in (0.0, 3.0, 1.0, 4.0, 2.0, 5.0)]
        assert results == [expected] * len(results), f"the sums are {results}, not {expected}"

    def test_a_broadcast_brings_everybody_the_source_s_values(self) -> None:
        def work(me: _Member) -> list[int]:
            import torch

            tensor = torch.full((3,), me.rank, device=me.device)
            me.communicator.broadcast(tensor, 1)
            return tensor.tolist()

        results = self._on_each_rank(work)
        assert results == [[1, 1, 1]] * len(results), f"broadcast brought {results}"

    def test_what_a_member_sends_arrives_in_order(self) -> None:
        def work(me: _Member) -> list[int]:
            import torch

            if me.rank == 0:
                sent = [me.communicator.send(torch.full((2,), value, device=me.device), 1) for value in (5, 6)]
                for each in sent:
                    each.wait()
            received = [torch.empty(2, dtype=torch.int64, device=me.device) for _ in range(2 if me.rank == 1 else 0)]
            for tensor in received:
                me.communicator.receive(tensor, 0)
            return [value for tensor in received for value in tensor.tolist()]

        results = self._on_each_rank(work)
        assert results[1] == [5, 5, 6, 6], f"received {results[1]}"

    def test_it_may_be_closed_twice(self) -> None:
        def work(me: _Member) -> bool:
            me.communicator.close()
            return True

        assert all(self._on_each_rank(work))

    def _on_each_rank(self, work: Callable[[_Member], Any]) -> list[Any]:
        """What ``work`` gives on each rank, every one in a thread."""
        import torch
        from torch.distributed import HashStore

        devices, store = self.devices(), HashStore()
        # Nobody leaves while others are still meeting, or waiting for what it sent.
        together = threading.Barrier(len(devices), timeout=_TIMEOUT_S)

        def one(rank: int) -> Any:
            group = CommunicatorGroup(
                axis="all",
                ranks=tuple(range(len(devices))),
                rank=rank,
                device=torch.device(devices[rank]),
                store=store,
                timeout_s=_TIMEOUT_S,
                on_one_machine=True,
            )
            communicator = self.plugin(group)
            try:
                together.wait()
                result = work(_Member(communicator, rank, group.device))
                together.wait()
                return result
            except BaseException:
                together.abort()
                raise
            finally:
                communicator.close()

        with ThreadPoolExecutor(len(devices)) as pool:
            return list(pool.map(one, range(len(devices))))
