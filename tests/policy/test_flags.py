"""Flags are an interface: names, defaults and choices change on purpose alone."""

from __future__ import annotations

from tests.policy.flags import RENEW, SNAPSHOT, described


def test_the_flags_are_those_of_the_snapshot() -> None:
    known, found = set(SNAPSHOT.read_text(encoding="utf-8").splitlines()), set(described())
    changes = [*(f"- {line}" for line in sorted(known - found)), *(f"+ {line}" for line in sorted(found - known))]
    hint = f"flags changed; if that is meant, say so in CHANGELOG.md and run: {RENEW}"
    assert not changes, "\n".join([hint, *changes])
