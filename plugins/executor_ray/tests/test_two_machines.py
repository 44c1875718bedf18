"""Ranks that reach each other over a network alone: what listens on the wrong interface isn't found here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corefw.testing.offline_runs import open_tiny, tiny_llama, tokens_of
from plugins.executor_ray.tests.two_machines import HOSTS, TwoMachines, can_be_made

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_be_made(), reason="hardware: two machines, or network namespaces (root, ip, unshare)"),
]


def test_two_ranks_in_two_network_namespaces_give_the_tokens_of_one_process() -> None:
    with open_tiny() as llm:
        expected = tokens_of(llm)
    with TwoMachines() as machines:
        lines = machines.python(str(Path(__file__).with_name("far_ranks.py")), str(tiny_llama())).splitlines()
    said = json.loads(next(line for line in lines if line.startswith("{")))  # Ray shows what its workers log, too
    assert sorted(said["hosts"]) == sorted(HOSTS)
    assert said["tokens"] == expected
