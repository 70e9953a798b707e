"""The assembled broker: its logs, termini and connections.

Life of a broker: its logs are attached (`attach_log`), and report their states. While the broker serves (active or standalone),
it admits clients and attaches their links to termini. A batch of messages goes link → Producer → terminus → Ledger → log, and
after its commit ledger → `ledger_applied` → dispatch → Subscription → link. When the broker stops serving, it disconnects all
clients and drops all volatile state.

Ownership: `logs` owns the ledgers, the nodes and the state of this broker; `queues`, `exchanges` and `mailboxes` own the
termini; `termini` finds the terminus for an attach; `admission` owns the connections; `administration` the management requests;
`leaving` the phase before a handover; `departure` and `drains` the drain of this broker, and `origins` drains into it; `routes`
the fetched messages; `numbered` the numbered links; `guard` the rules in force; `schedule` the timed actions; `turn` the rest of
this turn's work. The broker itself owns no state: it creates these objects, and passes on the reports of the ledgers.

Invariants: `turn.flush` runs once at the end of every entry from the reactor, so that the output of a turn to a connection is
one write; nothing here depends on the implementation of the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from twisted.internet.defer import maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.administration import Administration
from broker.commit_log import CommitLog
from broker.core import limits
from broker.core.acl.rules import Acl
from broker.core.commands import MACHINE_VERSION
from broker.core.definitions import Change, SettingMade
from broker.core.identity import Socket
from broker.drains import Drains
from broker.host import REAL_HOST, new_uuid
from broker.routes.dialer import Dial, Dialer
from broker.routes.routes import Routes
from broker.routes.sequences import Sequences
from broker.sessions.admission import Admission
from broker.sessions.alerts import Alerts
from broker.sessions.audit import Audit
from broker.sessions.authentication import Authentication
from broker.sessions.bulk import Bulk
from broker.sessions.claims import Claims
from broker.sessions.connection import Connection
from broker.sessions.coordinator import Coordinator
from broker.sessions.departure import Departure, drain_source
from broker.sessions.events import Events
from broker.sessions.exchanges import Exchanges
from broker.sessions.guard import Guard
from broker.sessions.initial_values import InitialValues
from broker.sessions.leaving import Leaving
from broker.sessions.ledger import SERVING, Ledger
from broker.sessions.logs import Logs
from broker.sessions.mailboxes import Mailboxes
from broker.sessions.making import Making
from broker.sessions.management import ManagementTerminus
from broker.sessions.numbered import NumberedLinks
from broker.sessions.origins import Origins
from broker.sessions.queues import Queues
from broker.sessions.quota import QueueQuota
from broker.sessions.rabbitmq import RabbitmqManagement
from broker.sessions.relay import Relay
from broker.sessions.removal import Removals
from broker.sessions.schedule import Schedule
from broker.sessions.share import Allowance, Share
from broker.sessions.slow import SlowConsumers
from broker.sessions.subscriptions import Subscriptions
from broker.sessions.termini import (
    Termini,
    by_address,
    no_anonymous_source,
    of_kind,
    source_by_address,
)
from broker.sessions.turn import Turn

_log = Logger()


class Broker:
    """A broker's services; the sockets are given to it by `broker.net.listener`. Fulfils `sessions.ledger.LedgerOwner`."""

    def __init__(
        self,
        clock: IReactorTime,
        *,
        broker_id: str,
        version: str,
        clustered: bool,
        default_level: str = "none",
        max_message_bytes: int = limits.MAX_MESSAGE_BYTES,
        part_bytes: int = limits.PART_BYTES,
        max_connections: int = limits.MAX_CONNECTIONS,
        max_connections_per_host: int = 0,
        quotas: tuple[int, int] = (0, 0),
        queue_patterns: Collection[str] = (),
        topic_patterns: Collection[str] = (),
        slow_s: float = 0.0,
        ends_slow: bool = False,
        consumer_s: float = 0.0,
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        open_timeout_s: float = limits.OPEN_TIMEOUT_S,
        default_queue_bytes: int = limits.MAX_QUEUE_BYTES,
        message_memory: int = limits.MESSAGE_MEMORY_BYTES,
        on_fatal: Callable[[str], None],
        new_id: Callable[[], str] = new_uuid,
        authentication: Authentication | None = None,
        machine_version: int = MACHINE_VERSION,
        wall: Callable[[], float] = REAL_HOST.wall,
        as_rabbitmq: bool = False,
        dial: Dial | None = None,
        runs_routes: bool = True,
        free_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.broker_id = broker_id
        self.max_message_bytes = max_message_bytes
        self.max_connections = max_connections
        self.on_state: Callable[[str, int, str], None] = lambda state, epoch, primary: None
        self.on_settings: Callable[[], None] = lambda: None
        """Called while batches are applied that change settings of the cluster."""
        self._on_fatal = on_fatal
        self.turn = Turn(clock)
        self.logs = Logs(
            clock,
            self,
            clustered=clustered,
            default_level=default_level,
            default_queue_bytes=default_queue_bytes,
            machine_version=machine_version,
            message_memory=message_memory,
            wall=wall,
        )
        self.schedule = Schedule(clock, self.turn)
        allowance = Allowance(clock, self.logs.moved_s)
        self.searches = Share(clock, self.turn.flush)
        realm = authentication.realm if authentication is not None and authentication.checks_user_ids else None
        self.guard = Guard(Audit(clock.seconds), quotas, realm)
        quota = QueueQuota(self.guard)
        events = Events(self.logs, wall, broker_id)
        self.queues = Queues(self.logs, self.turn, self.schedule, self.searches, events, consumer_s)
        self.alerts = Alerts(self.logs, self.schedule, clock.seconds, events)
        self.slow = SlowConsumers(clock, self.queues, self.turn, slow_s, ends_slow)
        self.subscriptions = Subscriptions(self.logs, self.queues, quota, new_id)
        self.exchanges = Exchanges(self.logs, self.queues, quota, self.subscriptions, new_id)
        self.mailboxes = Mailboxes(new_id)
        self.origins = Origins(self.logs, self.queues)
        self.logs.store_id = broker_id
        self.logs.identify = lambda: broker_id
        sequences = Sequences(self.logs, self.queues)
        dial = dial or Dialer(clock)
        self.routes = Routes(clock, self.logs, self.queues, self.turn, self.guard, new_id, dial, runs=runs_routes)
        self.initial_values = InitialValues(self.logs)
        self.numbered = NumberedLinks(self.logs, self.queues, self.schedule)
        self.administration = Administration(
            clock,
            self.logs,
            self.queues,
            self.mailboxes,
            self.turn,
            self.guard.audit,
            quota,
            self.slow,
            allowance,
            broker_id=broker_id,
            version=version,
            new_id=new_id,
        )
        self.administration.bulk = bulk = Bulk(self.logs, self.queues, self.searches, self.schedule, clock.seconds)
        self.removals = Removals(self.logs, self.queues, bulk, self.schedule, clock.seconds)
        self.queues.removals = self.removals
        management = ManagementTerminus(self.administration)
        queue, exchange, mailbox = self.queues.named, self.exchanges.named, self.mailboxes.named
        claims = Claims(self.mailboxes)
        rabbitmq = RabbitmqManagement(self.administration, self.mailboxes, self.logs.nodes, new_id)
        self.transactions = Coordinator(self.logs, new_id)
        self._relay = relay = Relay(clock, self.turn, self.logs, [management.named, mailbox, queue, exchange])
        self.making = Making(self.logs, self.queues, quota, new_id, queue_patterns=queue_patterns, topic_patterns=topic_patterns)
        self.termini = Termini(
            self.logs,
            self.making,
            targets=[
                self.transactions.asked,
                relay.anonymous,
                by_address(management.named),
                rabbitmq.target,
                by_address(claims.named),
                by_address(mailbox),
                by_address(self.origins.named),
                self.numbered.asked,
                lambda attach: of_kind(attach, self.queues.named, self.exchanges.named),
            ],
            sources=[
                self.mailboxes.dynamic,
                self.subscriptions.asked,
                no_anonymous_source,
                rabbitmq.source,
                source_by_address(claims.named),
                source_by_address(drain_source(self.logs, self.queues)),
                source_by_address(sequences.named),
                lambda attach: of_kind(attach, self.queues.named, self.exchanges.named),
            ],
            max_message_bytes=max_message_bytes,
        )
        self.authentication = authentication or Authentication(clock, maybeDeferred, new_id)
        self.admission = Admission(
            clock,
            self.logs,
            self.turn,
            self.termini,
            self.guard,
            allowance,
            authentication=self.authentication,
            transactions=self.transactions.new_connection,
            container=broker_id,
            version=version,
            as_rabbitmq=as_rabbitmq,
            max_connections=max_connections,
            max_connections_per_host=max_connections_per_host,
            max_message_bytes=max_message_bytes,
            part_bytes=part_bytes,
            max_frame_bytes=max_frame_bytes,
            open_timeout_s=open_timeout_s,
            max_unfinished_bytes=max(2 * limits.UNFINISHED_BYTES, message_memory // limits.UNFINISHED_SHARE),
        )
        claims.desk = self.admission
        self.leaving = Leaving(clock, self.logs, self.queues, self.admission)
        self.departure = Departure(clock, self.logs, self.queues, self.admission, self.turn)
        self.drains = Drains(self.logs, self.origins, self.departure, broker_id, new_id, max_message_bytes, free_bytes)
        self.administration.extensions |= {"drain": self.drains, "route": self.routes, "sequence": sequences}
        self.administration.connections = self.connections = self.admission.connections
        self.nodes, self.ledgers, self.lead = self.logs.nodes, self.logs.ledgers, self.logs.lead

    @property
    def state(self) -> str:
        """The state of this broker by its lead log."""
        return self.logs.state

    def attach_log(self, name: str, log: CommitLog) -> Ledger:
        """Plug a log in; returns the ledger, which is the log's listener."""
        ledger = self.ledgers[name]
        ledger.log = log
        return ledger

    def enforce(self, acl: Acl) -> None:
        """These rules are in force from now on: end the connections and links that they do not allow."""
        self.guard.enforce(acl)
        self.admission.look_again()

    def new_connection(self, socket: Socket) -> Connection | None:
        """A connection object for an accepted socket; None when there are too many."""
        return self.admission.new_connection(socket)

    # ---- sessions.ledger.LedgerOwner

    def ledger_reset(self, ledger: Ledger) -> None:
        """A snapshot has replaced the state of this ledger."""
        self.logs.rebuild()
        self.queues.rebuilt()
        self.logs.tidy_local(anew=True)
        self.turn.flush()

    def ledger_applied(
        self,
        ledger: Ledger,
        fed: Iterable[int],
        drained: Iterable[int],
        emptied: Iterable[int],
        changes: Collection[tuple[Change, str]],
    ) -> None:
        """Follow the definitions, then dispatch the new messages, then write."""
        if changes:
            self._follow(ledger, changes)
        self.making.emptied(ledger, emptied)
        self.queues.fed(ledger, fed)
        self.alerts.fed(ledger, fed)
        self.queues.resume_crowded(ledger, drained)
        self.turn.flush()
        self.logs.residency.enforce()
        if changes and ledger is self.logs.lead and any(isinstance(change, SettingMade) for change, _ in changes):
            self.on_settings()

    def _follow(self, ledger: Ledger, changes: Collection[tuple[Change, str]]) -> None:
        for node in self.logs.follow(ledger, changes):
            self.queues.gone(node)
            self.making.gone(node)
        self.guard.follow(changes)
        self.exchanges.follow(changes)
        self.queues.follow(changes)
        self.queues.unused.follow(changes)
        self.numbered.follow(changes)
        self.initial_values.follow(changes)
        self.origins.follow(changes)
        self.routes.follow(ledger, changes)
        self.alerts.follow(changes)

    def ledger_state(self, ledger: Ledger, state: str, epoch: int, primary: str) -> None:
        """A log's state changed: begin or end to serve."""
        logs = self.logs
        if ledger is not logs.lead:
            logs.tidy_local(anew=True)
            if logs.serving and ledger.serving:
                self.queues.begin(ledger)
                self.numbered.begin(ledger)
                self.initial_values.begin()
                self.removals.begin()
                self.turn.flush()
            return
        was, logs.state, logs.primary = logs.state, state, primary
        if was in SERVING and not logs.serving:
            self.schedule.clear()
            self.removals.void()
            self.subscriptions.void()
            self.initial_values.over()
            self.administration.void(ledger.name)
            self.admission.stop_serving()
            self.transactions.over()
            self.queues.release_all()
            self.leaving.over()
            self.departure.over()
            self.drains.void()
            self.routes.over()
            self.alerts.over()
        elif logs.serving:
            logs.tidy_local(anew=True)
            if was not in SERVING:
                self.queues.unused.begin()
                for each in filter(lambda each: each.serving, self.ledgers.values()):
                    self.queues.begin(each)
                    self.numbered.begin(each)
                self.initial_values.begin()
                self.removals.begin()
                self.routes.begin()
                self.alerts.begin()
                if logs.leaving_text:
                    _log.warn("{text}", text=logs.leaving_text)
        elif state != "recovering":
            self.admission.drop_held()
        self.on_state(state, epoch, primary)
        if logs.serving:
            self.admission.admit_held()  # after what the owner has put first, such as the version of a new cluster
        self.turn.flush()

    def ledger_begins(self, ledger: Ledger) -> None:
        """A term begins: later messages get sequences after the existing ones."""
        self.logs.begins(ledger)

    def ledger_quiesces(self, ledger: Ledger, within_s: float, done: Callable[[], None]) -> None:
        """Another broker is to take over."""
        self.routes.pause()
        self.leaving.begin(within_s, done)

    def ledger_resumes(self, ledger: Ledger) -> None:
        """It does not."""
        self.leaving.give_up()
        if self.logs.serving:
            self.routes.begin()

    def ledger_storage_error(self, ledger: Ledger, text: str, fatal: bool) -> None:
        """The disk refused a write, or bodies are damaged. If this broker stops because of it, another one delivers its
        messages."""
        if fatal:
            self.queues.hold()
            self._on_fatal(text)
        else:
            _log.error("{text}; producers wait until there is room", text=text)
            if ledger.room.low:
                self.logs.coming.give_up(ledger)

    def ledger_writable(self, ledger: Ledger) -> None:
        """The disk accepts writes again: let the producers continue."""
        _log.info("the disk takes writes again; producers go on")
        self.queues.resume_all(ledger)
        self.turn.flush()

    def flush(self) -> None:
        """An entry from the reactor ends."""
        self.turn.flush()

    def close(self) -> None:
        """Stop: disconnect the clients in order. The creator of the logs closes them."""
        self.routes.over()
        self.leaving.over()
        self.departure.over()
        self.slow.close()
        self.searches.close()
        self.admission.close()
        self._relay.close()
        self.schedule.clear()  # ending the links may have scheduled calls
        self.turn.close()
        for ledger in self.ledgers.values():
            ledger.close()
