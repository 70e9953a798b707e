"""Tests of faults on a cluster with a resource manager: traffic with accounts, the changes of the primary, and the final
checks.

Life of a test of faults: `cluster`, `resource_manager`, `traffic`; the fault, `new_primary` or not, the end of the fault,
`healthy`. Leaving `traffic` requires that messages pass again, and compares the accounts message by message.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from proton import ProtonException

from cli.verify.run import Run, Workload
from tests.cli.running import Forked
from tests.system.harness import START_S, Asker, BrokerProcess, Cluster, Refused, ask, eventually, spawn
from tests.system.traffic import accounted

DETECTION_S = 1.0


class Manager:
    """A resource manager's process and its log."""

    def __init__(self, process: Forked, log_file: Path) -> None:
        self.process = process
        self.log_file = log_file

    def log(self) -> str:
        """What it has written."""
        return self.log_file.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to it."""
        self.process.send_signal(number)


@contextmanager
def resource_manager(
    folder: Path, brokers: Cluster, name: str = "rm", detection_s: float = DETECTION_S, options: Sequence[str] = ()
) -> Iterator[Manager]:
    """A resource manager watching the cluster, which ends in order."""
    log = folder / f"{name}.log"
    own = ["--brokers", brokers.url, "--name", name, "--detection-time", str(detection_s)]
    process = spawn(log, "qpid-resource-manager", *own, *options)
    try:
        yield Manager(process, log)
    except BaseException:
        print(f"--- {name}\n{log.read_text()[-3000:]}")
        raise
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(START_S) == 0
        assert "Traceback" not in log.read_text(), log.read_text()


@contextmanager
def traffic(
    brokers: Cluster,
    *,
    queue: str = "jobs",
    rate: float = 1000,
    before: int = 300,
    after: int = 300,
    heartbeat_s: float = 5,
    size: int = 100,
    once: bool = False,
) -> Iterator[Run]:
    """A producer and a consumer on a new queue, which have moved so many messages before the fault, and can move so many
    after it; at the end, everything is accounted for, and with `once` nothing has come twice. The primary is the last one of
    their list."""
    primary = brokers.primary()
    primary.create("queue", queue)
    addresses = [*(address for address in brokers.addresses if address != primary.address), primary.address]
    with Run(Workload(addresses, [queue], rate=rate, heartbeat_s=heartbeat_s, size=size)) as run:
        run.wait_for(accepted=before)
        yield run
        go_on(run, after)
        report = accounted(run, brokers.primary)
    if once:
        assert report.duplicated == 0, f"it repeats what nobody had lost: {report}"


def go_on(run: Run, count: int = 300) -> None:
    """Messages flow, now: wait for so many more."""
    run.wait_for(accepted=run.accepted + count)


@contextmanager
def states(brokers: Cluster, timeout_s: float = 10.0) -> Iterator[Callable[[BrokerProcess], str]]:
    """Asks brokers for their states again and again, each over one connection as long as it holds."""
    with ExitStack() as stack:
        askers = {each: stack.enter_context(closing(Asker(each.address, timeout_s))) for each in brokers.brokers}
        yield lambda broker: str(askers[broker].ask("QUERY", "ha", "", {})["items"][0]["status"])


def _active(brokers: Cluster, state: Callable[[BrokerProcess], str], but: BrokerProcess | None) -> BrokerProcess | None:
    for broker in brokers.brokers:
        if broker is not but and broker.running:
            with suppress(ProtonException, OSError, Refused):
                if state(broker) == "active":
                    return broker
    return None


def active(brokers: Cluster, *, but: BrokerProcess | None = None) -> BrokerProcess | None:
    """The broker that says soon that it is active, perhaps none; `but` is not asked."""
    with states(brokers, timeout_s=2) as state:
        return _active(brokers, state, but)


def new_primary(brokers: Cluster, was: BrokerProcess) -> BrokerProcess:
    """Wait until a broker other than that one is active."""
    with states(brokers, timeout_s=2) as state:
        found = eventually(lambda: _active(brokers, state, was), bool, f"another primary than {was.address}")
    assert found is not None
    return found


def healthy(brokers: Cluster, timeout_s: float = START_S) -> BrokerProcess:
    """Wait until one broker is active and the others are ready; the primary."""
    wanted = ["active"] + ["ready"] * (len(brokers.brokers) - 1)
    with states(brokers) as state:
        found = eventually(
            lambda: [state(broker) for broker in brokers.brokers],
            lambda found: sorted(found) == wanted,
            "a healthy cluster",
            timeout_s,
        )
    return brokers.brokers[found.index("active")]


def terms(broker: BrokerProcess) -> list[tuple[int, str]]:
    """Who was the primary in which epoch, as the cluster remembers it."""
    return [(item["epoch"], item["primary"]) for item in ask(broker.address, "QUERY", "history")["items"]]


def claims(brokers: Cluster) -> list[tuple[str, str]]:
    """(epoch, broker) of each time that a broker said in its log that it was active."""
    return [
        (line.split(" active in epoch ")[1].split(",")[0], broker.address)
        for broker in brokers.brokers
        for line in broker.log().splitlines()
        if " active in epoch " in line
    ]


def check_one_primary_an_epoch(brokers: Cluster) -> None:
    """No two brokers were active in one epoch."""
    said = claims(brokers)
    epochs = [epoch for epoch, _ in said]
    assert len(set(epochs)) == len(epochs), f"two primaries in one epoch: {sorted(said)}"
