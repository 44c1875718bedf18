"""What plugins implement is frozen: names, signatures, versions."""

from __future__ import annotations

import pytest

from corefw.plugin_system.groups import GROUPS, Group
from corefw.plugin_system.loading import attribute_of
from tests.policy.sources import ROOT
from tests.policy.surface import RENEW, SNAPSHOT, described


def test_the_public_surface_is_that_of_the_snapshot() -> None:
    known, found = set(SNAPSHOT.read_text(encoding="utf-8").splitlines()), set(described())
    changes = [*(f"- {line}" for line in sorted(known - found)), *(f"+ {line}" for line in sorted(found - known))]
    hint = (
        "the interfaces changed. What is added goes into the snapshot; what changes or goes breaks plugins: raise the "
        f"group's api_versions or deprecate it (docs/plugins/compatibility.md). Renew: {RENEW}"
    )
    assert not changes, "\n".join([hint, *changes])


@pytest.mark.parametrize("group", [g for g in GROUPS if g.interface], ids=lambda g: g.name)
def test_an_interface_has_the_version_that_its_group_accepts_last(group: Group) -> None:
    assert group.interface is not None
    assert vars(attribute_of(group.interface)).get("api_version") == group.api_versions[1]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_a_groups_page_is_there(group: Group) -> None:
    assert (ROOT / group.docs).is_file()
