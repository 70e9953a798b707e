"""A small network for one test: hosts in network namespaces, joined by a switch in another one. Its links can be disturbed.

Life of a `Lan`: its namespaces have no names. So they, their interfaces and rules exist only as long as this process has
their file descriptors, or a process that was started in one of them runs; even a killed test leaves nothing behind. Within
the context, the calling thread and the processes that it starts are in the client's namespace; brokers are started through
`place(number)`. The addresses (10.77.0.0/24) exist only there.

There are two switches. The first is a bridge of the kernel with rules (nftables) that cut, one way or both, and lose frames
at random. The second is for delays, because these need a queueing discipline that not every kernel has:
`tests.system.slow_switch`, a process that holds the other ends of TAP devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from tests.cli.running import ROOT, environment, zygote
from tests.system.harness import Place
from tests.system.means import NotHere, must_be_root, program, run

CLIENT = 0
"""The number of the host on which the test and its clients run; brokers' hosts are 1, 2, 3."""
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_RULES = """
table bridge faults {
    set cut { type ipv4_addr . ipv4_addr; }
    chain loss { }
    chain forward {
        type filter hook forward priority 0; policy accept;
        ip saddr . ip daddr @cut counter drop
        jump loss
    }
}
"""
_libc = ctypes.CDLL(None, use_errno=True)


def _own() -> int:
    """A descriptor of the namespace that the calling thread is in."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _new_namespace() -> int:
    """A new namespace with loopback up. NotHere where the kernel refuses."""
    before = _own()
    try:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise NotHere(f"network namespaces ({os.strerror(ctypes.get_errno())})")
        made = _own()
        run(program("ip", "iproute2"), "link", "set", "lo", "up")
        return made
    finally:
        _enter(before)
        os.close(before)


class Lan:
    """Hosts that a switch joins. `size` brokers' hosts, numbered from 1, besides the client's."""

    def __init__(self, size: int) -> None:
        self._ip = program("ip", "iproute2")
        self._namespaces: list[int] = []
        try:
            for _ in range(size + 1):
                self._namespaces.append(_new_namespace())
        except BaseException:
            self.close()
            raise

    @staticmethod
    def address(number: int) -> str:
        """The IP address of a host."""
        return f"10.77.0.{10 + number}"

    @property
    def places(self) -> list[Place]:
        """Where brokers run: each on a host of its own."""
        return [Place(self.address(number), partial(self.inside, number)) for number in self.hosts[1:]]

    @property
    def hosts(self) -> Sequence[int]:
        """The numbers of all hosts, the client's first."""
        return range(len(self._namespaces))

    @contextlib.contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """The calling thread, and what it starts, is on this host."""
        with _inside(self._namespaces[number]):
            yield

    def close(self) -> None:
        """Let go of everything."""
        while self._namespaces:
            os.close(self._namespaces.pop())

    def _configure(self, number: int) -> None:
        """Give the interface of the host that the calling thread is on its address.

        The client's host gives up connecting to one that does not answer after three seconds, and not after two minutes: proton
        leaves that to the system. Brokers' hosts are as usual.
        """
        if number == CLIENT:
            Path("/proc/sys/net/ipv4/tcp_syn_retries").write_text("1")
        run(self._ip, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        run(self._ip, "link", "set", "eth0", "up")


class BridgedLan(Lan):
    """A network whose links can be unplugged, cut one way or between two hosts, and made to lose frames."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._nft = program("nft", "nftables")
        self._switch = _new_namespace()
        try:
            with _inside(self._switch):
                run(self._ip, "link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
                run(self._ip, "link", "set", "switch", "up")
                run(self._nft, "-f", "-", stdin=_RULES)
            for number in self.hosts:
                with self.inside(number):
                    there = f"/proc/{os.getpid()}/fd/{self._switch}"
                    wire = ["type", "veth", "peer", "name", f"port{number}", "netns", there]
                    run(self._ip, "link", "add", "eth0", *wire)
                    self._configure(number)
                with _inside(self._switch):
                    run(self._ip, "link", "set", f"port{number}", "master", "switch", "up")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        if self._switch >= 0:
            os.close(self._switch)
            self._switch = -1

    def unplug(self, number: int) -> None:
        """Take a host's link down at the switch: nothing comes in or out, and nobody tells the other hosts."""
        with _inside(self._switch):
            run(self._ip, "link", "set", f"port{number}", "down")

    def plug(self, number: int) -> None:
        """Take it up again."""
        with _inside(self._switch):
            run(self._ip, "link", "set", f"port{number}", "up")

    def cut(self, senders: Sequence[int], receivers: Sequence[int], *, both_ways: bool = True) -> None:
        """Drop what goes from these hosts to those, and the other way too unless told otherwise."""
        pairs = [(a, b) for a in senders for b in receivers if a != b]
        pairs += [(b, a) for a, b in pairs] if both_ways else []
        elements = ", ".join(f"{self.address(a)} . {self.address(b)}" for a, b in pairs)
        self._rule(f"add element bridge faults cut {{ {elements} }}")

    def lose(self, percent: int) -> None:
        """From now on lose so many of a hundred frames, at random, on every link."""
        rule = f"add rule bridge faults loss numgen random mod 100 < {percent} counter drop" if percent else ""
        self._rule(f"flush chain bridge faults loss\n{rule}\n")

    def heal(self) -> None:
        """Nothing is cut or lost any more."""
        self._rule("flush set bridge faults cut\nflush chain bridge faults loss\n")

    def dropped(self) -> int:
        """How many frames have met the rules that drop."""
        with _inside(self._switch):
            listed = run(self._nft, "list", "table", "bridge", "faults").split()
        return sum(int(listed[at + 1]) for at, word in enumerate(listed) if word == "packets")

    def _rule(self, text: str) -> None:
        with _inside(self._switch):
            run(self._nft, "-f", "-", stdin=text)


class SlowLan(Lan):
    """A network on which every frame is delayed, some more than others, each link's frames in their order."""

    def __init__(self, size: int, delay_s: float, jitter_s: float, seed: int = 1) -> None:
        super().__init__(size)
        taps: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        try:
            for number in self.hosts:
                with self.inside(number):
                    taps.append(_tap())
                    self._configure(number)
            words = [str(delay_s), str(jitter_s), str(seed), *map(str, taps)]
            command = [sys.executable, "-m", "tests.system.slow_switch", *words]
            self._process = subprocess.Popen(command, pass_fds=taps, cwd=ROOT, env=environment(), stdin=subprocess.PIPE)
        except BaseException:
            self.close()
            raise
        finally:
            for tap in taps:
                os.close(tap)

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=10)
            self._process = None


