"""The logs of a broker: their ledgers, the nodes that clients can name, and whether this broker serves.

Life: each log has a ledger from the start. The logs are connected to the ledgers later, and the batches that they apply change
the nodes. `lead` is the ledger whose log decides whether this broker serves: the shared log, if there is one. A broker begins as
"recovering" or "joining", because it must read its log first.

Invariants: what the shared log has deleted is removed from the local log only while this broker is active, because only then was
the shared log read to its end; nothing is proposed for a queue in a log that does not serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

from twisted.internet.interfaces import IReactorTime

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.commands import LARGE_SINCE, MACHINE_VERSION, TIMES_SINCE, ExchangeDel, QueueDel
from broker.core.definitions import Change
from broker.core.nodes import CLUSTER, LOCAL, ExchangeNode, Nodes, QueueNode
from broker.core.origins import LEAVING, TRAITS_SINCE, Leave
from broker.core.queues.residency import Residency
from broker.host import REAL_HOST
from broker.sessions.coming import Coming
from broker.sessions.inflow import Inflow
from broker.sessions.ledger import SERVING, Ledger, LedgerOwner


class Logs:
    """See the module. `clustered`: there is also a shared log."""

    def __init__(
        self,
        clock: IReactorTime,
        owner: LedgerOwner,
        *,
        clustered: bool,
        default_level: str,
        default_queue_bytes: int,
        message_memory: int,
        machine_version: int = MACHINE_VERSION,
        wall: Callable[[], float] = REAL_HOST.wall,
    ) -> None:
        self.residency = Residency(message_memory)
        self.inflow = Inflow(limits.INFLOW_BYTES)
        self.coming = Coming(clock)
        self.nodes = Nodes(clustered=clustered, default_level=default_level, default_queue_bytes=default_queue_bytes)
        self.ledgers: dict[str, Ledger] = {
            name: Ledger(name, clock, owner, version=machine_version, residency=self.residency, inflow=self.inflow, wall=wall)
            for name in ((LOCAL, CLUSTER) if clustered else (LOCAL,))
        }
        self.nodes.under_way = lambda: chain.from_iterable(ledger.pending.under_way() for ledger in self.ledgers.values())
        self.closing_queues: dict[str, list[Callable[[], None]]] = {}
        """Identity of a queue whose last messages leave before its deletion is proposed -> the calls when that is decided."""
        self.owed: dict[str, None] = {}
        """Identities of queues that are to go when this broker serves, or when its drain is cancelled: until then their messages
        stay, or go elsewhere."""
        self.promised: Counter[str] = Counter()
        """Identity of a queue -> how many transactions put messages on it as soon as another log has committed their first part:
        it stays until then. Only this term knows them."""
        self.nodes.is_going = self._is_going
        self.lead = lead = self.ledgers[CLUSTER] if clustered else self.ledgers[LOCAL]
        self.nodes.rises_to = lambda: lead.pending.rises_to
        self.state = "joining" if clustered else "recovering"
        self.primary = ""
        self.identify: Callable[[], str] = lambda: ""
        """The identity of the owner of this broker's lead log: its cluster, or its store."""
        self.store_id = ""
        """The identity of this broker's store."""
        self.closing = False
        """Whether it was proposed that this broker leaves."""
        self.halted = False
        """Whether the drain of this broker is being called off: it gives nothing to a drain."""
        self.rebuild()

    @property
    def serving(self) -> bool:
        """Whether this broker serves clients."""
        return self.state in SERVING

    def _is_going(self, uuid: str) -> bool:
        for ledger in self.ledgers.values():  # this is asked for each batch of messages
            if ledger.pending.is_going(uuid):
                return True
        return uuid in self.closing_queues

    def when_decided(self, node: QueueNode, call: Callable[[], None]) -> None:
        """Call when a queue that is being deleted is gone, or stays."""
        if node.uuid in self.closing_queues:
            self.closing_queues[node.uuid].append(call)
        else:
            self.ledgers[node.log].pending.when_committed(call)

    def fulfil(self, uuids: Iterable[str]) -> None:
        """These queues get what was promised to them, in this turn."""
        self.promised.subtract(uuids)
        self.promised = +self.promised

    def moved_s(self) -> float:
        """The time of the last proposal or commit of any log, by the reactor's clock."""
        return max(ledger.pending.moved_s for ledger in self.ledgers.values())

    def ledger_of(self, node: QueueNode) -> Ledger:
        """The ledger that holds this queue's messages."""
        return self.ledgers[node.messages_log]

    def ledger_at(self, exchange: ExchangeNode) -> Ledger:
        """The ledger of the log that records the numbers and the last message of this exchange."""
        return self.ledgers[exchange.log]

    def store_of(self, node: QueueNode) -> str:
        """The identity of the log that holds this queue's messages: a queue's sequences mean the same for as long as it stays."""
        return self.identify() if node.messages_log == self.lead.name else self.store_id

    @property
    def epoch(self) -> int:
        """The epoch of the last primary in the history of terms; 0 for a standalone broker."""
        terms = self.lead.state.definitions.terms
        return terms[-1].epoch if terms else 0

    @property
    def takes_large(self) -> bool:
        """Whether large messages may be stored by the part: every member knows how."""
        return all(ledger.version >= LARGE_SINCE for ledger in self.ledgers.values())

    @property
    def takes_times(self) -> bool:
        """Whether messages may expire and be delayed: every member knows how."""
        return all(ledger.version >= TIMES_SINCE for ledger in self.ledgers.values())

    @property
    def leave(self) -> Leave | None:
        """The departure in this broker's log, with the targets of its queues; None if it does not leave."""
        setting = self.lead.state.definitions.settings.get(LEAVING)
        return None if setting is None else Leave.of(setting.value)

    @property
    def leaving_text(self) -> str:
        """What an operator is told about the departure of this broker; "" if it does not leave."""
        leave = self.leave
        if leave is None:
            return ""
        done = "is empty: a drain has moved its messages" if leave.released else "is drained"
        return f"this broker accepts no clients, because it {done} to {', '.join(leave.to)}; qpid-drain --cancel ends that"

    @property
    def gives_times(self) -> bool:
        """Whether this broker leaves, and the expiry times and failures of its messages go to the target with them."""
        leaves = LEAVING in self.lead.state.definitions.settings
        return leaves and all(ledger.version >= TRAITS_SINCE for ledger in self.ledgers.values())

    @property
    def closed(self) -> bool:
        """Whether nothing is taken from clients any more, because this broker leaves, or is about to."""
        return self.closing or LEAVING in self.lead.state.definitions.settings

    def redirect(self, address: str = "") -> Condition:
        """The redirect for clients of a broker that leaves, for a node at this address (part 2.8.18)."""
        leave = self.leave
        node = self.nodes.queues.get(address)
        to = () if leave is None else leave.addresses_for("" if node is None else node.uuid)
        text = f"this broker leaves; its queues are moved to {', '.join(to) or 'another broker'}"
        if not to:
            return Condition("amqp:resource-locked", text)
        host, _, port = to[0].rpartition(":")
        info = {"network-host": host, "port": int(port), "hostname": host}  # what matters most comes first, if not all fits
        return Condition("amqp:link:redirect", text, info | ({"address": address} if address else {}))

    def must_serve(self) -> None:
        """Condition, when this broker does not serve clients, or leaves."""
        if self.serving and self.closed:
            raise self.redirect()
        if not self.serving:
            raise self.unserved()

    def unserved(self) -> Condition:
        """The condition for clients that need a queue of a broker that does not serve."""
        where = self.primary or "unknown"
        return Condition("amqp:not-allowed", f"this broker is {self.state}: it serves no queues; the primary is {where}")

    # ---- following what is applied

    def rebuild(self) -> None:
        """Create the nodes again from the state of the ledgers."""
        self.nodes.rebuild({name: ledger.state for name, ledger in self.ledgers.items()})

    def follow(self, ledger: Ledger, changes: Iterable[tuple[Change, str]]) -> list[QueueNode]:
        """Take up definitions that this ledger has applied. Returns the queues that are gone."""
        changed, removed = False, []
        for change, reason in changes:
            if not reason:
                changed = True
                gone = self.nodes.follow(ledger.name, change)
                if gone is not None:
                    removed.append(gone)
        if changed:
            self.tidy_local()
        return removed

    def tidy_local(self, *, anew: bool = False) -> None:
        """Update the local log with the queues that the cluster's log has created or deleted: recently, or, with `anew`, ever. A
        backup creates the places that messages will need when it is the primary. A queue that seems to be deleted may be in a
        part of the log that a backup does not have yet, so only a primary removes places.
        """
        local = self.ledgers[LOCAL]
        if local.serving:
            nodes, forgets = self.nodes, self.state in SERVING
            orphans, unplaced = nodes.take_orphans() if forgets else [], nodes.take_unplaced()
            if anew:
                orphans, unplaced = nodes.orphans() if forgets else [], nodes.unplaced()
            for command in (*orphans, *unplaced):
                local.change(command, lambda reason: None)

    def begins(self, ledger: Ledger) -> None:
        """Later messages get sequences after the existing ones. The queues of subscriptions that ended with the last process are
        deleted: those whose messages go elsewhere first, when this broker serves."""
        self.nodes.go_on(ledger.name)
        ledger.begin_parts()
        if ledger is self.ledgers[LOCAL]:
            for node in self.nodes.queues.values():
                definition = node.definition
                shared = node.terms is not None and node.terms.shared
                passing = definition.auto_delete and (definition.exclusive or shared) and not definition.durable
                if node.log == LOCAL and (definition.lifetime or (passing and not node.auto_delete_s)):
                    if node.depth and definition.alternate:
                        self.owed[node.uuid] = None
                    else:
                        self.delete_queue(node)
            for exchange in self.nodes.exchanges.values():
                if exchange.log == LOCAL and exchange.definition.lifetime:
                    ledger.change(ExchangeDel(uuid=exchange.uuid), lambda reason: None)

    def delete_queue(self, node: QueueNode) -> None:
        """Propose that this queue goes, with its messages (broker.sessions.removal sends them on first)."""
        self.ledgers[node.log].change(QueueDel(uuid=node.uuid), lambda reason: None)
