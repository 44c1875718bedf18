"""Where the routes of endpoints stand, and whether one takes what is another's."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute, compile_path

from corefw.errors import ConfigError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.plugin_system.blame import told
from corefw.plugin_system.names import suggestion

__all__ = ["Mounted", "arrange", "is_builtin", "mount", "prefix_of"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_BUILTINS = "corefw.builtins."
_ANY = frozenset({"*"})
_WEBSOCKET = frozenset({"WEBSOCKET"})


@dataclass(frozen=True, slots=True)
class Mounted:
    """An endpoint and its routes as they are served."""

    endpoint: Endpoint
    routes: tuple[BaseRoute, ...]


def is_builtin(endpoint: Endpoint) -> bool:
    """Whether the core distribution ships it."""
    return type(endpoint).__module__.startswith(_BUILTINS)


def prefix_of(endpoint: Endpoint) -> str:
    """What stands before the paths of its routes: what it declares, else ``/plugins/<name>``.

    Raises:
        PluginError: the endpoint's name or the prefix that it declares can't be one.
    """
    name = getattr(endpoint, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(
            f"{type(endpoint).__module__}:{type(endpoint).__qualname__} is called {name!r:.80}; an endpoint's name has "
            "letters, digits, - and _"
        )
    prefix = f"/plugins/{name}" if endpoint.prefix is None else endpoint.prefix
    if not isinstance(prefix, str):
        raise PluginError(f"endpoint {name!r} declares a {type(prefix).__name__} as its prefix, not a text")
    if prefix and (not prefix.startswith("/") or prefix.endswith("/") or set(prefix) & set("{}?#")):
        raise PluginError(
            f"endpoint {endpoint.name!r} declares the prefix {prefix[:80]!r}; one begins with / and doesn't end with "
            "it, or is empty"
        )
    return prefix


def mount(endpoint: Endpoint) -> Mounted:
    """Its routes under its prefix. The objects that the endpoint made stay as they are.

    Raises:
        PluginError: name, prefix or routes aren't what they have to be.
    """
    prefix = prefix_of(endpoint)
    try:
        routes = tuple(endpoint.routes())
    except Exception as error:
        raise PluginError(f"endpoint {endpoint.name!r} can't give its routes: {told(error)}") from error
    return Mounted(endpoint, tuple(_under(prefix, route, endpoint) for route in routes))


def arrange(mounted: Sequence[Mounted], overriding: Sequence[str], other_names: Sequence[str] = ()) -> list[BaseRoute]:
    """All routes in the order in which they are asked.

    Args:
        mounted: built-ins and others.
        overriding: names of endpoints whose routes may stand before the core's.
        other_names: what else the operator may name there.

    Raises:
        PluginError: two endpoints want one route, and nobody said which gets it, or have one name.
        ConfigError: ``overriding`` names what isn't there.
    """
    names = [each.endpoint.name for each in mounted if not is_builtin(each.endpoint)]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(f"two endpoints are called {twins[0]!r}, so a permission would be for both; leave one out")
    for name in overriding:
        if name not in names and name not in other_names:
            hint = suggestion(name, [*names, *other_names])
            raise ConfigError(f"--allow-route-override {name[:80]!r}: no plugin of that name has routes; {hint}")
    first = [each for each in mounted if not is_builtin(each.endpoint) and each.endpoint.name in overriding]
    for position, each in enumerate(mounted):
        for other in mounted[position + 1 :]:
            _check_apart(each, other, overriding)
    return [route for each in (*first, *(m for m in mounted if m not in first)) for route in each.routes]


def _check_apart(one: Mounted, other: Mounted, overriding: Sequence[str]) -> None:
    clash = _clash(one, other)
    if clash is None:
        return
    names = one.endpoint.name, other.endpoint.name
    core = [name for name, each in zip(names, (one, other), strict=True) if is_builtin(each.endpoint)]
    plugins = [name for name in names if name not in core]
    if len(core) == 1 and plugins[0] in overriding:
        return
    hint = f", or give it to the plugin with --allow-route-override {plugins[0]}" if len(core) == 1 else ""
    raise PluginError(f"endpoints {names[0]!r} and {names[1]!r} both want {clash}; leave one out with --plugins{hint}")


def _clash(one: Mounted, other: Mounted) -> str | None:
    """A method and path that both would answer."""
    for route in one.routes:
        for rival in other.routes:
            shared = _shared_methods(_methods(route), _methods(rival))
            if shared and _paths_overlap(_segments(route), _segments(rival)):
                paths = dict.fromkeys((_path(route), _path(rival)))
                return f"{min(shared)} {' and '.join(paths)}"
    return None


def _under(prefix: str, route: BaseRoute, endpoint: Endpoint) -> BaseRoute:
    if not isinstance(route, Route | WebSocketRoute | Mount):
        raise PluginError(f"endpoint {endpoint.name!r} has a {type(route).__name__}; routes are Route or Mount")
    if not prefix:
        return route
    moved = copy.copy(route)
    moved.path = prefix + route.path
    pattern = moved.path + "/{path:path}" if isinstance(moved, Mount) else moved.path
    moved.path_regex, moved.path_format, moved.param_convertors = compile_path(pattern)
    return moved


def _path(route: BaseRoute) -> str:
    return str(getattr(route, "path", route))


def _methods(route: BaseRoute) -> frozenset[str]:
    if isinstance(route, Route):
        return frozenset(route.methods) if route.methods else _ANY
    return _WEBSOCKET if isinstance(route, WebSocketRoute) else _ANY


def _shared_methods(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    if first == _ANY:
        return second
    return first if second == _ANY else first & second


def _segments(route: BaseRoute) -> list[str]:
    path = _path(route) + ("/{path:path}" if isinstance(route, Mount) else "")
    return path.split("/")


def _paths_overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether some path may match both; a little too careful where both have parameters."""
    for left, right in zip(first, second, strict=False):
        if ":path}" in left or ":path}" in right:
            return True
        if not _segments_overlap(left, right):
            return False
    return len(first) == len(second)


def _segments_overlap(left: str, right: str) -> bool:
    if "{" in left and "{" in right:
        return True
    if "{" in left:
        left, right = right, left
    return left == right if "{" not in right else compile_path(f"/{right}")[0].match(f"/{left}") is not None
