"""``python -m corefw.runtime.distributed.comm_check``: a rank that tries how it can talk to others, layer by layer.

Tells on standard output, a JSON object a line: the layer that begins, then what came of it. After a layer that failed
nothing more is tried.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.config.rank_grid import RankGrid
from corefw.errors import EngineError
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.distributed.groups import RankGroups

__all__ = ["CheckTask", "LayerNews", "run_checks"]

_log = get_logger(__name__)


class CheckTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has to try.

    Attributes:
        rank: this one's.
        size: ranks.
        local_address: where they meet on this machine.
        device_address: the same, for what goes between devices.
        network_address: where they meet by the machine's name.
        queue: this rank's end of a broadcast queue.
        timeout_s: for every operation.
        platform: whose devices to try.
        allow: the plugin allowlist.
    """

    rank: int
    size: int
    local_address: str
    device_address: str
    network_address: str
    queue: str
    timeout_s: float
    platform: str
    allow: str | None = None


class LayerNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank tells of a layer: that it begins, or what came of it."""

    layer: str
    state: str
    told: str = ""
    seconds: float = 0.0


def run_checks(task: CheckTask, tell: Callable[[LayerNews], None]) -> None:
    """Try layer after layer, each standing on those before."""
    for name, check in _LAYERS.items():
        tell(LayerNews(layer=name, state="begins"))
        begin = time.monotonic()
        try:
            told = check(task)
        except Exception as error:  # the border of the check: whatever it is gets told
            _log.debug("layer %s failed", name, exc_info=True)
            tell(LayerNews(layer=name, state="failed", told=_described(error), seconds=time.monotonic() - begin))
            return
        state = "not here" if told.startswith("not here: ") else "ok"
        told = told.removeprefix("not here: ")
        tell(LayerNews(layer=name, state=state, told=told, seconds=time.monotonic() - begin))


def _torch(_: CheckTask) -> str:
    import torch
    from torch import distributed

    if not distributed.is_available():
        raise EngineError("this build of torch has no torch.distributed")
    return f"torch {torch.__version__}"


def _queue(task: CheckTask) -> str:
    from corefw.runtime.distributed.broadcast_queue import BroadcastReader, QueueFds

    def decode(frames: Any) -> tuple[bytes, str]:
        digest, content = frames
        return bytes(digest), hashlib.sha256(content).hexdigest()

    reader = BroadcastReader(QueueFds.from_text(task.queue), decode)
    digest, found = reader.receive(task.timeout_s)
    if digest.decode() != found:
        raise EngineError("a message arrived, but not as it was sent")
    return "a message through memory arrived as it was sent"


def _meeting(task: CheckTask) -> str:
    from corefw.runtime.distributed.rendezvous import open_store

    store = open_store(task.local_address, rank=task.rank, world_size=task.size, timeout_s=task.timeout_s)
    store.set(f"check/{task.rank}", "here")
    store.wait([f"check/{rank}" for rank in range(task.size)])
    return f"{task.size} ranks found one another"


def _gloo(task: CheckTask) -> str:
    return _collectives(task, task.local_address, "gloo", _plugins(task), on_one_machine=True)


def _network(task: CheckTask) -> str:
    return _collectives(task, task.network_address, "gloo", _plugins(task), on_one_machine=False)


def _device(task: CheckTask) -> str:
    from corefw.plugin_system.starting import created

    plugins = _plugins(task)
    platform = created(plugins, "platform_plugins", task.platform)
    if platform.device_type == "cpu":
        return f"not here: platform {task.platform} computes in host memory"
    device = platform.runtime(task.rank).device
    return _collectives(task, task.device_address, platform.communicator, plugins, on_one_machine=True, device=device)


_LAYERS: dict[str, Callable[[CheckTask], str]] = {
    "torch": _torch,
    "queue": _queue,
    "meeting": _meeting,
    "gloo": _gloo,
    "device": _device,
    "network": _network,
}


def _plugins(task: CheckTask) -> PluginManager:
    from corefw.plugin_system.manager import PluginManager

    return PluginManager.discover(task.allow, "warn")


def _collectives(
    task: CheckTask,
    address: str,
    communicator: str,
    plugins: PluginManager,
    *,
    on_one_machine: bool,
    device: Any = None,
) -> str:
    import torch

    from corefw.runtime.distributed.groups import RankGroups

    grid = RankGrid(tensor=task.size)
    groups = RankGroups.join(
        grid,
        grid.place(task.rank),
        plugins=plugins,
        communicator=communicator,
        address=address,
        device=device or torch.device("cpu"),
        timeout_s=task.timeout_s,
        batch_invariant=False,
        on_one_machine=on_one_machine,
    )
    try:
        return _tried(task, groups, communicator, device or torch.device("cpu"))
    finally:
        groups.close()


def _tried(task: CheckTask, groups: RankGroups, communicator: str, device: Any) -> str:
    import torch

    expected = task.size * (task.size + 1) / 2
    total = groups.tensor.all_reduce(torch.full((64, 512), float(task.rank + 1), device=device))
    if not bool((total == expected).all()):
        raise EngineError(f"all_reduce gave {float(total[0, 0]):g}, not {expected:g}")
    gathered = groups.tensor.all_gather(torch.full((1, 1), task.rank, device=device))
    if gathered.flatten().tolist() != list(range(task.size)):
        raise EngineError(f"all_gather gave {gathered.flatten().tolist()}")
    if groups.world.all_gather_object(task.rank) != list(range(task.size)):
        raise EngineError("plain data didn't arrive as it was sent")
    begin = time.monotonic()
    for _ in range(20):
        groups.tensor.all_reduce(total)
    groups.world.barrier()
    micros = (time.monotonic() - begin) / 20 * 1e6
    return f"{communicator}: sums, gathers and plain data are right; a sum of 128 KiB takes {micros:.0f} µs"


def _described(error: Exception) -> str:
    text = str(error).partition("\n")[0][:400]
    return text if isinstance(error, EngineError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":

    def _print(news: LayerNews) -> None:
        sys.stdout.write(msgspec.json.encode(news).decode() + "\n")
        sys.stdout.flush()

    run_checks(msgspec.json.decode(sys.argv[1], type=CheckTask), _print)
