"""The allowlist: ``--plugins``, else ``VLLM_PLUGINS``.

A comma list of ``name``, ``distribution/name``, ``distribution/*`` and ``group:name``. Unset, each group's default
policy decides. Set, only what it names is allowed, in every group; empty allows nothing. A list of ``+name`` and
``-name`` changes the defaults instead. What the core distribution ships is never subject to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from corefw import env
from corefw.errors import ConfigError, PluginError
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.groups import group_named
from corefw.plugin_system.names import normalized_distribution, suggestion

__all__ = ["Allowlist", "Item", "Mode", "nearest", "parse_item", "read_allowlist"]

_FORMS = "name, distribution/name, distribution/* or group:name"


class Mode(Enum):
    """What the list as a whole means."""

    UNSET = "unset"
    ONLY = "only"
    EDIT = "edit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One entry of the list.

    Attributes:
        text: as written, without the sign.
        remove: written with ``-``.
        name: of a plugin; None for every plugin of the distribution.
        distribution: normalised, or None for any.
        group: or None for any.
    """

    text: str
    remove: bool
    name: str | None
    distribution: str | None = None
    group: str | None = None

    @property
    def picks(self) -> bool:
        """Whether it settles which of two plugins of one name is meant."""
        return self.distribution is not None and self.name is not None

    def names(self, plugin: FoundPlugin) -> bool:
        """Whether the entry speaks of that plugin."""
        return (
            self.name in (None, plugin.name)
            and self.distribution in (None, plugin.distribution)
            and self.group in (None, plugin.group)
        )


@dataclass(frozen=True, slots=True)
class Allowlist:
    """A parsed list.

    Attributes:
        mode: what the list as a whole means.
        items: its entries, in order.
        source: the setting it came from, for messages.
    """

    mode: Mode
    items: tuple[Item, ...]
    source: str

    @classmethod
    def parse(cls, text: str | None, source: str) -> Allowlist:
        """Parse a setting; None means that it isn't set.

        Raises:
            ConfigError: an entry has none of the forms, or plain entries are mixed with ``+`` and ``-``.
        """
        if text is None:
            return cls(Mode.UNSET, (), source)
        words = [word.strip() for word in text.split(",") if word.strip()]
        signed = [word for word in words if word[0] in "+-"]
        if signed and len(signed) != len(words):
            raise ConfigError(
                f"{source} mixes plain names, which replace the defaults, with +name or -name, which change them "
                f"({text[:80]!r}); write one kind only"
            )
        items = tuple(parse_item(word, source) for word in words)
        return cls(Mode.EDIT if signed else Mode.ONLY, items, source)

    def adds(self, plugin: FoundPlugin) -> Item | None:
        """The entry that names the plugin in order to have it, the most exact first."""
        hits = [item for item in self.items if not item.remove and item.names(plugin)]
        return max(hits, key=lambda item: item.picks, default=None)

    def removes(self, plugin: FoundPlugin) -> Item | None:
        """The ``-`` entry that takes the plugin out."""
        return next((item for item in self.items if item.remove and item.names(plugin)), None)

    def complaints(self, found: Iterable[FoundPlugin]) -> tuple[str, ...]:
        """One message for each entry that can have no effect: it names nothing, removes what is built in, or adds what
        another removes.
        """
        plugins = tuple(found)
        messages = (self._complaint(item, plugins) for item in self.items)
        return tuple(message for message in messages if message)

    def _complaint(self, item: Item, plugins: tuple[FoundPlugin, ...]) -> str | None:
        named = [plugin for plugin in plugins if item.names(plugin)]
        if not named:
            return f"{self.source} names {item.text[:80]!r}, which matches no installed plugin; " + nearest(
                item, plugins
            )
        if not item.remove and all(self.removes(plugin) for plugin in named):
            return f"{self.source} adds {item.text[:80]!r} and removes it again; leave one of both out"
        if item.remove and all(plugin.builtin for plugin in named):
            return f"{self.source} removes {item.text[:80]!r}, which is built in; built-ins aren't subject to the list"
        return None


def read_allowlist(allow: str | None) -> Allowlist:
    """``--plugins`` if given, else ``VLLM_PLUGINS``.

    Raises:
        ConfigError: it is malformed.
    """
    if allow is not None:
        return Allowlist.parse(allow, "--plugins")
    variable = env.plugins_allowlist()
    return Allowlist.parse(variable, "--plugins" if variable is None else "VLLM_PLUGINS")


def parse_item(word: str, source: str) -> Item:
    """One entry of a list.

    Raises:
        ConfigError: it has none of the forms; begins with ``source``.
    """
    text = word[1:].strip() if word[0] in "+-" else word
    group, colon, rest = text.rpartition(":")
    distribution, slash, name = rest.rpartition("/")
    try:
        if text.startswith(("+", "-")):
            raise ValueError(text)
        return Item(
            text=text,
            remove=word.startswith("-"),
            name=_name(name.strip(), bool(slash)),
            distribution=_filled(normalized_distribution(distribution.strip())) if slash else None,
            group=group_named(_filled(group.strip())).name if colon else None,
        )
    except ValueError:
        raise ConfigError(f"{source}: {word[:80]!r} isn't a plugin; write {_FORMS}") from None
    except PluginError as error:
        raise ConfigError(f"{source}: in {word[:80]!r}, {error}") from None


def _filled(text: str) -> str:
    if not text or "*" in text or "/" in text:
        raise ValueError(text)
    return text


def _name(text: str, after_distribution: bool) -> str | None:
    if text == "*" and after_distribution:
        return None
    return _filled(text)


def nearest(item: Item, plugins: Iterable[FoundPlugin]) -> str:
    """The end of a message about an entry that names nothing: what is written alike, in the entry's own form."""
    return suggestion(item.text, _spellings(plugins, item))


def _spellings(plugins: Iterable[FoundPlugin], item: Item) -> set[str]:
    if item.group is not None:
        return {f"{plugin.group}:{plugin.name}" for plugin in plugins}
    if item.distribution is not None:
        form = "{0.distribution}/*" if item.name is None else "{0.full_name}"
        return {form.format(plugin) for plugin in plugins}
    return {plugin.name for plugin in plugins}
