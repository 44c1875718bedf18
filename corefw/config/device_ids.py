"""The three ways in which a device is numbered, and how one becomes another.

======== ==================================================================================================
logical  as the ranks of one engine count on one machine: the n-th of the devices that were assigned to it
visible  as the driver numbers devices in this process, after its visibility variable hid some of them
physical as the machine counts: what topology and monitoring tools say, whatever a process may see
======== ==================================================================================================

A wrong conversion computes on another's device without an error, so each that isn't certain is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from corefw import env
from corefw.errors import ConfigError

__all__ = ["DeviceIds"]

_MAX_SHOWN = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceIds:
    """The devices that this process may use. A value: ``assign`` gives another one.

    Attributes:
        variable: the driver's visibility variable, such as ``CUDA_VISIBLE_DEVICES``.
        visible: physical ids by visible id.
        names: what the variable calls a device (its number or UUID), by visible id.
        assigned: physical ids by logical id.
        narrowed: whether ``assigned`` was chosen, instead of being all that is visible.
    """

    variable: str
    visible: tuple[int, ...]
    names: tuple[str, ...]
    assigned: tuple[int, ...]
    narrowed: bool = False

    @classmethod
    def from_environment(cls, variable: str, num_physical: int, uuids: Sequence[str] = ()) -> DeviceIds:
        """Read the visibility variable as the driver does, but refuse what the driver would take in silence.

        Args:
            variable: the driver's.
            num_physical: devices of the machine.
            uuids: by physical id; a shorter beginning of one may stand in the variable if it fits one device only.

        Raises:
            ConfigError: the variable hides every device, or names one twice, or one that isn't there or isn't clear.
        """
        text = env.device_visibility(variable)
        if text is None:
            everything = tuple(range(num_physical))
            return cls(variable=variable, visible=everything, names=tuple(map(str, everything)), assigned=everything)
        names = tuple(part.strip() for part in text.split(","))
        reading = _Reading(variable, text, num_physical, tuple(uuids))
        if not text.strip():
            raise reading.error("it is set but empty, which hides every device")
        visible = tuple(reading.physical_id(name) for name in names)
        twice = [physical for physical, count in Counter(visible).items() if count > 1]
        if twice:
            raise reading.error(f"it names device {twice[0]} twice")
        return cls(variable=variable, visible=visible, names=names, assigned=visible)

    def assign(self, physical_ids: Iterable[int]) -> DeviceIds:
        """Give logical ids to some devices, in this order. The same again changes nothing.

        Raises:
            ConfigError: one can't be seen by this process or comes twice, or others were assigned before.
        """
        wanted = tuple(physical_ids)
        if self.narrowed and wanted != self.assigned:
            raise ConfigError(
                f"devices {_listed(wanted)} are assigned to a process that has devices {_listed(self.assigned)} already"
            )
        for physical in wanted:
            self.visible_of_physical(physical)
        if len(set(wanted)) != len(wanted) or not wanted:
            raise ConfigError(f"devices {_listed(wanted)} can't be assigned: name each once, and at least one")
        return replace(self, assigned=wanted, narrowed=True)

    def physical_of(self, logical: int) -> int:
        """The machine's number of a rank's device.

        Raises:
            ConfigError: there are fewer devices.
        """
        if not 0 <= logical < len(self.assigned):
            raise ConfigError(
                f"local rank {logical} has no device: {len(self.assigned)} are assigned "
                f"(physical {_listed(self.assigned)}); use fewer ranks or let {self.variable} name more"
            )
        return self.assigned[logical]

    def visible_of_physical(self, physical: int) -> int:
        """The number by which this process's driver calls a device.

        Raises:
            ConfigError: this process can't see it.
        """
        if physical not in self.visible:
            raise ConfigError(
                f"physical device {physical} is hidden from this process: it sees {_listed(self.visible)} "
                f"({self.variable})"
            )
        return self.visible.index(physical)

    def visible_of(self, logical: int) -> int:
        """The number by which this process's driver calls a rank's device."""
        return self.visible_of_physical(self.physical_of(logical))

    def logical_of(self, physical: int) -> int:
        """The rank whose device it is.

        Raises:
            ConfigError: it isn't assigned.
        """
        if physical not in self.assigned:
            raise ConfigError(f"physical device {physical} isn't among the assigned {_listed(self.assigned)}")
        return self.assigned.index(physical)

    def visibility(self, logical_ids: Iterable[int]) -> dict[str, str]:
        """The variable for a child that shall see these devices alone, in this order: its logical 0, 1, 2 …

        Devices are called as this process's variable calls them, so that UUIDs stay UUIDs.
        """
        return {self.variable: ",".join(self.names[self.visible_of(logical)] for logical in logical_ids)}


@dataclass(frozen=True, slots=True)
class _Reading:
    """The parts of a variable, one by one."""

    variable: str
    text: str
    num_physical: int
    uuids: tuple[str, ...]

    def physical_id(self, name: str) -> int:
        if name.isascii() and name.isdigit():
            if int(name) < self.num_physical:
                return int(name)
            raise self.error(f"there is no device {name}: the machine has {self.num_physical}")
        if name.startswith("-"):
            raise self.error(f"{name!r} hides it and every device after it")
        fitting = [physical for physical, uuid in enumerate(self.uuids) if name and uuid.startswith(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise self.error(f"{name!r} is the beginning of more than one device's UUID")
        known = f"a UUID ({_listed(self.uuids)})" if self.uuids else "nothing else, as the UUIDs aren't known here"
        raise self.error(f"{name!r} is no device: use its number or {known}")

    def error(self, what: str) -> ConfigError:
        shown = self.text if len(self.text) <= _MAX_SHOWN else f"{self.text[:_MAX_SHOWN]}…"
        return ConfigError(
            f"{self.variable}={shown!r}: {what}; unset it to use all {self.num_physical} devices, or name them as in "
            f"{self.variable}={','.join(map(str, range(min(2, self.num_physical)))) or '0'}"
        )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"
