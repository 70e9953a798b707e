"""The resource manager: a daemon that ensures that the cluster has a primary.

Life: it keeps a connection to every broker (`net.probe`) and passes all answers to the detector. After each change it asks
`core.promotion` what to do, and does it in the given order: query all brokers, ask one to promote itself, set a timer, log.
Brokers may be missing at its start and may come and go. It has no durable state, so it can be killed and started at any time,
and several may run.

`--brokers` is the start list: the daemon then watches the members in the cluster's log, and follows each change.

Invariants: there is at most one timer; each decision is one line in the log; nothing is decided here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, assert_never

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client import ClientError
from broker.core import urls
from broker.telemetry import TelemetryWriter
from ha.core import cluster_settings
from resource_manager.arbitration import Arbitration
from resource_manager.core.arbiter import Published
from resource_manager.core.detector import BadView, Detector, Sight, View
from resource_manager.core.promotion import (
    AskAll,
    AskToPromote,
    Effect,
    FailureDetected,
    PrimarySeen,
    PromoteRefused,
    PromoteWon,
    Promotion,
    Waiting,
    WakeAt,
)
from resource_manager.net.probe import Line, Probe
from resource_manager.probe_reporter import ProbeReporter
from resource_manager.settings import ManagerSettings

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

_DAEMONS_INTERVAL_S = 2.0


class ResourceManager(Service):
    """The daemon as a Twisted service. `jitter` gives numbers in [0, 1). SettingsError if a TLS file is invalid, or the
    arbiter cannot be made.
    """

    log = Logger(namespace="resource_manager")

    def __init__(self, reactor: Any, settings: ManagerSettings, jitter: Callable[[], float] = random.random) -> None:
        self._reactor = reactor
        self._settings = settings
        url = settings.brokers
        self._credentials = _credentials(settings)
        line = Line(
            url.user,
            url.password,
            settings.mechanism,
            settings.name,
            settings.probe_interval_s,
            settings.detection_s,
            self._credentials,
        )
        self._new_probe = lambda address: Probe(reactor, address, line, self, jitter)
        self._probes = {address.name: self._new_probe(address) for address in url.addresses}
        self._followed = ("", 0)
        """The cluster whose members are watched, and the index of this membership in its log."""
        self._watches = ""
        """Why the cluster's settings do not allow this daemon to act."""
        self._detector = Detector(url.names, settings.detection_s)
        self._promotion = Promotion(settings.promotion, reactor.seconds())
        self._arbitration = Arbitration(
            reactor, settings.arbiter, settings.for_arbiter, settings.name, settings.arbiter_patience_s
        )
        self._daemons = LoopingCall(self._look_for_daemons)
        self._daemons.clock = reactor
        self._timer: Any = None
        self._faults: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        """The names that brokers give themselves, by the other names that this daemon was given for them."""
        self._end = ExitStack()
        self._telemetry: ProbeReporter | None = None

    def startService(self) -> None:
        """Begin to connect to the brokers."""
        super().startService()
        settings = self._settings
        if settings.telemetry_dir is not None:
            writer = TelemetryWriter(
                settings.telemetry_dir,
                cluster=settings.cluster_name or ",".join(self._probes),
                sender=settings.name,
                interval_ms=settings.telemetry_interval_ms,
                max_bytes=settings.telemetry_max_size,
            )
            self._telemetry = ProbeReporter(self._reactor, writer, self._probes, self._detector)
            self._telemetry.start()
            self._end.callback(self._telemetry.stop)
        if self._credentials is not None:
            self._credentials.watch(self._reactor)
            self._end.callback(self._credentials.stop)
        self._arbitration.start(self._step)
        self.log.info("{name} watches {brokers}", name=settings.name, brokers=", ".join(self._probes))
        for probe in self._probes.values():
            probe.start()
        self._end.callback(self._stop_probes)
        self._daemons.start(_DAEMONS_INTERVAL_S, now=False)
        self._end.callback(self._daemons.stop)

    def stopService(self) -> Deferred[None]:
        """End the connections and the timer. Fires when the arbiter has released its turn."""
        super().stopService()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._end.close()
        return self._arbitration.close()

    def _stop_probes(self) -> None:
        for probe in self._probes.values():
            probe.stop()

    def hang_up(self) -> None:
        """SIGHUP: read the files of TLS again."""
        if self._credentials is None:
            self.log.warn("SIGHUP has no effect: options are read only at the start; restart this daemon to change them")
        else:
            self._credentials.reload()

    # What comes in.

    def on_connected(self, name: str) -> None:
        """See ProbeListener."""
        self.log.info("{broker}: connected", broker=name)
        self._faults.pop(name, None)
        self._detector.connected(name, self._reactor.seconds())
        self._step()

    def on_answer(self, name: str, item: dict[str, Any]) -> None:
        """See ProbeListener."""
        try:
            view = View.of(item, name)
        except BadView as error:
            self._fault(name, f"its answer cannot be used: {error}")
            return
        if view.address not in ("", name) and self._aliases.get(name) != view.address:
            self._aliases[name] = view.address
            text = "{broker}: calls itself {address}: call it so in --brokers, or changes of the members are not followed"
            self.log.warn(text, broker=name, address=view.address)
        if item.get("promoteDenied") and not item.get("witness"):
            self._fault(name, f"this daemon cannot promote it: {item['promoteDenied']}; permit this in its ACL file")
        self._detector.answered(name, view, self._reactor.seconds())
        if self._telemetry is not None and not self._settings.cluster_name and item.get("clusterId"):
            self._telemetry.writer.cluster = str(item["clusterId"])
        self._follow(item)
        self._step()

    def on_lost(self, name: str, reason: str) -> None:
        """See ProbeListener."""
        self._fault(name, reason)
        self._detector.lost(name, reason)
        self._step()

    def _fault(self, name: str, reason: str) -> None:
        """Log a broker's fault once, not at each attempt."""
        if self._faults.get(name) != reason:
            self._faults[name] = reason
            self.log.warn("{broker}: {reason}", broker=name, reason=reason)

    def _follow(self, item: dict[str, Any]) -> None:
        """Watch the members in the cluster's log, if they have changed. `item` is a broker's answer.

        Indexes are compared within one cluster only: the log of a cluster that was begun anew may be shorter. Such a cluster
        is followed when one of its brokers serves, because a single broker of an old cluster may come back.
        """
        sight = self._detector.sight(self._reactor.seconds())
        members = sight.newest_members(sight.cluster) if sight.cluster else None
        if members is None or sight.cluster is None:
            return
        followed, index = self._followed
        if members.index <= index if followed == sight.cluster else followed and not sight.is_served(sight.cluster):
            return
        try:
            addresses = {address.name: address for address in urls.parse(str(item.get("brokersUrl"))).addresses}
        except urls.BadUrl:
            return
        names = (*members.voters, *members.learners)
        if not set(names) <= addresses.keys() | self._probes.keys():
            return  # the broker that answered knows older members: another broker will give the addresses
        self._followed = sight.cluster, members.index
        gone = [name for name in self._probes if name not in names]
        new = [name for name in names if name not in self._probes]
        if not gone and not new:
            return
        self.log.info("the members of the cluster are {members} now", members=", ".join(names))
        for name in gone:
            self._probes.pop(name).stop()
            self._faults.pop(name, None)
        self._detector.watch([*self._probes, *new])
        for name in new:
            self._probes[name] = self._new_probe(addresses[name])
            self._probes[name].start()

    def _look_for_daemons(self) -> None:
        """Ask one backup, which has few connections to list, for the names of the daemons."""
        self._arbitration.look()
        sight = self._detector.sight(self._reactor.seconds())
        backups = [seen.name for seen in sight.reachable if not seen.serves]
        if backups:
            self._probes[backups[0]].daemons().addCallback(self._heard_of)

    def _heard_of(self, daemons: frozenset[str]) -> None:
        if self.running:
            self._arbitration.hears_of(daemons)
            self._step()

    # What is done.

    def _step(self) -> None:
        if not self.running:
            return
        now_s = self._reactor.seconds()
        sight = self._detector.sight(now_s)
        self._tell_whether_it_watches(sight)
        wake_s = [silence_s] if (silence_s := self._detector.next_silence_s(now_s)) is not None else []
        wanted = self._promotion.wants_turn
        wake_s += self._carry_out(self._promotion.step(sight, now_s, self._arbitration.acts_at))
        if wanted and not self._promotion.wants_turn:
            self._arbitration.rest()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if wake_s:
            self._timer = self._reactor.callLater(max(min(wake_s) - now_s, 0.001), self._step)

    def _tell_whether_it_watches(self, sight: Sight) -> None:
        """Log whether the cluster's settings allow this daemon to act, when that has changed."""
        watches = cluster_settings.objection(self._settings.arbiter, sight.settings, (), "", 0.0)
        if watches != self._watches:
            self._watches = watches
            self.log.info("{reason}", reason=f"it only watches: {watches}" if watches else "it acts again when it is needed")

    def _carry_out(self, effects: list[Effect]) -> list[float]:
        """Carry out these effects in order. Returns the times for the next steps."""
        wake_s: list[float] = []
        for effect in effects:
            match effect:
                case AskAll():
                    for probe in self._probes.values():
                        probe.ask()
                case AskToPromote():
                    self._ask_to_promote(effect)
                case WakeAt(at_s):
                    wake_s.append(at_s)
                case Waiting() | PrimarySeen() | FailureDetected() | PromoteWon() | PromoteRefused():
                    self._report(effect)
                case _:
                    assert_never(effect)
        return wake_s

    def _ask_to_promote(self, effect: AskToPromote) -> None:
        name = effect.name
        self.log.info("{broker}: asked to become the primary, because {reason}", broker=name, reason=effect.reason)
        self._event("promote_asked", name, detail=effect.reason)
        answer = self._probes[name].promote(effect.reason, effect.timeout_s, self._settings.arbiter)

        def won(body: dict[str, Any]) -> list[Effect]:
            return self._promotion.promoted(name, int(body.get("epoch") or 0), self._reactor.seconds())

        def refused(failure: Failure) -> list[Effect]:
            if not isinstance(failure.value, ClientError):
                failure.raiseException()
            return self._promotion.refused(name, str(failure.value).removeprefix(f"{name}: "), self._reactor.seconds())

        def go_on(effects: list[Effect]) -> None:
            if self.running:
                self._carry_out(effects)
                self._step()

        answer.addCallbacks(won, refused).addCallback(go_on)

    def _report(self, effect: Waiting | PrimarySeen | FailureDetected | PromoteWon | PromoteRefused) -> None:
        match effect:
            case Waiting(reason):
                self.log.info("waiting: {reason}", reason=reason)
            case PrimarySeen(primary, epoch):
                self.log.info("{broker}: is the primary of epoch {epoch}", broker=primary, epoch=epoch)
                self._event("discovery", primary, epoch=epoch, to=primary)
                self._arbitration.publish(Published(primary, epoch))
            case FailureDetected(primary, epoch, cause):
                self.log.warn("{broker}: the primary of epoch {epoch} failed: {cause}", broker=primary, epoch=epoch, cause=cause)
                self._event("failure_detected", primary, epoch=epoch, detail=cause)
                self._arbitration.publish(Published("", epoch))
            case PromoteWon(name, epoch, duration_s):
                ms = round(duration_s * 1000)
                self.log.info("{broker}: became the primary of epoch {epoch} in {ms} ms", broker=name, epoch=epoch, ms=ms)
                self._event("promote_won", name, epoch=epoch, duration_ms=duration_s * 1000)
            case PromoteRefused(name, reason, rest_s):
                self.log.warn("{broker}: refused: {reason}; left alone for {rest} s", broker=name, reason=reason, rest=rest_s)
                self._event("promote_refused", name, detail=reason)
            case _:
                assert_never(effect)

    def _event(self, type: str, broker: str, **fields: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.writer.event(type, broker=broker, **fields)


def _credentials(settings: ManagerSettings) -> Credentials | None:
    """The credentials for brokers over TLS."""
    if all(address.transport == urls.TCP for address in settings.brokers.addresses):
        return None
    from broker.net.credentials import Credentials  # this import takes time

    return Credentials(settings.tls)