def _tap() -> int:
    """The switch's end of a TAP device named eth0 in the calling thread's namespace."""
    if not Path("/dev/net/tun").exists():
        raise NotHere("/dev/net/tun (modprobe tun)")
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    return tap


@contextlib.contextmanager
def _inside(namespace: int) -> Iterator[None]:
    before = _own()
    try:
        _enter(namespace)
        yield
    finally:
        _enter(before)
        os.close(before)


@contextlib.contextmanager
def on_client(lan: Lan) -> Iterator[None]:
    """The calling thread is on the client's host of this network, which is closed at the end."""
    # Else these would be started on the client, and hold its namespace for the rest of the run.
    resource_tracker.ensure_running()
    zygote()
    try:
        with lan.inside(CLIENT), _fork_server_of_its_own():
            yield
    finally:
        lan.close()


@contextlib.contextmanager
def _fork_server_of_its_own() -> Iterator[None]:
    """What multiprocessing forks is where its server was started: here, and, once this is left, where it is started next."""
    server: Any = forkserver._forkserver
    server._stop()
    try:
        yield
    finally:
        server._stop()


@contextlib.contextmanager
def bridged_lan(size: int = 3) -> Iterator[BridgedLan]:
    """A network with a bridge, the calling thread on its client."""
    must_be_root()
    lan = BridgedLan(size)
    with on_client(lan):
        yield lan


@contextlib.contextmanager
def slow_lan(delay_s: float, jitter_s: float, size: int = 3) -> Iterator[SlowLan]:
    """A network with a slow switch, the calling thread on its client."""
    must_be_root()
    lan = SlowLan(size, delay_s, jitter_s)
    with on_client(lan):
        yield lan
