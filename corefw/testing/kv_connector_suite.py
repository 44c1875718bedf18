"""Conformance suite of KV connectors: with one, a tiny model gives the same tokens and leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from corefw.config.connector_options import typed_options
from corefw.errors import ConfigError
from corefw.interfaces.kv_connector import KVConnector
from corefw.llm import LLM
from corefw.testing.offline_runs import PROMPTS, open_tiny, run_and_abort, tokens_of, used_blocks
from corefw.testing.registration import installed_as
from corefw.testing.suite import NotChecked, PluginSuite

__all__ = ["KVConnectorSuite"]


class KVConnectorSuite(PluginSuite):
    """For ``corefw.kv_connectors``. Runs real engines in this process."""

    plugin: ClassVar[type[KVConnector]]
    group = "kv_connectors"

    def options(self, folder: Path) -> Mapping[str, object]:
        """What ``--kv-connector-config`` says; ``folder`` is empty, and the same for engines that are to share KV."""
        del folder
        return {}

    def test_tokens_are_the_same_with_it_now_and_in_a_later_engine(self) -> None:
        with open_tiny() as llm:
            expected = tokens_of(llm)
        with _folder() as folder:
            for number in ("first", "second"):
                with self._open(folder) as llm:
                    assert tokens_of(llm) == expected, f"the {number} engine gives other tokens than without"
                    assert used_blocks(llm) == 0, f"the {number} engine keeps blocks of requests that ended"

    def test_tokens_are_the_same_where_requests_have_to_give_way(self) -> None:
        with open_tiny() as llm:
            expected = tokens_of(llm, PROMPTS * 2)
        with _folder() as folder, self._open(folder, num_gpu_blocks_override=12) as llm:
            assert tokens_of(llm, PROMPTS * 2) == expected
            assert used_blocks(llm) == 0

    def test_aborted_requests_leave_nothing_behind(self) -> None:
        with _folder() as folder, self._open(folder) as llm:
            run_and_abort(llm)
            assert used_blocks(llm) == 0, "blocks of aborted requests are kept"
            assert len(tokens_of(llm)) == len(PROMPTS)

    def test_it_serves_each_role(self) -> None:
        with open_tiny() as llm:
            expected = tokens_of(llm)
        with _folder() as folder:
            for role in ("producer", "consumer"):
                with self._open(folder, kv_role=role) as llm:
                    assert tokens_of(llm) == expected, f"as a {role} it gives other tokens"
                    assert used_blocks(llm) == 0, f"as a {role} it keeps blocks"

    def test_it_forgets_what_the_operator_resets(self) -> None:
        with _folder() as folder, self._open(folder) as llm:
            expected = tokens_of(llm)
            assert llm.reset_prefix_cache()
            assert tokens_of(llm) == expected

    @contextmanager
    def _open(self, folder: Path, **settings: Any) -> Iterator[LLM]:
        options = self.options(folder)
        self._check_options(options)
        with (
            installed_as(self.group, self.name, self.plugin),
            open_tiny(
                plugins=self.name, kv_connector=self.name, kv_connector_config=json.dumps(dict(options)), **settings
            ) as llm,
        ):
            yield llm

    def _check_options(self, options: Mapping[str, object]) -> None:
        try:
            typed_options(json.dumps(dict(options)), self.plugin.options_type)
        except ConfigError as error:
            if options:
                raise
            raise NotChecked(f"it needs settings, return them from options(): {error}") from None


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corefw-connector-") as folder:
        yield Path(folder)
