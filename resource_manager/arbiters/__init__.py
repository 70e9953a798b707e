"""Plug-ins that let several daemons agree which one acts. `make` returns the one of that name. `core.arbiter` defines
what each must do, and docs/reference/arbiters.md explains how to write one.

Life: `names` lists ours, and those that installed packages offer as entry points of the group `understudy.arbiters`,
without loading any. `make` loads the requested one. If a plug-in does not load, has another interface version or
refuses its options, this is a SettingsError of one line. Ours cannot be replaced: another package's plug-in of the same
name is an error.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from broker.options import SettingsError, way_to_extra
from resource_manager.core.arbiter import INTERFACE, Arbiter, ArbiterSettings

GROUP = "understudy.arbiters"
OWN = {
    "builtin": "resource_manager.arbiters.builtin",
    "etcd": "resource_manager.arbiters.etcd",
    "kubernetes": "resource_manager.arbiters.kubernetes",
}
"""Ours by name, the same as among the entry points of pyproject.toml."""


def names() -> list[str]:
    """The names of all plug-ins, ours first."""
    return [*OWN, *sorted({point.name for point in entry_points(group=GROUP)} - OWN.keys())]


def make(name: str, settings: ArbiterSettings, reactor: Any, daemon: str) -> Arbiter:
    """The arbiter of that name for this daemon. SettingsError says in one line why it cannot be made."""
    plugin = _load(name)
    try:
        interface = int(plugin.INTERFACE)
        factory = plugin.make
    except (AttributeError, TypeError, ValueError):
        raise SettingsError(
            f"the arbiter {name} is not a plug-in: it has no INTERFACE and make() (docs/reference/arbiters.md)"
        ) from None
    if interface != INTERFACE:
        raise SettingsError(
            f"the arbiter {name} is made for version {interface} of the interface of arbiters, and this daemon has version "
            f"{INTERFACE}: install a plug-in for this release"
        )
    try:
        arbiter: Arbiter = factory(settings, reactor, daemon)
    except ValueError as error:
        raise SettingsError(f"the arbiter {name}: {_line(error)}") from None
    except Exception as error:
        raise SettingsError(f"the arbiter {name} cannot be made: {type(error).__name__}: {_line(error)}") from error
    return arbiter


def _load(name: str) -> Any:
    offered = [point for point in entry_points(group=GROUP, name=name) if point.value != OWN.get(name)]
    if len(offered) + (name in OWN) > 1:
        packages = sorted({_package(point) for point in offered} | ({"understudy"} if name in OWN else set()))
        raise SettingsError(f"there are several arbiters {name!r}, of {' and '.join(packages)}: uninstall one")
    if name not in OWN and not offered:
        raise SettingsError(f"there is no arbiter {name!r}; there are: {', '.join(names())}")
    try:
        return import_module(OWN[name]) if name in OWN else offered[0].load()
    except Exception as error:
        hint = f" ({_package(offered[0])})" if offered else f"; {way_to_extra(name)}" if isinstance(error, ImportError) else ""
        raise SettingsError(f"the arbiter {name} cannot be loaded: {type(error).__name__}: {_line(error)}{hint}") from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _line(error: BaseException) -> str:
    """The text of an error, in one line."""
    return " ".join(str(error).split()) or "without a reason"
