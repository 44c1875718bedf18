"""The connector: its settings, and where its halves come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from corefw.errors import ConfigError
from corefw.interfaces.kv_connector import ConnectorSetup, KVConnector, SchedulerConnector, WorkerConnector
from corefw_sample_file_connector.scheduler import FileScheduler

__all__ = ["FileConnector", "FileOptions"]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """``--kv-connector-config``.

    Attributes:
        path: folder of the files; made if it isn't there.
        mode: ``sync`` loads within a request's first step, ``async`` while it waits and others compute.
        delay_s: seconds that each load takes longer, to see what slow storage does.
    """

    path: str
    mode: Literal["sync", "async"] = "sync"
    delay_s: float = 0.0


class FileConnector(KVConnector):
    """One file a block, named by the hash of all tokens up to its end, in a folder named by the layout."""

    name: ClassVar[str] = "file"
    options_type: ClassVar[type | None] = FileOptions

    @classmethod
    def scheduler(cls, setup: ConnectorSetup) -> SchedulerConnector:
        cache = setup.config.cache
        if not cache.enable_prefix_caching or cache.prefix_caching_hash_algo != "sha256":
            raise ConfigError("the file connector names blocks by their hashes; it needs prefix caching with sha256")
        if len(setup.block_sizes) != 1:
            raise ConfigError(
                f"the file connector keeps one KV-cache group, the model has {len(setup.block_sizes)}; "
                f"serve it with --no-hybrid-kv-cache"
            )
        assert isinstance(setup.options, FileOptions)
        return FileScheduler(setup.options.path, setup.options.mode, setup.role, setup.block_sizes[0])

    @classmethod
    def worker(cls, setup: ConnectorSetup) -> WorkerConnector:
        from corefw_sample_file_connector.worker import FileWorker  # brings torch

        assert isinstance(setup.options, FileOptions)
        return FileWorker(setup.options.path, setup.options.delay_s)
