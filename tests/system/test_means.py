"""The tools of the tests of faults: each one does what it says, and nothing else. A fault that has no effect proves nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.filesystems import MIB, disk, memory
from tests.system.harness import eventually
from tests.system.means import where_possible
from tests.system.namespaces import CLIENT, Lan, bridged_lan, slow_lan

PORT = 7000
COUNT = 200
TRIALS = itertools.count()


def network() -> str:
    """Which network namespace this thread is in."""
    return os.readlink("/proc/thread-self/ns/net")


@contextlib.contextmanager
def listening(lan: Lan, number: int) -> Iterator[socket.socket]:
    """A socket on a host that takes datagrams."""
    with lan.inside(number), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.bind((lan.address(number), PORT))
        taker.settimeout(0.3)
        yield taker


def take(taker: socket.socket, trial: int) -> int:
    """The next number of a trial; what is still under way of an earlier one is passed over."""
    while True:
        of, number = map(int, taker.recv(100).split())
        if of == trial:
            return number


def arrived(lan: Lan, source: int, target: int, count: int = 1) -> int:
    """How many of so many datagrams come through from one host to another."""
    trial = next(TRIALS)
    with listening(lan, target) as taker:
        with lan.inside(source), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(count):
                sender.sendto(b"%d %d" % (trial, number), (lan.address(target), PORT))
        came = 0
        with contextlib.suppress(TimeoutError):
            while came < count:
                take(taker, trial)
                came += 1
    return came


@where_possible
def test_links_are_cut_one_way_or_both_unplugged_and_healed() -> None:
    outside = network()
    with bridged_lan(2) as lan:
        assert network() != outside
        eventually(lambda: (arrived(lan, 1, 2), arrived(lan, 2, 1), arrived(lan, CLIENT, 1)), all, "links that are up")
        lan.cut([1], [2], both_ways=False)
        assert (arrived(lan, 1, 2), arrived(lan, 2, 1), arrived(lan, CLIENT, 2)) == (0, 1, 1)
        assert lan.dropped() == 1
        lan.cut([1], [2])
        assert (arrived(lan, 1, 2), arrived(lan, 2, 1), arrived(lan, CLIENT, 2)) == (0, 0, 1)
        lan.heal()
        lan.unplug(2)
        assert (arrived(lan, CLIENT, 2), arrived(lan, 2, CLIENT), arrived(lan, CLIENT, 1)) == (0, 0, 1)
        lan.plug(2)
        both = eventually(lambda: (arrived(lan, CLIENT, 2), arrived(lan, 2, CLIENT)), all, "datagrams both ways")
        assert both == (1, 1)
    assert network() == outside


@where_possible
def test_frames_are_lost_at_about_the_rate_that_was_asked_for() -> None:
    with bridged_lan(1) as lan:
        eventually(lambda: arrived(lan, CLIENT, 1), bool, "links that are up")
        lan.lose(30)
        assert COUNT * 0.5 < arrived(lan, CLIENT, 1, COUNT) < COUNT * 0.9
        lan.lose(0)
        assert arrived(lan, CLIENT, 1, COUNT) == COUNT


@where_possible
def test_the_slow_switch_delays_every_frame_and_keeps_their_order() -> None:
    with slow_lan(0.03, 0.03, 1) as lan:
        eventually(lambda: arrived(lan, CLIENT, 1), bool, "links that are up")
        with listening(lan, 1) as taker, lan.inside(CLIENT), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            taker.settimeout(10)
            trial = next(TRIALS)
            began = time.monotonic()
            for number in range(COUNT):
                sender.sendto(b"%d %d" % (trial, number), (lan.address(1), PORT))
            came = [take(taker, trial)]
            first_s = time.monotonic() - began
            came += [take(taker, trial) for _ in range(COUNT - 1)]
        assert first_s >= 0.03
        assert came == list(range(COUNT))


@where_possible
def test_nothing_of_a_network_is_left_when_a_test_in_it_fails() -> None:
    """Namespaces without names live as long as a process is in them or has them open."""
    outside = network()
    inside: set[str] = set()
    with contextlib.suppress(ZeroDivisionError), bridged_lan(1) as lan:
        inside.add(network())
        with lan.inside(1):
            inside.add(network())
        lan.unplug(1)
        raise ZeroDivisionError
    assert network() == outside
    assert len(inside) == 2
    held = set()
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # a process, or a descriptor, that has ended since
            held.add(os.readlink(path))
    assert outside in held
    assert not inside & held


@where_possible
def test_a_disk_that_loses_power_has_what_was_synced_and_nothing_else(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", tmp_path / "image") as one:
        synced, unsynced = one.folder / "synced", one.folder / "unsynced"
        for path in (synced, unsynced):
            path.write_bytes(b"x" * 10_000)
        with synced.open("rb") as file:
            os.fsync(file.fileno())
        with synced.open("ab") as file:
            file.write(b"more")
        one.lose_power()
        with pytest.raises(OSError, match="Input/output"):
            (one.folder / "later").write_bytes(b"x")
        one.repair()
        assert synced.read_bytes() == b"x" * 10_000
        assert not unsynced.exists() or unsynced.read_bytes() == b""
    assert not os.path.ismount(tmp_path / "disk")


@where_possible
def test_a_disk_whose_backing_is_used_up_takes_writes_and_fails_to_sync_them(tmp_path: Path) -> None:
    with memory(tmp_path / "pool", 12 * MIB) as pool, disk(tmp_path / "disk", pool.folder / "image") as one:
        pool.fill()
        with (one.folder / "file").open("wb", buffering=0) as file:
            file.write(os.urandom(MIB))
            with pytest.raises(OSError, match=r"No space left|Input/output"):
                os.fdatasync(file.fileno())


@where_possible
def test_a_small_file_system_is_full_until_it_is_grown(tmp_path: Path) -> None:
    with memory(tmp_path / "small", MIB) as small:
        small.fill()
        assert small.free_bytes() == 0
        with pytest.raises(OSError, match="No space left"):
            (small.folder / "more").write_bytes(b"x")
        small.grow(2 * MIB)
        (small.folder / "more").write_bytes(b"x")
    assert list(small.folder.iterdir()) == []
