"""`make demo`: the main job on real input, with everything that a cluster is for happening to it on the way.

Life of a run: an authority, certificates and users are made for it; three brokers and a resource manager start on loopback, with
their stores in a temporary folder; everything between them, the clients and the commands is over TLS, and logs in; `qpid-config`
makes a replicated queue; a producer sends every line of a text as a message while a consumer takes them; half-way the primary
gets kill -9, and the resource manager has a backup promoted; the killed broker comes back and catches up; `qpid-ha
switchover` moves the primary once more; what was accepted is compared with what was received. At the end the cluster leaves: the
queue is filled once more, `qpid-drain` moves it to a fresh broker, and what is there is counted. The brokers stop; Spark makes a
page of the replication lag; a table tells all.

INPUT=file   the text to send; without it one that the machine has. It is sent again until there are at least 100,000 messages
             and all of this has happened.
KEEP=1       leave the cluster running, and print the commands to play with it. It does not leave then.

Exit status: 0 all accepted messages have arrived unaltered; 1 not so, or a step failed; 2 the input cannot be sent; 130
interrupted.

Invariants: whatever was started is stopped, however the run ends, except the cluster with KEEP=1; the folder is kept when
there is something to look up in it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.core.sasl_client import Login
from broker.tls_files import TlsFiles
from cli.demo.cluster import STEP_TIMEOUT_S, Cluster, Failed, ask, command, wait_until
from cli.demo.credentials import CLIENT, USERS
from cli.demo.screen import Screen
from cli.demo.text import BadInput, Lines, choose_text, planned, read_text, split_lines, usual_texts
from cli.output import figures
from cli.verify.core.checker import Report
from cli.verify.core.measures import longest_gap_s
from cli.verify.run import Run, RunError, Workload

QUEUE = "demo"
WINDOW = 400
PAGE = Path("build/demo/lag.html")
SPARK_TIMEOUT_S = 120.0
QUIET_S = 20.0
"""The demo no longer waits for a message that has not arrived this long after the last one."""
DRAINED = 20_000
"""The least number of messages on the queue when the cluster leaves."""
SLOWEST_PER_S = 500
"""A machine that moves fewer messages than this counts as stuck."""


class Demo:
    """One run; see the module."""

    def __init__(self, text: Path, folder: Path, *, keep: bool) -> None:
        content = read_text(text)
        copy = folder / "input"
        copy.write_bytes(content)
        self.text = text
        self.lines = len(split_lines(content))
        self.whole = planned(self.lines)
        self.folder = folder
        self.keep = keep
        self.cluster = Cluster(folder, tied=not keep)
        addresses = self.cluster.addresses
        credentials = self.cluster.credentials
        workload = Workload(
            [f"amqps://{address}" for address in addresses],
            [QUEUE],
            bodies=Lines(copy),
            window=WINDOW,
            at_least=self.whole,
            login=Login(CLIENT, credentials.passwords[CLIENT]),
            tls=TlsFiles(authorities=credentials.authority),
        )
        self.work = Run(workload)
        self.filling = Run(replace(workload, consumers=0))
        """A producer for the queue that is drained."""
        self.screen = Screen(self.whole)
        self.sending = False
        self.failover = self.switchover = (0.0, 0.0)
        """When each began, and when both clients continued, in seconds of the monotonic clock."""
        self.catch_up_s = 0.0
        self.connections: list[dict[str, Any]] = []
        """The connections of the last primary while the clients were connected."""

    # ---- the steps

    def run(self) -> int:
        """Run all steps. Returns the exit status; Failed if a step could not be done."""
        self._start()
        self._begin_to_send()
        self._wait(lambda: self._figures()["accepted"] >= self.whole // 2, "half of the messages accepted", whole=True)
        killed = self._kill()
        self._bring_back(killed)
        self._switch_over()
        report = self._finish()
        drained = ("", "") if self.keep else self._drain()
        page, changes, trouble = self._make_page()
        print(f"\n{figures(self._rows(report, drained[0], page, changes), self.screen.width)}\n", flush=True)
        faults = [*self._faults(report), *filter(None, (drained[1], trouble))]
        for fault in faults:
            print(f"demo: {fault}", file=sys.stderr)
        return 1 if faults else 0

    def _start(self) -> None:
        say, cluster = self.screen.say, self.cluster
        again = "" if self.whole == self.lines else f", sent {self.whole // self.lines} times"
        say(f"{self.text}: {self.lines:,} lines{again}: {self.whole:,} messages")
        cluster.start()
        say(f"three brokers at {', '.join(cluster.addresses)}, and a resource manager; stores in {self.folder}")
        say("each broker has a certificate for its address; all connections use TLS and log in with SCRAM")
        self._wait(lambda: sorted(cluster.states().values()) == ["active", "ready", "ready"], "one broker active and two ready")
        say(f"the resource manager had {cluster.primary()} promoted; the two others are ready")

    def _begin_to_send(self) -> None:
        words = ["qpid-config", "add", "queue", QUEUE, "--replicate", "all"]
        self.cluster.ask(*words)
        self.screen.say(" ".join(words))
        self.work.open()
        self.sending = True
        self._wait(lambda: self._figures()["received"] > 0, "a first message received")
        self.screen.say("a producer sends each line as a message, a consumer takes them")

    def _kill(self) -> str:
        """kill -9 of the primary; wait until both clients continue with another one. Returns the killed broker's address."""
        address = self.cluster.primary()
        if not address:
            raise Failed("half-way no broker is active, though none was killed yet")
        before, begin = self._opened(), time.monotonic()
        self.cluster.brokers[address].kill()
        self.screen.say(f"kill -9 of the primary {address}")
        self._wait(lambda: self._gone_on(before), "both clients being served by another broker")
        self.failover = begin, time.monotonic()
        self.screen.say(f"the resource manager had {self._primary_after(address)} promoted, and the clients go on with it")
        return address

    def _bring_back(self, address: str) -> None:
        begin = time.monotonic()
        self.cluster.brokers[address].start()
        self._wait(lambda: self.cluster.state(address) == "ready", f"{address} caught up")
        self.catch_up_s = time.monotonic() - begin
        self.screen.say(f"{address} was started again, and has caught up")

    def _switch_over(self) -> None:
        """Make a planned switchover; wait until both clients continue with the new primary."""
        old, before, begin = self.cluster.primary(), self._opened(), time.monotonic()
        self.cluster.ask("qpid-ha", "switchover")
        self._wait(lambda: self._gone_on(before), "both clients being served by the new primary")
        self.switchover = begin, time.monotonic()
        self.screen.say(f"qpid-ha switchover: {old} has handed over to {self._primary_after(old)}")
        self.connections = self.cluster.connections()

    def _primary_after(self, old: str) -> str:
        found = [old]

        def another() -> bool:
            found[0] = self.cluster.primary()
            return found[0] not in ("", old)

        self._wait(another, f"another primary than {old}")
        return found[0]

    def _finish(self) -> Report:
        """Let the remaining messages arrive, and end both clients. Returns the report about the messages."""
        report = self.work.finish(timeout_s=QUIET_S, empty=self._queue_is_empty, meanwhile=self._meanwhile)
        self.sending = False
        self.screen.say("the producer has sent everything, and the consumer has taken what there is")
        return report

    def _queue_is_empty(self) -> bool:
        return self._depth(self.cluster.url) == 0

    def _drain(self) -> tuple[str, str]:
        """Let the cluster leave. Returns the result, and what is wrong with it; "" if nothing is."""
        say, cluster = self.screen.say, self.cluster
        self.filling.open()
        self._wait(lambda: self.filling.accepted >= DRAINED, f"{DRAINED:,} messages accepted", whole=True)
        self.filling.close()
        cluster.fresh.start()
        self._wait(lambda: cluster.state(cluster.fresh_address) in ("joining", "ready"), "the fresh broker listening")
        cluster.ask("qpid-ha", "promote", "-b", cluster.fresh_url)
        self._wait(lambda: cluster.state(cluster.fresh_address) == "active", "the fresh broker active")
        before, began = self._depth(cluster.url), time.monotonic()
        say(f"the producer has put {before:,} messages more on the queue; a fresh broker, {cluster.fresh_address}, is there")
        words = ["qpid-drain", "--from", cluster.url, "--to", cluster.fresh_url, "--spread", "0", "--format", "json"]
        end = json.loads(cluster.ask(*words).splitlines()[-1])
        took_s, after = time.monotonic() - began, self._depth(cluster.fresh_url)
        say(f"qpid-drain: the cluster is empty for good; {end['moved']:,} messages moved, and {after:,} are on the fresh broker")
        told = f"{end['moved']:,} of {before:,} messages moved to a fresh broker in {took_s:.1f} s; {after:,} are there"
        whole = end["empty"] and end["moved"] == before == after
        return told, "" if whole else f"the cluster was not drained: {told}"

    def _depth(self, url: str) -> int:
        """The number of messages on the queue of this broker or cluster."""
        answer = self.cluster.ask("qpid-stat", "-q", QUEUE, "-b", url, "--format", "json")
        return sum(item["messages"] for item in json.loads(answer))

    def _make_page(self) -> tuple[Path | None, str, str]:
        """The page of the replication lag, the changes of primary that it shows, and what is wrong with it.

        Brokers complete their telemetry when they stop.
        """
        telemetry = self.cluster.telemetry
        if self.keep:
            telemetry = copy_telemetry(telemetry, self.folder / "telemetry-so-far")
        else:
            self.cluster.stop()
        self.screen.say("qpid-lag summarise: Spark makes a page of the replication lag")
        page = PAGE.absolute()
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            words = ["qpid-lag", "summarise", "--input", str(telemetry), "--output", str(page), "--format", "json"]
            shown = json.loads(ask(words, timeout_s=SPARK_TIMEOUT_S))["failovers"]
        except OSError as error:
            return None, "", f"{page}: {error.strerror}"
        except Failed as error:
            return None, "", str(error)
        return page, changes_shown(shown), changes_missed(shown)

    # ---- while waiting

    def _wait(self, is_so: Callable[[], bool], what: str, *, whole: bool = False) -> None:
        """Wait until it is so, and show the progress; `whole`: for as long as all messages may take. Failed if a process has
        ended."""
        timeout_s = STEP_TIMEOUT_S + (self.whole / SLOWEST_PER_S if whole else 0)
        wait_until(is_so, what, self._meanwhile, timeout_s=timeout_s)

    def _meanwhile(self) -> None:
        for process in (*self.cluster.processes, self.cluster.fresh):
            process.check()
        self.work.check()
        self.filling.check()
        if self.sending:
            self.screen.show(self._figures())

    def _figures(self) -> dict[str, int]:
        """The progress of the clients."""
        return {"accepted": self.work.accepted, "received": self.work.received}

    def _opened(self) -> list[int]:
        return [client.opened for client in self.work.clients]

    def _gone_on(self, before: list[int]) -> bool:
        """Whether both clients have since connected to a broker again, and messages arrive."""
        return all(client.opened > was and client.here > 0 for client, was in zip(self.work.clients, before, strict=True))

    # ---- at the end

    def _rows(self, report: Report, drained: str, page: Path | None, changes: str) -> list[tuple[str, str]]:
        def gap(span: tuple[float, float]) -> str:
            mine, theirs = (1000 * longest_gap_s(self.work.gaps(role), *span) for role in ("producer", "consumer"))
            return f"{mine:,.0f} ms without an accept, {theirs:,.0f} ms without a message"

        return [
            ("messages sent", f"{report.sent:,} ({report.sent_again:,} of them once more, after a connection was lost)"),
            ("accepted", f"{report.accepted:,}"),
            ("received", f"{report.received:,} ({report.altered:,} altered, {report.reordered:,} out of order)"),
            ("lost", f"{report.lost:,}"),
            ("duplicated", f"{report.duplicated:,}"),
            ("failover gap", gap(self.failover)),
            ("switchover gap", gap(self.switchover)),
            ("catch-up time", f"{self.catch_up_s:.1f} s from the start of the killed broker's process to ready"),
            ("encrypted", f"{encrypted(self.connections)} of {len(self.connections)} connections of the last primary, by TLS"),
            ("logged in", logins(self.connections)),
            *([("drained", drained)] if drained else []),
            ("time in all", f"{time.monotonic() - self.screen.began:.0f} s"),
            ("replication lag", f"{page}" if page else "no page, see below"),
            *([("", f"which shows {changes} without a primary")] if changes else []),
        ]

    def _faults(self, report: Report) -> list[str]:
        """The faults of the run, one text for each."""
        faults = [*report.faults(), *unsecured(self.connections)]
        if not report.measures.drained and not report.lost:
            faults.append(
                f"the queue was not empty, or {report.unknown:,} messages open, {QUIET_S:.0f} s after the last one moved"
            )
        if report.refused:
            faults.append(f"the brokers refused {report.refused:,} messages; the last word was: {self.work.trouble()[-1]}")
        return faults

    def commands(self) -> str:
        """The text about a cluster that was left running, with commands for it."""
        primary = self.cluster.primary()

        def line(*words: str) -> str:
            return "  " + shlex.join([*command(words[0]), *words[1:], "--config", str(self.cluster.credentials.config)])

        pids = [str(process.pid) for process in self.cluster.processes]  # the fresh broker is for a drain, and was not started
        return "\n".join(
            [
                "The cluster is still running. Look at it:",
                line("qpid-ha", "status", "--all"),
                line("qpid-ha", "query"),
                line("qpid-ha", "history"),
                line("qpid-stat", "-q"),
                "Let the primary hand over, or kill it and see the resource manager act:",
                line("qpid-ha", "switchover"),
                f"  kill -9 {self.cluster.brokers[primary].pid}" if primary else "  kill -9 PID",
                "Let it leave for good, into a broker of yours:",
                line("qpid-drain", "--from", self.cluster.url, "--to", "URL", "--check"),
                "Stop it:",
                f"  kill {' '.join(pids)}; sleep 2; rm -r {shlex.quote(str(self.folder))}",
            ]
        )

    def stop(self, *, leave_cluster: bool = False) -> None:
        """Stop all running processes."""
        self.work.close()
        self.filling.close()
        if not leave_cluster:
            self.cluster.stop()

    def tails(self) -> str:
        """The last lines of all logs."""
        found = [(process.name, process.tail()) for process in self.cluster.processes]
        return "\n".join(f"  {name}: {line}" for name, lines in found for line in lines)


