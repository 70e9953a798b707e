"""This broker as a member of its cluster: the cluster's log, the links to the other members, and the requests of management.

Life: the members come from the store, or from `--ha-brokers-url` if the store has none. The links are opened; the log goes
from joining to catchup to ready. `PROMOTE` makes it ask for votes. Once it is active it writes its term into the log, so that
every member has the history.

Invariants: management never decides who is the primary, it only starts a request to the log; this broker sends the cluster id
of its store to every other member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from broker.core import urls
from broker.core.commands import MachineVersion, Term
from broker.core.mechanisms import qualified
from broker.core.values import Symbol
from broker.host import new_uuid
from broker.service import Broker
from broker.sessions.connection import Role
from broker.sessions.principal import Principal
from broker.telemetry import TelemetryWriter
from ha import takeover
from ha.agreed import Agreed
from ha.copies import Copies, copies, notice
from ha.core.effects import PromotionEnded, TransferEnded
from ha.core.membership import Change, Membership
from ha.core.messages import Message
from ha.core.versions import Versions, next_version
from ha.member_changes import MemberChanges, Reach
from ha.net.peers import PEER_PROPERTY, TICK_S, Peers
from ha.outbox import Peers as LogPeers
from ha.replicated_log import ReplicatedLog
from ha.role_callback import RoleCallback
from ha.settings import HaSettings
from ha.virtual_ip import VirtualIp

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

_log = Logger(namespace="ha")
Answer = tuple[int, str, dict[str, Any]]
_ANSWER_S = 0.1
"""Time for an answer to leave before this broker stops."""


class _Asked(NamedTuple):
    """A request to promote this broker. `by`: the kind of cluster manager that requested it, "" for a person. `planned`: whether
    a primary served at that time."""

    because: str
    by: str = ""
    planned: bool = False


class ClusterStore(Protocol):
    """The part of the store that the member uses."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id, "" until it is known."""

    @property
    def clusters_left(self) -> tuple[str, ...]:
        """The ids of the clusters that it belonged to before."""

    @property
    def begun(self) -> str:
        """How its cluster was begun by a takeover here, as a text for people; "" if it was not."""

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster, durably."""

    def change_cluster(self, cluster_id: str, begun: str) -> None:
        """Belong to this new cluster from now on, durably."""


class Links(LogPeers, Reach, Role, Protocol):
    """The links to the other members, as `ha.net.peers.Peers` makes them."""

    def machine_versions(self) -> dict[str, int]:
        """The machine versions that connected members report, by address."""

    def refusals(self) -> dict[str, str]:
        """Why there is no link with a member, for the links that one side refuses."""

    def tell_removed(self, members: Membership) -> None:
        """These members are committed: tell removed brokers that they are not members."""

    def tick(self) -> None:
        """Time has passed: called each TICK_S."""

    def trouble(self) -> dict[str, str]:
        """The members without a working link, and the reason, by address."""

    def refusing(self) -> dict[str, str]:
        """Those of them that run, but with which one side refuses the link."""

    def stop(self) -> None:
        """End all links for good."""


class ClusterMember:
    """See the module. `wall` gives seconds since 1970, for records that people read; `end` ends the process. Fulfils
    `broker.administration.Extension`."""

    def __init__(
        self,
        reactor: Any,
        clock: IReactorTime,
        broker: Broker,
        store: ClusterStore,
        settings: HaSettings,
        me: str,
        *,
        wall: Callable[[], float],
        telemetry: TelemetryWriter | None,
        links: Callable[..., Links] = Peers,
        credentials: Credentials | None = None,
        end: Callable[[], None] = lambda: None,
        new_id: Callable[[], str] = new_uuid,
    ) -> None:
        self.me = me
        self._clock = clock
        self._broker = broker
        self._store = store
        self._settings = settings
        self._wall = wall
        self._end = end
        self._new_id = new_id
        self._telemetry = telemetry
        self._asked: list[_Asked] = []
        """The requests to promote this broker that are not answered yet. The last one is the reason for its next term."""
        self._last_refusal = ""
        self._looking_since = self._catching_up_since = 0.0
        self._was = ("joining", "", 0)
        self._followed = ""
        """The last other primary."""
        self._succeeded: Deferred[None] | None = None
        """Fires when another primary is known, or when there will be none."""
        broker.logs.identify = lambda: store.cluster_id
        self._log: ReplicatedLog
        self._changes: MemberChanges
        self.peers = links(
            reactor,
            clock,
            me=me,
            broker_id=broker.broker_id,
            events=self,
            silence_s=settings.link_heartbeat_interval,
            cluster_id=lambda: store.cluster_id,
            members=lambda: self.log.replica.members,
            versions=Versions(broker.lead.state.version, witness=bool(settings.ha_witness) and settings.ha_witness == me),
            cluster_version=lambda: self._broker.lead.version,
            login=replace(settings.login, or_nobody=not broker.authentication.demanded),
            user=self._user_of_brokers(),
            credentials=credentials,
            removed_at=self._removed_at,
            on_removed=self._is_removed_from,
        )
        self._callback = RoleCallback(reactor, settings.ha_on_role_change, settings.ha_on_role_change_timeout, me)
        sockets = lambda: [each.transport for each in broker.connections.values()]  # noqa: E731
        self.virtual_ip = VirtualIp(settings.ha_virtual_ip, clock.seconds, sockets)
        self._agreed = Agreed(broker, lambda: self.log.replica.members, lambda: self.log.primary, wall, self._planned_switchover)
        self._copies = Copies(self.note)
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        broker.administration.extensions["ha"] = self
        broker.admission.roles[PEER_PROPERTY] = self.peers
        broker.admission.failover_urls = self._failover_urls
        broker.on_state = self._state_changed
        broker.on_settings = self._settings_changed

    @property
    def log(self) -> ReplicatedLog:
        """The cluster's log, set once before `start`."""
        return self._log

    @log.setter
    def log(self, log: ReplicatedLog) -> None:
        self._log = log
        self._changes = MemberChanges(self.me, log, self.peers)

    def _removed_at(self, address: str) -> int:
        return self._changes.removed_at(address)

    def _is_removed_from(self, index: int) -> None:
        self._changes.is_removed_from(index)

    def _user_of_brokers(self) -> str:
        """The user that must be at the other end of a member's link; "" for any user, or if the member's certificate decides."""
        settings, authentication = self._settings, self._broker.authentication
        if not authentication.demanded or settings.by_certificate:
            return ""
        return qualified(settings.ha_username, authentication.realm)

    def start(self) -> None:
        """Begin to join."""
        self._look_for_primary()
        self.log.start()
        self._ticker.start(TICK_S, now=False)

    def hand_over(self) -> Deferred[None]:
        """Let another broker take over, because this one is about to stop. Fires when the other one is the primary, when no
        broker can take over, or after --ha-switchover-timeout; at once if this broker is not the primary."""
        if self._broker.state != "active":
            return succeed(None)
        succeeded = self._succeeded = Deferred()
        within_s = self._settings.ha_switchover_timeout
        timeout = self._clock.callLater(within_s, self._nobody_leads, f"none has taken over within {within_s:g} s")
        succeeded.addBoth(lambda _: timeout.cancel() if timeout.active() else None)
        self._hand_over_to(self._successors(), self._nobody_leads)
        return succeeded

    def _successors(self) -> list[str]:
        """The connected backups, the best one first: those without the tag nofailover, then those with the longest log, then
        those with the highest priority."""
        stores = self.log.replica.members.stores
        backups = [each for each in self.log.status().peers if each.connected and each.address in stores]
        tags = {each.address: self._agreed.tags(each.address) for each in backups}
        backups.sort(key=lambda each: (tags[each.address].nofailover, -each.match_index, -tags[each.address].priority))
        return [each.address for each in backups]

    def _planned_switchover(self, candidate: str) -> None:
        """Start a planned switchover: to the candidate, or to the best backup that can take over without one."""

        def failed(reason: str) -> None:
            _log.warn("the planned switchover failed: {reason}", reason=reason)

        self._hand_over_to([candidate] if candidate else self._successors(), failed)

    def _hand_over_to(self, candidates: list[str], failed: Callable[[str], None]) -> None:
        """Hand over to the first of these that takes over within --ha-switchover-timeout; `failed` is called with the reason if
        none does. No attempt takes longer than what is left of it. A candidate that has everything, and is not the last one, gets
        half of that. After a successful transfer the vote of this broker may still be needed."""
        until_s = self._clock.seconds() + self._settings.ha_switchover_timeout

        def attempt(others: list[str], refused: str) -> None:
            left_s = until_s - self._clock.seconds()
            if not others or left_s <= 0 or self._broker.state != "active":
                failed(refused)
                return
            patience_s = left_s / 2 if others[1:] else None
            self.log.requests.transfer(others[0], patience_s, left_s).addCallback(ended, others[1:])

        def ended(outcome: TransferEnded, others: list[str]) -> None:
            if not outcome.done:
                attempt(others, outcome.reason)

        attempt(candidates, "no other voting member is connected")

    def _nobody_leads(self, reason: str) -> None:
        """This broker stops waiting for a successor."""
        if self._succeeded is not None:
            _log.warn("this broker stops as the primary, and no other takes over: {reason}", reason=reason)
            self._another_leads()

    def _another_leads(self) -> None:
        waiting, self._succeeded = self._succeeded, None
        if waiting is not None:
            waiting.callback(None)

    def stop(self) -> None:
        """End the links."""
        if self._ticker.running:
            self._ticker.stop()
        self.peers.stop()

    def _tick(self) -> None:
        self.peers.tick()
        self._raise_version()
        self._agreed.tick()
        self._copies.tick(self.log.status(), self._clock.seconds())
        self._keep_virtual_ip()

    def _keep_virtual_ip(self) -> None:
        """Hold the address while this broker serves, unless it is about to hand over."""
        if self._broker.state == "active" and not self._broker.leaving.under_way:
            self.virtual_ip.tick()

    def has_first_release(self) -> bool:
        """Whether a member may be of release 0.1, which reads only batches of the first format. A rise of the version that is not
        committed may be lost with this term, and earlier batches stay."""
        return self._broker.lead.state.definitions.machine_version < 2

    def _raise_version(self) -> None:
        """As primary, propose the version that every member applies (docs/adr/0015), once."""
        state, cluster = self._broker.lead.state, self._broker.lead.version
        if self._broker.state != "active" or cluster >= state.version:
            return
        members = self.log.replica.members.addresses
        version = next_version(state.version, cluster, self.me, members, self.peers.machine_versions())
        if version > cluster:
            _log.info("every member applies machine version {version}: the cluster rises to it", version=version)
            self._broker.lead.change(MachineVersion(needs=version), lambda reason: None)

    # ---- ha.net.peers.PeerEvents

    def connected(self, peer: str) -> None:
        """The link to a member is up."""
        self.log.connected(peer)

    def disconnected(self, peer: str) -> None:
        """The link to a member is down."""
        if self._broker.state in ("active", "recovering"):
            self.note("backup_lost", epoch=self.log.epoch, broker=peer, peer=self.me)
        self.log.disconnected(peer)

    def receive(self, peer: str, message: Message, payload: bytes | memoryview) -> None:
        """A message of a member has arrived."""
        self.log.receive(peer, message, payload)

    def heard(self, peer: str) -> None:
        """A part of a large message of a member has arrived."""
        self.log.heard(peer)

    def members_changed(self, members: Membership) -> None:
        """A membership is committed: remember the cluster's id."""
        if members.cluster_id in self._store.clusters_left:
            return  # a takeover was cut short: the store has the new cluster's id, but not its first batch
        if members.cluster_id and members.cluster_id != self._store.cluster_id:
            self._store.adopt_cluster(members.cluster_id)
            if self._telemetry is not None:
                self._telemetry.cluster = members.cluster_id
        self.peers.tell_removed(members)

    # ---- changes of the log's state

    def _settings_changed(self) -> None:
        self.log.retention.cover()

    def _state_changed(self, state: str, epoch: int, primary: str) -> None:
        was, was_primary, was_epoch = self._was
        self._was = (state, primary, epoch)
        if state == was and primary == was_primary:
            return
        self._agreed.state_changed(state)
        self._callback.changed(state, epoch, primary)
        _log.info(
            "{state} in epoch {epoch}{where}",
            state=state,
            epoch=epoch,
            where=f", primary {primary}" if primary and primary != self.me else "",
        )
        if was_primary not in ("", self.me) and not primary and epoch == was_epoch:
            # With a higher epoch, an election has ended the term of the primary, perhaps a planned one.
            self.note(
                "failure_detected",
                epoch=epoch,
                broker=was_primary,
                duration_ms=self._silence_ms(),
                detail="nothing was heard of the primary",
            )
        self.note("role", epoch=epoch, from_=was, to=state, peer=primary or None)
        if primary not in ("", self.me):
            self._followed = primary
            self._another_leads()
        self._tell_discovery(epoch, was_primary, primary)
        self._tell_catch_up(epoch, (was, was_primary), (state, primary))
        if state == "active":
            self._keep_virtual_ip()
            self._write_term(epoch)
            self._raise_version()  # a new cluster begins with the newest version

    def _look_for_primary(self) -> None:
        self._looking_since = self._clock.seconds()
        self.note("discovery", detail=f"looking for the primary among {', '.join(self._settings.members)}")

    def _tell_discovery(self, epoch: int, was_primary: str, primary: str) -> None:
        if primary and primary not in (was_primary, self.me):
            self.note("discovery", epoch=epoch, to=primary, peer=primary, duration_ms=self._ms_since(self._looking_since))
        elif was_primary and not primary:
            self._look_for_primary()

    def _tell_catch_up(self, epoch: int, was: tuple[str, str], now: tuple[str, str]) -> None:
        if was == now:
            return
        index = self.log.status().durable_index
        if was[0] == "catchup":
            took_ms = self._ms_since(self._catching_up_since)
            self.note("catch_up_end", epoch=epoch, to=now[0], peer=was[1], index=index, duration_ms=took_ms)
        if now[0] == "catchup":
            self._catching_up_since = self._clock.seconds()
            self.note("catch_up_begin", epoch=epoch, peer=now[1], index=index)

    def _silence_ms(self) -> float | None:
        """How long no broker has served, as far as this broker knows, with the time of detection; None if it does not know."""
        silence_s = self.log.silence_s()
        return None if silence_s is None else silence_s * 1000

    def _ms_since(self, moment_s: float) -> float:
        return (self._clock.seconds() - moment_s) * 1000

    def _write_term(self, epoch: int) -> None:
        gap_ms = self._silence_ms()
        told_ms, ended_ms = gap_ms, self._broker.lead.state.ended_ms
        if gap_ms is None and ended_ms:  # all brokers were down: the log says when something was last accepted
            told_ms = max(self._wall() * 1000 - ended_ms, 0.0)
        asked = self._asked[-1] if self._asked else _Asked("")
        reason = self._not_told_yet() or asked.because
        if not reason and self.log.replica.begun_for:
            reason = f"elected first, so that {', '.join(self.log.replica.begun_for)} can take over"
        elif not reason:
            reason, asked = f"{self._followed} handed over", _Asked("", planned=True)
        reason += _given_up(self.log.replica.begun_without)
        moment = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        term = Term(
            epoch=epoch,
            primary=self.me,
            reason=reason,
            ts=moment,
            gap_ms=-1 if told_ms is None else round(told_ms),
            estimated=gap_ms is None and told_ms is not None,
            by=asked.by,
            planned=asked.planned,
        )
        self._broker.lead.change(term, lambda reason: None)
        index = self.log.replica.commit_index
        self.note("failover_done", epoch=epoch, to=self.me, index=index, duration_ms=gap_ms, detail=reason)
        self._asked.clear()

    def note(self, kind: str, **fields: Any) -> None:
        """Report an event to telemetry: the fields are those of `TelemetryWriter.event`."""
        if self._telemetry is not None:
            self._telemetry.event(kind, **fields)

    # ---- information for clients

    def _brokers_url(self) -> urls.Url:
        """The members in force: first those of --ha-brokers-url, in its order."""
        given = self._settings.ha_brokers_url
        assert given is not None, "a member of a cluster was given its URL"
        members = self.log.replica.members.addresses
        here = {address.name: address for address in given.addresses if address.name in members}
        others = (urls.parse(name).addresses[0] for name in members if name not in here)
        return urls.Url((*here.values(), *(replace(each, transport=given.addresses[0].transport) for each in others)))

    def _failover_urls(self) -> list[dict[Any, Any]]:
        public = self._settings.ha_public_url or self._brokers_url()
        return [
            {
                Symbol("network-host"): address.host,
                Symbol("port"): address.port,
                # A string, because Qpid JMS requires it; it ignores the list if this is a symbol.
                Symbol("scheme"): "amqps" if address.transport == urls.SSL else "amqp",
            }
            for address in public.addresses
            if address.name != self.log.replica.members.witness
        ]

    # ---- broker.administration.Extension

    def items(self) -> list[dict[str, Any]]:
        """The one item of `QUERY ha`."""
        return [self._item()]

    @property
    def state(self) -> str:
        """The broker's state; `removed` if it looks for the primary of a cluster that has removed it."""
        return "removed" if self._broker.state == "joining" and self._changes.removed else self._broker.state

    def _item(self) -> dict[str, Any]:
        status, state = self.log.status(), self._broker.lead.state
        figures = self.log.lag(status)
        said, refusals = self.peers.machine_versions(), self.peers.refusals()
        members = []
        for address in status.members.addresses:
            item: dict[str, Any] = {"address": address, "role": status.members.role(address)}
            if address == self.me:
                item |= {"version": state.version}
                item |= {"connected": True, "ackedIndex": status.durable_index, "state": self._broker.state}
                item |= {"lagRecords": 0, "lagBytes": 0, "lagMs": 0.0}
            elif address in figures:
                lag = figures[address]
                item |= {"connected": lag.connected, "ackedIndex": lag.acked_index, "state": lag.state}
                item |= {"lagRecords": lag.lag_records, "lagBytes": lag.lag_bytes, "lagMs": lag.lag_ms}
            elif address == status.members.witness and status.peers and address not in refusals:
                seen = next(each for each in status.peers if each.address == address)
                item |= {"connected": seen.connected, "ackedIndex": seen.match_index, "state": "ready" if seen.connected else ""}
                item |= {"lagRecords": -1, "lagBytes": -1, "lagMs": -1.0}
            elif self._broker.state in ("active", "recovering") or address in refusals:
                item |= {"connected": False, "ackedIndex": 0, "state": "", "lagRecords": -1, "lagBytes": -1, "lagMs": -1.0}
            else:
                continue
            if address in said:
                item["version"] = said[address]
            if address in refusals:
                item["refused"] = refusals[address]
            members.append(item)
        journal = self.log.journal.figures
        brokers = self._brokers_url()
        return {
            "status": self.state,
            "brokerId": self._broker.broker_id,
            "address": self.me,
            "brokersUrl": str(brokers),
            "publicUrl": str(self._settings.ha_public_url or brokers),
            "replicateDefault": self._settings.ha_replicate,
            "clusterId": self._store.cluster_id,
            "begun": self._store.begun,
            "epoch": status.epoch,
            "lastIndex": status.last_index,
            "lastEpoch": status.last_epoch,
            "commitIndex": status.commit_index,
            "appliedIndex": state.index,
            "version": state.definitions.machine_version,
            "versionHere": state.version,
            "stopped": self.log.halted,
            "disk": "; ".join(ledger.room.text for ledger in self._broker.ledgers.values() if ledger.room.text),
            "primary": status.primary,
            "blank": self.log.replica.blank,
            "electable": not self.log.replica.unfit,
            "reason": self._why_no_primary(),
            "copies": copies(status),
            "notice": "; ".join(filter(None, (self._broker.logs.leaving_text, notice(status), self.log.obstacle))),
            "witness": self.log.replica.is_witness,
            "members": members,
            "membership": self._membership(),
            "settings": self._agreed.told(),
            "inSync": self._broker.state in ("ready", "active") and not self.log.halted and not self.log.replica.is_witness,
            "store": {"segments": journal.segments, "bytes": journal.bytes_on_disk, "checkpointIndex": journal.checkpoint_index},
            "telemetry": {} if self._telemetry is None else self._telemetry.figures._asdict(),
        }

    def _membership(self) -> dict[str, Any]:
        """The members in force, as in the log of this broker."""
        log = self.log.replica.log
        return {
            "index": log.members_index,
            "committed": log.members_index <= self.log.replica.commit_index,
            "voters": list(log.members.voters),
            "learners": list(log.members.learners),
            "witness": log.members.witness,
            "standby": list(log.members.standby),
        }

    def _why_no_primary(self) -> str:
        """Why this broker finds no primary, in one line; "" when there is one."""
        replica = self.log.replica
        if self._broker.state != "joining" or replica.primary:
            return ""
        if self._changes.removed:
            return f"{self.me} has been removed from the cluster: stop it, or add it again with qpid-ha add-broker {self.me}"
        trouble = self.peers.trouble()
        cut_off = "; ".join(f"{address} {why}" for address, why in sorted(trouble.items()))
        if replica.unfit:
            state = replica.unfit
        elif replica.blank and not replica.log.last_index:
            state = "this broker's store is new: without a primary to fetch from, a cluster begins when all its members are there"
        else:
            state = "no primary is known"
        if cut_off:
            return f"{state}. {cut_off}"
        if replica.unfit and replica.members.addresses == (self.me,):
            return state
        return f"{state}. All members are connected: one of them has to be promoted{self._last_refusal}"

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[Answer]:
        """PROMOTE, BOOTSTRAP, TAKEOVER, SET, STOP, ADD-BROKER, REMOVE-BROKER, SET-ROLE."""
        match operation:
            case "PROMOTE":
                reason, manager = str(body.get("reason") or "asked by management"), str(body.get("manager") or "")
                epoch = body.get("epoch")
                return self._promote(
                    reason, manager, insist=body.get("insist") is not False, known=epoch if isinstance(epoch, int) else None
                )
            case "STOP":
                return succeed(self._stop_process(force=body.get("force") is True))
            case "SET":
                return self._agreed.ask(body)
            case "TAKEOVER":
                return self._take_over(force=body.get("force") is True)
            case "BOOTSTRAP":
                return self._bootstrap(force=body.get("force") is True)
            case "ADD-BROKER" | "REMOVE-BROKER" | "SET-ROLE":
                address, force = str(body.get("address") or ""), body.get("force") is True
                if operation == "SET-ROLE":
                    return self._changes.set_role(address, str(body.get("role") or ""), force=force)
                if operation == "ADD-BROKER":
                    return self._changes.add(address, force=force, change=_added_as(body))
                return self._changes.remove(address, force=force, abrupt=body.get("abrupt") is True)
            case _:
                return succeed((501, f"this broker does not have the operation {operation!r} on its cluster", {}))

    def _promote(self, reason: str, manager: str, *, insist: bool, known: int | None) -> Deferred[Answer]:
        """Make this broker the primary; `insist`: see `ha.core.pursuit` (resource managers do not insist). `known` is the epoch
        that the requester knows: the request is refused if a primary was elected later."""
        began = self._clock.seconds()
        if self._broker.state == "active":
            return succeed((200, "this broker is the primary already", self._promoted(began)))
        hears, epoch = self.log.replica.primary, self.log.replica.epoch
        if hears and known is not None and known < epoch:
            return succeed((409, f"{hears} was elected in epoch {epoch}, after the epoch {known} that the asker knows of", {}))
        objection = self._agreed.objection(manager, hears, insists=insist) if manager else ""
        if objection:
            return succeed((409, objection, {}))
        stand = partial(self.log.requests.promote, insist=insist, refusing=self.peers.refusing())
        return self._stand(began, _Asked(reason, manager, bool(hears)), stand)

    def _stop_process(self, *, force: bool) -> Answer:
        """Stop this broker in order, unless the others have no majority without it."""
        voters, trouble = self.log.replica.members.voters, self.peers.trouble()
        others = [voter for voter in voters if voter != self.me and voter not in trouble]
        if self.me in voters and 2 * len(others) <= len(voters) and not force:
            text = f"without {self.me} only {len(others)} of {len(voters)} voting members are there, and the cluster stands still"
            return 409, f"nothing was done: {text}; use --force", {}
        _log.info("management asks this broker to stop")
        self._clock.callLater(_ANSWER_S, self._end)
        return 202, "the broker stops", {}

    def _stand(self, began: float, asked: _Asked, stand: Callable[[], Deferred[PromotionEnded]]) -> Deferred[Answer]:
        self._asked.append(asked)
        self.note("promote_asked", epoch=self.log.epoch, detail=asked.because)
        return stand().addCallback(self._promotion_ended, began, asked)

    def _bootstrap(self, *, force: bool) -> Deferred[Answer]:
        """Begin a new cluster; without `force` only report what would be lost."""
        began = self._clock.seconds()
        obstacle = self.log.requests.obstacle_to_bootstrap()
        if obstacle:
            return succeed((409, f"no new cluster can begin here: {obstacle}", {}))
        refusing = self.peers.refusing()
        if refusing:
            # They run, perhaps as a cluster that serves: two clusters would serve the clients of one list of addresses.
            text = "; ".join(f"{address} runs, and {why}" for address, why in sorted(refusing.items()))
            way_out = "Remove the reason, or stop the brokers that you give up"
            return succeed((409, f"no new cluster can begin here: {text}. {way_out}", {}))
        if force:
            _log.warn("an operator begins a new cluster with this broker by force")
            return self._stand(began, _Asked("qpid-ha bootstrap --force"), self.log.requests.bootstrap)
        silent = sorted(self.peers.trouble())
        if not silent:
            text = "every member is connected, so `qpid-ha promote` is enough, and nothing is given up"
        else:
            names = ", ".join(silent)
            text = (
                f"with --force this broker begins a new cluster without {names}. Whatever messages {names} may hold are given "
                "up: the old and the new cluster never mix. Start these brokers instead, unless their data is lost for good"
            )
        return succeed((409, f"nothing was done: {text}", {}))

    def _take_over(self, *, force: bool) -> Deferred[Answer]:
        """Begin a new lineage with the data here (ha.core.lineage); without `force` only report what would be lost."""
        began, obstacle = self._clock.seconds(), self.log.requests.obstacle_to_takeover()
        if obstacle:
            return succeed((409, f"no takeover by force can begin here: {obstacle}", {}))
        members = self.log.replica.members
        again = self._is_lineage_of_one()
        facts = self.me, self.log.status(), self.log.silence_s(), self._broker.lead.state.made_ms
        left = self._store.begun if again else takeover.begun_with(*facts)
        if not force:
            text = (
                f"with --force {self.me} begins a new cluster {left}. Nothing is lost when a broker that votes comes back instead"
            )
            return succeed((409, f"nothing was done: {text}", {}))
        _log.warn("an operator begins a new cluster with this broker by force {left}", left=left)
        if again:
            was, stand = self._store.clusters_left[-1], partial(self.log.requests.promote, insist=True)
        else:
            new_id, was = self._new_id(), members.cluster_id
            self._store.change_cluster(new_id, left)
            if self._telemetry is not None:
                self._telemetry.cluster = new_id
            stand = partial(self.log.requests.take_over, new_id)

        def told(answer: Answer) -> Answer:
            status, text, body = answer
            return status, text, body | {"lineage": {"cluster": self._store.cluster_id, "was": was, "begun": left}}

        return self._stand(began, _Asked(f"qpid-ha takeover --force {left}"), stand).addCallback(told)

    def _is_lineage_of_one(self) -> bool:
        """Whether a takeover has made this broker the only member of a cluster, and it still is."""
        members = self.log.replica.members
        return bool(self._store.begun) and members.cluster_id == self._store.cluster_id and members.voters == (self.me,)

    def _not_told_yet(self) -> str:
        """The text for the history about a takeover that made this broker the only member; "" if there was none, or if the
        history already has it."""
        begun = self._store.begun if self._is_lineage_of_one() else ""
        told = any(begun in term.reason for term in self._broker.lead.state.definitions.terms)
        return f"qpid-ha takeover --force {begun}" if begun and not told else ""

    def _promotion_ended(self, ended: PromotionEnded, began: float, asked: _Asked) -> Answer:
        if asked in self._asked:
            self._asked.remove(asked)
        outcome = "promote_won" if ended.won else "promote_refused"
        self.note(outcome, epoch=self.log.epoch, duration_ms=self._ms_since(began), detail=ended.reason)
        if ended.won:
            self._last_refusal = ""
            return 200, ended.reason or "promoted", self._promoted(began)
        _log.warn("promotion refused: {reason}", reason=ended.reason)
        self._last_refusal = f". The last promotion here was refused: {ended.reason}"
        return 409, ended.reason, {}

    def _promoted(self, began: float) -> dict[str, Any]:
        return {"status": self._broker.state, "epoch": self.log.epoch, "duration_ms": self._ms_since(began)}


def _added_as(body: dict[str, Any]) -> Change:
    """The change that a request to add a broker asks for."""
    if body.get("witness") is True:
        return Change.ADD_WITNESS
    return Change.ADD_STANDBY if body.get("standby") is True else Change.ADD


def _given_up(without: tuple[str, ...]) -> str:
    """The text in the record of a term about members that were silent when it was begun by force; "" for none."""
    return f"; begun anew without {', '.join(without)}, whose data, if any, is given up" if without else ""
