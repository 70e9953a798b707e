"""What can happen to a cluster, its daemons and their control plane. Each fault returns when what must follow has come, and
leaves nothing behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from tests.arbiters.arena import DAEMONS, Arena, Happened
from tests.arbiters.systems import AWAY, System

Fault = Callable[[Arena], Happened]


def kill_the_primary(arena: Arena) -> Happened:
    """kill -9."""
    first, since_s = arena.primary, time.monotonic()
    first.kill()
    arena.another(first)
    first.start()
    return Happened(since_s=since_s)


def cut_the_primary_off(arena: Arena) -> Happened:
    """Its host's cable is out: brokers, daemons and clients do not reach it, and nobody is told."""
    first, since_s = arena.primary, time.monotonic()
    arena.lan.unplug(arena.host_of(first))
    arena.another(first)
    arena.lan.plug(arena.host_of(first))
    return Happened(since_s=since_s)


def cut_the_primary_from_the_daemons(arena: Arena) -> Happened:
    """The daemons do not reach the primary, whom everybody else does."""
    arena.lan.cut([arena.host_of(arena.primary)], DAEMONS)
    served = arena.go_on_for(arena.times.short)
    arena.lan.heal()
    return Happened(served)


def cut_a_daemon_off(arena: Arena) -> Happened:
    """The daemon that acts first reaches nobody, and then the primary is killed."""
    first = arena.primary
    arena.lan.unplug(DAEMONS[0])
    served = arena.go_on_for(arena.times.short)
    happened = kill_the_primary(arena)
    arena.lan.plug(DAEMONS[0])
    assert first.running
    return Happened(served, happened.since_s)


def kill_the_majority(arena: Arena) -> Happened:
    """The primary and backups: there is no majority until one comes back."""
    first, every = arena.primary, arena.brokers.brokers
    second, *others = [broker for broker in every if broker is not first][: len(every) // 2]
    for broker in (first, second, *others):
        broker.kill()
    arena.go_on_for(arena.times.short)
    since_s = time.monotonic()
    second.start()
    arena.another(first)
    for broker in (first, *others):
        broker.start()
    return Happened(since_s=since_s, detected=False)


def freeze_the_primary(arena: Arena) -> Happened:
    """Its process stands still and wakes up later, as after a pause of its virtual machine."""
    first, since_s = arena.primary, time.monotonic()
    first.freeze()
    arena.another(first)
    arena.go_on_for(max(0.0, arena.times.freeze - (time.monotonic() - since_s)))
    first.signal(signal.SIGCONT)
    first.wait_for("ready")
    return Happened(since_s=since_s)


def kill_the_control_plane(arena: Arena) -> Happened:
    """The arbiter's system is dead; where there is none, the daemons are."""
    alone = not arena.system.faults
    if alone:
        for daemon in arena.daemons:
            daemon.kill()
    arena.system.spoil(AWAY)
    served = arena.go_on_for(arena.times.control_plane)
    arena.system.mend()
    for daemon in arena.daemons if alone else ():
        daemon.start()
    return Happened(served)


def set_the_daemons_clocks(arena: Arena) -> Happened:
    """An hour ahead, an hour back, and then the primary is killed."""
    spans = []
    for ahead_s in (3600, -3600):
        for daemon in arena.daemons:
            daemon.set_clock(ahead_s)
        spans.append(arena.go_on_for(arena.times.control_plane / 2))
    happened = kill_the_primary(arena)
    for daemon in arena.daemons:
        daemon.set_clock(0)
    return Happened((spans[0][0], spans[-1][1]), happened.since_s)


def spoil_the_control_plane(fault: str) -> Fault:
    """What daemons meet of their arbiter's system, and inside of it the primary is killed."""

    def spoil(arena: Arena) -> Happened:
        arena.system.spoil(fault)
        served = arena.go_on_for(arena.times.control_plane)
        happened = kill_the_primary(arena)
        arena.system.mend()
        return Happened(served, happened.since_s)

    return spoil


OF_ALL: Mapping[str, Fault] = {
    "the primary is killed": kill_the_primary,
    "the primary is cut off": cut_the_primary_off,
    "the primary is cut from the daemons": cut_the_primary_from_the_daemons,
    "a daemon is cut off, then the primary is killed": cut_a_daemon_off,
    "the majority is killed, one of it comes back": kill_the_majority,
    "the primary is frozen, and wakes": freeze_the_primary,
    "the control plane is dead": kill_the_control_plane,
    "the daemons' clocks are set, then the primary is killed": set_the_daemons_clocks,
}
"""What can happen whatever the arbiter is."""


def of(system: type[System]) -> dict[str, Fault]:
    """All that can happen to it."""
    own = {f"{system.name}: {fault}, then the primary is killed": spoil_the_control_plane(fault) for fault in system.faults}
    return {**OF_ALL, **own}
