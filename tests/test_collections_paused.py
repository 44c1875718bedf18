"""Starts without collections."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from corefw.collections_paused import collections_paused


def test_nothing_is_collected_inside_and_it_is_as_before_afterwards() -> None:
    def fail() -> None:
        with collections_paused():
            with collections_paused():
                pass
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_who_has_switched_collections_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_public_classes_are_imported_without_collections() -> None:
    script = (
        "import gc, importlib, corefw, corefw.collections_paused\n"
        "found = []; imported = importlib.import_module\n"
        "importlib.import_module = lambda name: (found.append(gc.isenabled()), imported(name))[1]\n"
        "corefw.LLM\n"
        "assert found == [False] and gc.isenabled(), found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
