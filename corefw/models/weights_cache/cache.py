"""Whether weights are kept on disk, under which key, and both directions of it."""

from __future__ import annotations

import atexit
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

import corefw
from corefw import env
from corefw.errors import ModelFormatError
from corefw.models.weights_cache.snapshot import NotKeptError, restore, snapshot
from corefw.models.weights_cache.store import WeightsStore
from corefw.observability.logging import get_logger
from corefw.plugin_system.lock import package_files

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ResolvedPlugin
    from corefw.models.layers.context import BuildContext
    from corefw.models.weights_cache.kept_file import KeptWeights

__all__ = ["WeightsCache"]

_log = get_logger(__name__)

_AUTO, _OFF = "auto", "off"
_MAX_WAIT_AT_EXIT_S = 5.0
# What makes prepared weights of files, besides plugins: whoever changes it, without a new version, must not get the old
# ones.
_MAKERS = ("models", "builtins/model_loaders", "builtins/ops", "builtins/quantization", "config")


class WeightsCache:
    """The weights of one model on one rank.

    Args:
        store: where they are.
        key: by what they are found; whatever they depend on is in it.

    Attributes:
        min_bytes: fewer are laid out in no time, and not kept.
    """

    min_bytes: ClassVar[int] = 16 * 2**20

    def __init__(self, store: WeightsStore, key: str) -> None:
        self._store = store
        self._key = key

    @classmethod
    def of(cls, config: EngineConfig, build: BuildContext) -> WeightsCache | None:
        """None where weights aren't kept: it is switched off, or no kernels say that they can be."""
        setting = config.load.weights_cache
        forms = build.binder.prepared_forms()
        if setting == _OFF or not forms or not config.fingerprint or build.device.type != "cpu":
            return None
        folder = env.cache_dir() / "weights" if setting == _AUTO else Path(setting).expanduser()
        return cls(WeightsStore(folder, config.load.weights_cache_bytes), _key(config, build, forms))

    def find(self) -> KeptWeights | None:
        """What an earlier start kept."""
        begin_s = time.perf_counter()
        kept = self._store.find(self._key)
        if kept is not None:
            took_s, size = time.perf_counter() - begin_s, kept.num_bytes // 2**20
            _log.info("weights: %d MiB from %s in %.2f s", size, self._store.path(self._key), took_s)
        return kept

    def restore(self, model: nn.Module, kept: KeptWeights) -> Sequence[str] | None:
        """Give a model that was built, and not loaded, the weights that an earlier start kept.

        Returns:
            remarks of that start; None: they aren't this model's.
        """
        try:
            restore(model, kept)
        except ModelFormatError as error:
            _log.warning("weights cache: %s isn't used: %s", self._store.path(self._key), error)
            return None
        remarks: Sequence[str] = kept.about["remarks"]
        return remarks

    def keep(self, model: nn.Module, build: BuildContext, remarks: Iterable[str]) -> threading.Thread | None:
        """Keep a model's weights; the start goes on meanwhile.

        Returns:
            what does it; None where they can't be kept.
        """
        if not getattr(model, "can_be_restored", False):
            return None
        unknown = build.binder.preparers_without_form()
        if unknown:
            _log.debug("weights cache: not kept, since %s doesn't name the form of its weights", ", ".join(unknown))
            return None
        try:
            about, tensors = snapshot(model)
        except NotKeptError as error:
            _log.debug("weights cache: not kept, since %s", error)
            return None
        if sum(tensor.nbytes for tensor in tensors) < self.min_bytes:
            return None
        about["remarks"] = list(remarks)
        work = (self._key, about, tensors)
        thread = threading.Thread(target=self._store.keep, args=work, name="weights-cache", daemon=True)
        thread.start()
        # A program may be done before its weights are written; it would never get them from here.
        atexit.register(thread.join, _MAX_WAIT_AT_EXIT_S)
        return thread


def _key(config: EngineConfig, build: BuildContext, forms: Sequence[str]) -> str:
    parts: dict[str, Any] = {
        "fingerprint": config.fingerprint,
        "makers": _stamps(config.plugins.resolved),
        "forms": forms,
        "torch": torch.__version__,
        "batch_invariant": build.batch_invariant,
        "tensor": (build.tp.rank, build.tp.size),
        "stage": (build.stage.rank, build.stage.size),
        "files": [_changed(Path(path)) for path in config.model_info.files.weights],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def _stamps(plugins: Iterable[ResolvedPlugin]) -> str:
    root = Path(corefw.__file__).parent
    own = (path for folder in _MAKERS for path in (root / folder).rglob("*.py"))
    packages = {plugin.value.partition(":")[0].partition(".")[0] for plugin in plugins} - {corefw.__name__}
    theirs = (path for package in packages for _, path in package_files(package) if path.suffix == ".py")
    digest = hashlib.sha256()
    for path in sorted((*own, *theirs)):
        digest.update(f"{path} {_changed(path)}\n".encode())
    return digest.hexdigest()


def _changed(path: Path) -> list[int]:
    try:
        stat = path.stat()
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns]
