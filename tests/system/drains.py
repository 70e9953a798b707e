"""`python -m tests.system.drains`: scale down again and again, while all processes are killed at random (`make drains`).

Life of a run: a single broker has its store in a folder, and a cluster of three takes its messages. In each round the broker
gets messages, and then is no longer wanted. In every other round it continues to run and is drained by `qpid-drain --from`;
otherwise it is stopped, and `qpid-scaledown` drains its store. Meanwhile the drainer, the source (the broker, or the drain on
its store), the target's primary and the controller are killed, each after a random time, and started again. Between two kills
the target's disks are full for a moment, or the network between the drainer and the target stands still or is cut. Sometimes
the broker is wanted again in the middle of a drain: the drain is cancelled. After enough kills the last round is completed.

A consumer takes the messages from the target all the time; without a consumer, all messages are taken at the end. Then the
checker of `cli.verify` compares the accounts: no message is lost, none is repeated, all are in order. One repetition is
allowed: a message whose acceptance was not confirmed when the primary was killed may reach that consumer again. Any other
repetition is a fault of the drain.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import proton

from cli.verify.core.checker import Checker
from cli.verify.core.measures import Measures
from tests.cli.running import Forked, run
from tests.system.filesystems import MIB, Memory, memory
from tests.system.harness import BrokerProcess, Cluster, ask, cluster, eventually, free_ports, spawn
from tests.system.takers import Taker
from tests.system.tcp_proxy import TcpProxy, tcp_proxy
from tests.system.traffic import send, take

QUEUES = ("orders", "bills")
_LONG_S = 300.0
_DISK_BYTES = 4096 * MIB
_PORTION = 2000
"""Messages that are taken over one connection."""


class Drains:
    """See the module. `proxies` stand before the brokers of the target, `disk` is where these have their stores."""

    def __init__(
        self,
        folder: Path,
        new: Cluster,
        kills: int,
        batch: int,
        rng: random.Random,
        *,
        proxies: Sequence[TcpProxy],
        disk: Memory | None,
        consumes: bool,
    ) -> None:
        self.folder = folder
        self.new = new
        self.proxies, self.disk = proxies, disk
        self.to = "amqp:" + ",".join(proxy.address for proxy in proxies)
        self.faults: Counter[str] = Counter()
        self.checker = Checker(list(QUEUES), producers=1, consumers=1)
        self.taker = Taker(new.addresses, QUEUES, self.checker, _message) if consumes else None
        self.left = kills
        self.batch = batch
        self.rng = rng
        self.killed: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.sent = dict.fromkeys(QUEUES, 0)
        self.stores, self.replicas = folder / "stores", folder / "replicas"
        self.stores.mkdir()
        self.old = BrokerProcess(folder / "old", free_ports(1)[0], [])
        self.old.store = self.stores / "queues-1"
        self.drainer: Forked | None = None
        self.controller: Forked | None = None
        self._began_s = time.monotonic()

    def run(self) -> None:
        """All rounds."""
        self.old.start()
        self.old.wait_for("standalone")
        for queue in QUEUES:
            self.old.create("queue", queue)
        while self.left:
            self._feed()
            live = self.rounds.total() % 2 == 0
            self._scale_down(live=live)
            called_off = self.rng.random() < 0.4
            until_s = time.monotonic() + self.rng.uniform(0.5, 6.0)
            while self.left and not self._is_released() and not (called_off and time.monotonic() > until_s):
                time.sleep(self.rng.uniform(0.05, 0.8))
                self._go_on(live=live)
                if self.rng.random() < 0.3:
                    self._hold_up()
                self._kill(live=live)
            if not called_off:
                eventually(partial(self._goes_on_until_released, live=live), bool, "the release", _LONG_S)
            self.rounds[("live" if live else "orphan") + (", called off" if not self._is_released() else "")] += 1
            self._scale_up(live=live)

    def _feed(self) -> None:
        for queue in QUEUES:
            first = self.sent[queue]
            made = [_message(queue, number) for number in range(first, first + self.batch)]
            assert send(self.old.address, queue, made) == self.batch
            self.sent[queue] += self.batch

    # ---- one round

    def _scale_down(self, *, live: bool) -> None:
        if live:
            self.replicas.write_text("2")
        else:
            self.replicas.write_text("1")
            self.old.kill()
        self._go_on(live=live)

    def _go_on(self, *, live: bool) -> None:
        """What was killed is there again."""
        if live:
            if not self.old.running:
                self.old.start()
                self.old.wait_for("standalone")
            if self.drainer is None or self.drainer.poll() is not None:
                words = ("--from", self.old.address, "--to", self.to, "--spread", "0")
                self.drainer = spawn(self.folder / "drain.log", "qpid-drain", *words)
        elif self.controller is None or self.controller.poll() is not None:
            files = ("--stores", str(self.stores), "--replicas-file", str(self.replicas), "--poll", "0.2", "--timeout", "2")
            brokers = f"127.0.0.1:{{{self.old.port - 1}+ordinal}}"
            log = self.folder / "controller.log"
            self.controller = spawn(log, "qpid-scaledown", *files, "--brokers", brokers, "--to", self.to)

    def _goes_on_until_released(self, *, live: bool) -> bool:
        self._go_on(live=live)
        return self._is_released()

    def _kill(self, *, live: bool) -> None:
        who = self.rng.choice(["drainer", "source", "primary"] if live else ["controller", "source", "primary"])
        if who == "primary":
            primary = self.new.primary()
            primary.kill()
            self.new.succeed()
            primary.start()
            primary.wait_for("ready")
        elif who == "source" and live:
            self.old.kill()
        elif who == "source":
            pids = _children(self.controller)
            if not pids:
                return
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
        else:
            process = self.drainer if live else self.controller
            if process is None or process.poll() is not None:
                return
            process.send_signal(9)
            process.wait(_LONG_S)  # else who looks right after still finds it
        self.left -= 1
        self.killed[who] += 1
        print(f"{time.monotonic() - self._began_s:.1f} s: {who} killed, {self.left} to go", flush=True)

    def _hold_up(self) -> None:
        """For a moment the target's disks have no room, or it cannot be reached."""
        what = self.rng.choice(["full", "stalled", "cut"] if self.disk is not None else ["stalled", "cut"])
        if what == "full":
            assert self.disk is not None
            self.disk.shrink()
        for proxy in self.proxies:
            if what == "stalled":
                proxy.stall()
            elif what == "cut":
                proxy.cut()
        time.sleep(self.rng.uniform(0.2, 2.0))
        if self.disk is not None:
            self.disk.grow(_DISK_BYTES)
        for proxy in self.proxies:
            proxy.mend()
        self.faults[what] += 1

    def _is_released(self) -> bool:
        if self.old.running:
            return bool(ask(self.old.address, "QUERY", "drain")["items"][0]["released"])
        return (self.old.store / "released.json").exists() and not _children(self.controller)

    def _scale_up(self, *, live: bool) -> None:
        """The broker is wanted again, be it drained or not."""
        self.replicas.write_text("2")
        if live:
            if self.drainer is not None:
                self.drainer.send_signal(9)
            if not self.old.running:
                self.old.start()
                self.old.wait_for("standalone")
            found = run("qpid-drain", "--from", self.old.address, "--cancel")
            assert found.status == 0, str(found)
        else:
            self._go_on(live=False)
            eventually(lambda: not _children(self.controller), bool, "the drain's end", _LONG_S)
            self.old.start()
            self.old.wait_for("standalone")
            eventually(
                lambda: ask(self.old.address, "QUERY", "drain")["items"][0]["leaving"], lambda leaves: not leaves, "opened"
            )
            assert self.controller is not None
            self.controller.send_signal(9)

    # ---- the account

    def account(self) -> dict[str, Any]:
        """Take everything, and say what became of it. AssertionError when it is not as it should be."""
        checker = self.checker
        for at, queue in enumerate(QUEUES):
            checker.sent((0, at), 0, self.sent[queue])
            checker.accepted((0, at), 0, self.sent[queue])
        found: Counter[str] = Counter()
        taken = 0
        if self.taker is not None:
            eventually(self._at_target, lambda count: count == 0, "all being taken at the target", _LONG_S)
            self.taker.close()
            found["taken meanwhile"] = taken = self.taker.taken
            print(f"{taken} taken meanwhile over {self.taker.connections} connections", flush=True)
        else:
            checker.attached(0, 0.0)
        places = {"target": self.new.primary().address, "source": self.old.address}
        for at, queue in enumerate(QUEUES):
            for place, address in places.items():
                count = int(ask(address, "QUERY", "queue", queue)["items"][0]["messages"])
                found[place] += count
                portions = [min(_PORTION, count - done) for done in range(0, count, _PORTION)]
                for data in (each for portion in portions for each in take(address, queue, portion)):
                    message: Any = proton.Message()
                    message.decode(data)
                    number = int(message.id)
                    checker.received(0, (0, at), number, 1, 1.0)
                    if data != _message(queue, number):
                        checker.altered((0, at), number)
                print(f"{queue}: {count} of {self.sent[queue]} at the {place}", flush=True)
        report = checker.report(Measures())
        print(report)
        assert report.faults() == []
        assert report.duplicated == 0 or self.taker is not None, "nobody's acceptance was lost"
        sent = sum(self.sent.values())
        return {
            "sent": sent,
            "rounds": dict(self.rounds),
            "killed": dict(self.killed),
            "held up": dict(self.faults),
            "at": dict(found),
            "again by unconfirmed acceptances": report.duplicated,
            "faults": report.faults(),
        }

    def _at_target(self) -> int:
        return sum(int(item["messages"]) for item in ask(self.new.primary().address, "QUERY", "queue")["items"])

    def close(self) -> None:
        """End all processes."""
        if self.taker is not None:
            self.taker.close()
        for process in (self.drainer, self.controller):
            if process is not None:
                process.send_signal(9)
        self.old.kill()


def _message(queue: str, number: int) -> bytes:
    made: Any = proton.Message(body=f"{queue}/{number}/" + "x" * 200, id=number, durable=True)
    return bytes(made.encode())


def _children(process: Forked | None) -> list[int]:
    if process is None or process.poll() is not None:
        return []
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def main() -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.drains", description="Scale down while everybody is killed.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--batch", type=int, default=20_000, help="messages for each of two queues in a round (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-consumer", action="store_true", help="take everything at the end, and nothing meanwhile")
    given = parser.parse_args()
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root = os.geteuid() == 0
        if not root:
            print("no disk is filled: that needs root")
        disk = stack.enter_context(memory(folder / "new", _DISK_BYTES) if root else nullcontext())
        new = stack.enter_context(cluster(folder / "new", 3, "--ha-replicate", "all"))
        proxies = [stack.enter_context(tcp_proxy(address)) for address in new.addresses]
        rng, consumes = random.Random(given.seed), not given.no_consumer
        drains = Drains(folder, new, given.kills, given.batch, rng, proxies=proxies, disk=disk, consumes=consumes)
        try:
            drains.run()
            facts = drains.account()
        finally:
            drains.close()
    print(json.dumps(facts | {"seconds": round(time.monotonic() - began_s)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
