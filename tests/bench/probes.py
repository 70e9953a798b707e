"""How soon a busy broker answers probes: `python -m tests.bench --scenario probes`.

A cluster of three, ten producers and ten consumers on ten queues, at the primary as fast as it takes and gives messages of 1 KiB;
they give way to the brokers (`nice`), so that the primary's thread has no pause. A prober, in this process, asks `/livez`,
`/startedz` and `/readyz` of all three brokers in turn, each over a new socket, as haproxy does. Each answer must be right.
Rows without load come first; "late" counts answers that took longer than `WITHIN_S`.

"its own work" is the processor time that the primary's thread used from the question to the answer: what the broker itself makes
of it, and what it did meanwhile if the prober had no core; it must be within `WITHIN_S`. "apart from waits for a core" is the
time of the primary's answers less that for which its thread and the prober's were ready to run and had no core. The thread's
waits for Python's lock and for disks are in it; a wait of both at once is taken off twice, so it is the least. The backups' row
has what the machine makes of it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.meter import cpu_s
from tests.system import harness
from tests.system.test_haproxy import Probed

WITHIN_S = 0.1
PAIRS = 10
PAUSE_S = 0.01
PATHS = ("/livez", "/startedz", "/readyz")
_OWN, _APART = "its own work", "apart from waits for a core"
_SELF = Path("/proc/thread-self")
_BEFORE_S = 1.0
"""Time for the load to begin."""


def measure(folder: Path, load: str, messages: int) -> bool:
    """Print a table of how long answers took, without load and under it. Whether each was right, and the primary itself worked no
    longer than that for any."""
    with harness.cluster(folder, 3, "--ha-replicate", "all", make=Probed) as brokers:
        primary = brokers.brokers[0]
        queues = [f"q{number}" for number in range(PAIRS)]
        unbounded = {"replicate": "all", "arguments": {"qpid.max_size": 0}}
        harness.ask_all(primary.address, *(("CREATE", "queue", queue, unbounded) for queue in queues))
        print(
            f"{'probes of':<46}{'answers':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'late':>7}{'wrong':>7}{'busy':>7}{'load':>7}"
        )
        good = _row("an idle primary", brokers.brokers, [])
        each = str(messages // PAIRS)
        commands = [[load, "send", primary.url, queue, each, "1024", "1000"] for queue in queues]
        commands += [[load, "receive", primary.url, queue, each, "1000"] for queue in queues]
        running = [subprocess.Popen(["nice", "-n", "10", *command], stdout=subprocess.DEVNULL) for command in commands]
        time.sleep(_BEFORE_S)
        good &= _row("a busy primary", brokers.brokers, running)
        assert [process.wait(300) for process in running] == [0] * len(running), "the load has failed"
    return good


def _row(name: str, brokers: Sequence[harness.BrokerProcess], running: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Probe while the load runs, or for some seconds, and print what was seen."""
    took: dict[str, list[float]] = {"primary": [], _OWN: [], _APART: [], "backups": []}
    wrong, began_s, cpu_began_s = 0, time.monotonic(), cpu_s(brokers[0])
    while all(process.poll() is None for process in running) and (running or time.monotonic() < began_s + 3):
        for number, broker in enumerate(brokers):
            for path in PATHS:
                assert isinstance(broker, Probed)
                asked_s, before, ours = time.perf_counter(), _scheduled(_main_thread(broker)), _scheduled(_SELF)
                status, _ = broker.probe(path)
                took_s, after = time.perf_counter() - asked_s, _scheduled(_main_thread(broker))
                took["backups" if number else "primary"].append(took_s)
                if not number:
                    took[_OWN].append(after.ran_s - before.ran_s)
                    waited_s = after.waited_s - before.waited_s + _scheduled(_SELF).waited_s - ours.waited_s
                    took[_APART].append(max(0.0, took_s - waited_s))
                wrong += status != (503 if number and path == "/readyz" else 200)
        time.sleep(PAUSE_S)
    busy = (cpu_s(brokers[0]) - cpu_began_s) / (time.monotonic() - began_s)
    for whom, found in took.items():
        cuts, late = statistics.quantiles(found, n=100), sum(seconds > WITHIN_S for seconds in found)
        print(
            f"{f'{name}: {whom}':<46}{len(found):>9,}{cuts[49] * 1e3:>9.1f}{cuts[98] * 1e3:>9.1f}{max(found) * 1e3:>9.1f}"
            f"{late:>7}{wrong:>7}{busy:>7.0%}{os.getloadavg()[0]:>7.1f}",
            flush=True,
        )
    return wrong == 0 and max(took[_OWN]) <= WITHIN_S


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """For how long a thread has had a core so far, and for how long it was ready to run and had none."""

    ran_s: float
    waited_s: float


def _scheduled(thread: Path) -> _Scheduled:
    """What the kernel says of a thread (proc(5), schedstat)."""
    ran, waited = (thread / "schedstat").read_text().split()[:2]
    return _Scheduled(int(ran) / 1e9, int(waited) / 1e9)


def _main_thread(broker: harness.BrokerProcess) -> Path:
    assert broker.process is not None
    return Path(f"/proc/{broker.process.pid}")
