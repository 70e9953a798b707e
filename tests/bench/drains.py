"""How fast a drain is, and what it takes from others: `python -m tests.bench --scenario drain`.

A cluster of three takes the messages, each broker with 64 MiB for bodies. First one producer sends messages of 1 KiB to a queue
of level all, as fast as it can: the plain rate. Then a broker by itself, which has as many messages, is drained into the cluster.
Last another one is drained with `--rate`, a tenth of the plain rate, while a producer sends as before; it is set against a
producer without a drain, right before.

Good: the drain has 60 % of the plain rate, no process has grown by more than 64 MiB beyond what bodies may take, and a producer
beside a drain that is held back has 70 % of what it had alone. Figures move with the machine; the ratios are of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.system import harness

SHARE, SHARE_LEFT, MOST_MIB = 0.6, 0.7, 64
BODIES_MIB = 64
RATE = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measure(folder: Path, load: str, messages: int) -> bool:
    """Print the table. Whether all of it is good."""
    bodies = ("--message-memory", f"{BODIES_MIB}M")
    with harness.cluster(folder / "target", 3, "--ha-replicate", "all", *bodies) as target:
        primary = target.primary()

        def send(to: harness.BrokerProcess, queue: str, count: int) -> subprocess.Popen[str]:
            to.create("queue", queue, arguments={"qpid.max_size": 0})
            return subprocess.Popen([load, "send", to.url, queue, str(count), "1024", "1000"], stdout=subprocess.PIPE, text=True)

        plain = _rate(send(primary, "plain", messages))
        print(f"{'drain':<34}{'messages/s':>12}{'of plain':>10}{'source MiB':>12}{'target MiB':>12}{'drainer MiB':>13}")
        print(f"{'one producer alone':<34}{plain:>12,.0f}", flush=True)
        with harness.standalone(folder / "first", *bodies) as source:
            _rate(send(source, "moved", messages))
            rate, grown = _drained(folder, source, target, messages)
        good = rate >= SHARE * plain and all(each <= MOST_MIB + BODIES_MIB for each in grown)
        print(
            f"{'a drain':<34}{rate:>12,.0f}{rate / plain:>10.0%}{grown[0]:>+12.0f}{grown[1]:>+12.0f}{grown[2]:>13.0f}", flush=True
        )
        alone = _rate(send(primary, "alone", messages))
        with harness.standalone(folder / "second", *bodies) as source:
            _rate(send(source, "slowly", messages))
            producer: list[subprocess.Popen[str]] = []
            words = ("--rate", f"{RATE * plain:.0f}", "--deadline", "300")
            _drained(folder, source, target, 0, *words, begun=lambda: producer.append(send(primary, "beside", messages)))
            beside = _rate(producer[0])
        print(f"{'a producer, alone':<34}{alone:>12,.0f}")
        print(f"{f'the same beside a drain of {RATE:.0%}':<34}{beside:>12,.0f}{beside / alone:>10.0%}", flush=True)
    good &= beside >= SHARE_LEFT * alone
    print(f"a drain is {'as fast as it has to be' if good else 'too slow, or takes too much'}", flush=True)
    return good


def _rate(sending: subprocess.Popen[str]) -> float:
    """What a producer says at its end, in messages a second."""
    said, _ = sending.communicate(timeout=300)
    assert sending.returncode == 0, "the load has failed"
    return float(json.loads(said.strip().splitlines()[-1])["rate"])


def _drained(
    folder: Path,
    source: harness.BrokerProcess,
    target: harness.Cluster,
    messages: int,
    *words: str,
    begun: Callable[[], Any] = lambda: None,
) -> tuple[float, list[float]]:
    """Drain it. Messages a second from when it has begun to leave, and by how many MiB source, target and drainer have grown."""
    primary, log = target.primary(), folder / f"{source.port}.log"
    pids = [each.process.pid for each in (source, primary) if each.process is not None]
    before = [_mib(pid) for pid in pids]
    most = [*before, 0.0]
    own = ["--from", source.address, "--to", target.url, "--spread", "0", *words]
    drain = harness.spawn(log, "qpid-drain", *own)
    while not log.read_text().startswith("leaving") and drain.poll() is None:
        time.sleep(0.01)
    began_s = time.monotonic()
    begun()
    while drain.poll() is None:
        most = [max(pair) for pair in zip(most, map(_mib, (*pids, drain.pid)), strict=True)]
        time.sleep(0.1)
    took_s = time.monotonic() - began_s
    assert drain.wait() == 0, log.read_text()
    return messages / took_s, [most[0] - before[0], most[1] - before[1], most[2]]


def _mib(pid: int) -> float:
    """The resident memory of a process; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / (1 << 20)
    except (OSError, IndexError):
        return 0.0
