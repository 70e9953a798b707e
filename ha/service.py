"""A broker process put together: store, logs, links to the other members, listening port.

Life: `run` takes the port first (so that a second broker on it fails before it touches anything), then the store; it replays the local log and, in a
cluster, joins: links to every member are tried until one is, or knows, the primary. Nothing here makes this broker primary: `PROMOTE`
does, asked for by a resource manager or a person. SIGTERM and SIGINT stop everything in order.

Invariants: each log has its own journal in the one store; the cluster's id, once learned, is written to the store before this broker acts on it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from proton import symbol
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.task import LoopingCall
from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    eventAsText,
    globalLogBeginner,
)
from zope.interface import provider

from broker.core.nodes import CLUSTER, LOCAL
from broker.disk.store import DamagedStore, StorageError, Store, StoreInUse, StoreOfAnotherCluster
from broker.net.listener import CannotListen, listen
from broker.options import SettingsError
from broker.service import Broker
from broker.settings import BrokerSettings
from broker.telemetry import TelemetryWriter
from ha.core.settings import ReplicaSettings
from ha.lag import LagReporter
from ha.net.peers import Peers
from ha.replicated_log import ReplicatedLog
from ha.settings import HaSettings, own_address

_log = Logger(namespace="qpidd")


class CannotStart(Exception):
    """The broker cannot start; the text is one line for people."""


def release() -> str:
    """The version of this software."""
    try:
        return version("understudy")
    except PackageNotFoundError:
        return "unknown"


class Process:
    """Everything that one broker process holds."""

    def __init__(self, reactor: Any, settings: BrokerSettings, ha: HaSettings) -> None:
        self.reactor = reactor
        self.settings = settings
        self.ha = ha
        self.status = 0
        self.logs: dict[str, ReplicatedLog] = {}
        self.member: Member | None = None
        self._stopping: Deferred[Any] | None = None
        self._ports: list[Any] = []

    def start(self) -> None:
        """Take port and store, replay, begin to join or to serve. CannotStart says why not."""
        settings, ha = self.settings, self.ha
        try:
            self.store = Store.open(settings.data_dir)
        except (StoreInUse, DamagedStore, StorageError, OSError) as error:
            raise CannotStart(str(error)) from None
        self.broker = Broker(
            self.reactor,
            broker_id=self.store.store_id,
            version=release(),
            clustered=ha.ha_cluster,
            default_level=ha.ha_replicate,
            max_message_bytes=settings.max_message_size,
            max_connections=settings.max_connections,
            default_queue_bytes=settings.default_queue_limit,
            on_fatal=self.fail,
        )
        try:
            self._listen()
            if ha.ha_cluster:
                me = own_address(ha, settings.interface, self.port).name
                self.member = Member(self, me)
            self._open_log(LOCAL, "local", ReplicaSettings(standalone=True))
        except (CannotListen, SettingsError, DamagedStore, StorageError, StoreOfAnotherCluster, OSError) as error:
            self.store.close(clean=self.store.was_clean)
            raise CannotStart(str(error)) from None
        for log in self.logs.values():
            log.start()
        if self.member is not None:
            self.member.start()

    def _listen(self) -> None:
        for interface in self.settings.interface:
            port = listen(self.reactor, self.broker, self.settings.port if not self._ports else self.port, interface)
            self._ports.append(port)
            self.port: int = port.getHost().port

    def _open_log(self, name: str, me: str, replica: ReplicaSettings) -> None:
        self.logs[name] = ReplicatedLog.open(
            self.store, name, me=me, settings=replica, clock=self.reactor, listener=self.broker.ledgers[name],
            call_in_reactor=self.reactor.callFromThread,
        )
        self.broker.attach_log(name, self.logs[name])

    def fail(self, text: str) -> None:
        """The broker cannot go on: end the process, marking nothing clean."""
        _log.critical("{text}; this broker stops", text=text)
        self.status = 1
        if self.reactor.running:
            self.reactor.stop()

    def stop(self) -> Deferred[Any]:
        """Stop in order; again and again gives the same Deferred."""
        if self._stopping is None:
            _log.info("stopping")
            for port in self._ports:
                port.stopListening()
            self.broker.close()
            if self.member is not None:
                self.member.stop()
            stopped = DeferredList([log.stop() for log in self.logs.values()]) if self.status == 0 else succeed(None)
            self._stopping = stopped.addBoth(lambda result: self.store.close(clean=self.status == 0))
        return self._stopping


def run(reactor: Any, settings: BrokerSettings, ha: HaSettings) -> int:
    """Run a broker until it is told to stop. Returns the exit status; CannotStart when it cannot begin."""
    log_to_stderr(settings.log_enable)
    process = Process(reactor, settings, ha)
    process.start()
    reactor.addSystemEventTrigger("before", "shutdown", process.stop)
    if settings.exposed:
        _log.warn("this broker listens beyond loopback and asks nobody for credentials: keep its network closed to others")
    print(f"Listening on TCP/TCP6 port {process.port}", file=sys.stderr, flush=True)
    reactor.run()
    return process.status


_LEVELS = {"trace": "debug", "notice": "info", "warning": "warn"}


def log_to_stderr(level: str) -> None:
    """One line an event on stderr: time, level, text; no traceback without a crash of our own."""

    @provider(ILogObserver)
    def write(event: dict[str, Any]) -> None:
        moment = datetime.fromtimestamp(event["log_time"], UTC)
        text = eventAsText(event, includeTimestamp=False, includeSystem=False)
        sys.stderr.write(f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} {event['log_level'].name} {text}\n")

    names = {each.name for each in LogLevel.iterconstants()}
    name = _LEVELS.get(level, level)
    predicate = LogLevelFilterPredicate(LogLevel.levelWithName(name if name in names else "info"))
    globalLogBeginner.beginLoggingTo([FilteringLogObserver(write, [predicate])], redirectStandardIO=False)
