"""Plug-ins that let several daemons agree on who acts. `make` gives the one of that name; `core.arbiter` says what each must
do."""

from __future__ import annotations

from collections.abc import Callable

from resource_manager.arbiters.builtin import BuiltinArbiter
from resource_manager.core.arbiter import Arbiter

ARBITERS: dict[str, Callable[[str], Arbiter]] = {"builtin": BuiltinArbiter}
"""Name of the plug-in to what makes one for the daemon of a given name."""


def make(arbiter: str, daemon: str) -> Arbiter:
    """The arbiter of that name for this daemon. ValueError names those that exist."""
    if arbiter not in ARBITERS:
        raise ValueError(f"there is no arbiter {arbiter!r}; there are: {', '.join(sorted(ARBITERS))}")
    return ARBITERS[arbiter](daemon)