def encrypted(connections: Sequence[Mapping[str, Any]]) -> int:
    """The number of encrypted connections."""
    return sum(bool(one["encrypted"]) for one in connections)


def logins(connections: Sequence[Mapping[str, Any]]) -> str:
    """The users with their mechanisms of login, and how often each occurs."""
    found = Counter((one["user"].partition("@")[0], one["mechanism"], bool(one["certificate"])) for one in connections)
    by_how: dict[str, list[str]] = {}
    for (user, mechanism, certified), count in sorted(found.items()):
        how = f"{mechanism} with a certificate" if certified else mechanism
        by_how.setdefault(how, []).append(f"{user} ({count})" if count > 1 else user)
    return "; ".join(f"{', '.join(users)} by {how}" for how, users in sorted(by_how.items()))


def unsecured(connections: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with how the connections are secured, one text for each fault."""
    faults = [f"a connection of {one['user']} was not encrypted" for one in connections if not one["encrypted"]]
    faults += [
        f"{one['user']} logged in by {one['mechanism']}" for one in connections if not one["mechanism"].startswith("SCRAM")
    ]
    missing = [user for user in USERS if not any(one["user"].startswith(f"{user}@") for one in connections)]
    return [*faults, *([f"no connection of {', '.join(missing)} was seen"] if missing else [])]


def changes_shown(changes: list[dict[str, Any]]) -> str:
    """The changes of primary in a report of the replication lag, as a text."""
    return ", ".join(f"a {change['kind']} with {change['gap_ms']:,.0f} ms" for change in changes)


def changes_missed(changes: list[dict[str, Any]]) -> str:
    """The changes that the report should show after a kill and a switchover, but does not; empty if it shows both."""
    kinds = {change["kind"] for change in changes}
    missed = [kind for kind in ("failover", "switchover") if kind not in kinds]
    return f"the page of the replication lag shows no {' and no '.join(missed)}, though there was one" if missed else ""


def copy_telemetry(source: Path, target: Path) -> Path:
    """Copy the telemetry that running brokers have written so far, as complete files: hidden files are cut after the last
    complete line."""
    target.mkdir()
    for path in source.glob("*.jsonl"):
        shutil.copy(path, target)
    for path in source.glob(".*.part"):
        content = path.read_bytes()
        (target / f"{path.stem.removeprefix('.')}.jsonl").write_bytes(content[: content.rfind(b"\n") + 1])
    return target


def main() -> int:
    """`python -m cli.demo.command`. Returns the exit status."""
    if sys.argv[1:]:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    keep = os.environ.get("KEEP", "").lower() not in ("", "0", "no", "false")
    folder: Path | None = None
    demo: Demo | None = None
    status = 1
    try:
        folder = Path(tempfile.mkdtemp(prefix="understudy-demo-"))
        demo = Demo(choose_text(os.environ.get("INPUT", ""), usual_texts()), folder, keep=keep)
        status = demo.run()
    except BadInput as error:
        print(f"demo: {error}", file=sys.stderr)
        status = 2
    except (Failed, RunError, OSError) as error:
        print(f"\ndemo: {' '.join(str(error).split())}", file=sys.stderr)
        if demo is not None:
            print(demo.tails(), file=sys.stderr)
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        status = 130
    finally:
        _clear_away(demo, folder, status, keep=keep)
    return status


def _clear_away(demo: Demo | None, folder: Path | None, status: int, *, keep: bool) -> None:
    """Stop what runs, without interruption by Ctrl-C. Remove the folder, unless somebody needs its contents."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    goes_on = demo is not None and keep and status == 0
    if demo is not None:
        demo.stop(leave_cluster=goes_on)
    if demo is not None and goes_on:
        print(demo.commands())
    elif demo is not None and status == 1:
        print(f"demo: logs and stores are kept in {folder}", file=sys.stderr)
    elif folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
