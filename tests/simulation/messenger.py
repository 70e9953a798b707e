"""Links between members that lose, duplicate and reorder messages. They replace TCP connections, which never do so.

Life of a link: there is one for each other member, in each direction. It is connected when the other process is up and
nothing blocks the way. It checks this again at each tick, and is disconnected when the other process has ended or has
been unreachable for `silence_s`. Each message is encoded as on the wire, carried separately, and decoded at the other
end. The receiver gets it only if its process is the same as when the message was sent. On its way a message may be
lost, duplicated, or overtaken.

It replaces `ha.net.peers.Peers`. Consensus needs less from its links than those promise, and this shows it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed

from broker.amqp.data import Condition
from broker.core.sasl_client import Login
from broker.sessions.connection import Session
from ha.amqp import replication_link
from ha.core.membership import Membership
from ha.core.messages import Message
from ha.core.versions import Versions
from tests.simulation.network import Network

STRAY_S = 0.6
"""Less than a host is off before its disk is replaced (`promises.OFF_BEFORE_REPLACED_S`), slow links counted in."""
_A_COPY = 0.75


@dataclass
class Weather:
    """How bad the links are. `drop`, `double`, `stray`: chances for each message; `delay_s`: how much longer one may take than
    another; `STRAY_S`: how much longer one may take that goes astray, or a copy of it, so that it comes in another epoch."""

    drop: float = 0.0
    double: float = 0.0
    delay_s: float = 0.0
    stray: float = 0.0


@dataclass
class Mail:
    """What all messengers of a world share: who is there, and the weather."""

    network: Network
    rng: Random
    weather: Weather = field(default_factory=Weather)
    offices: dict[str, Messenger] = field(default_factory=dict)


class Messenger:
    """Fulfils `ha.cluster_member.Links`."""

    def __init__(
        self,
        mail: Mail,
        reactor: Any,
        *,
        me: str,
        events: Any,
        silence_s: float,
        cluster_id: Callable[[], str],
        members: Callable[[], Membership],
        versions: Versions,
        cluster_version: Callable[[], int],
        login: Login,
        user: str,
        credentials: Any = None,
        removed_at: Callable[[str], int],
        on_removed: Callable[[int], None],
    ) -> None:
        del cluster_version, login, user, credentials, removed_at, on_removed
        self.versions = versions
        self.mail = mail
        self.reactor = reactor
        self.me = me
        self.events = events
        self.silence_s = silence_s
        self.cluster_id = cluster_id
        self.members = members
        self._wanted: list[str] = []
        self._linked: dict[str, tuple[Messenger, float]] = {}
        self._stopped = False

    # ---- ha.cluster_member.Links

    def set_members(self, members: Membership) -> None:
        """Keep links to these; the first time, open for the others."""
        if not self._stopped:
            self.mail.offices[self.me] = self
        self._wanted = [address for address in members.addresses if address != self.me]
        for address in [address for address, (office, _) in self._linked.items() if not self._keeps(address, office)]:
            del self._linked[address]
            self.reactor.callLater(0, self.events.disconnected, address)

    def _keeps(self, address: str, office: Messenger) -> bool:
        return address in self._wanted or self.me in office._linked

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Let a message go, perhaps to nowhere."""
        linked = self._linked.get(peer)
        if linked is None:
            return
        data = replication_link.encode(message, batches, self.versions.wire_with(linked[0].versions))
        weather, rng, network = self.mail.weather, self.mail.rng, self.mail.network
        target = linked[0]
        if network.is_blocked(self.reactor.ip, target.reactor.ip) or rng.random() < weather.drop:
            return
        for _ in range(2 if rng.random() < weather.double else 1):
            delay = network.latency(self.reactor.ip, target.reactor.ip) + weather.delay_s * rng.random() ** 3
            if weather.stray and rng.random() < weather.stray:
                late = delay + STRAY_S * rng.random()
                if rng.random() < _A_COPY:
                    self.reactor.events.after(late, target.reactor, target.arrived, self, data)
                else:
                    delay = late
            self.reactor.events.after(delay, target.reactor, target.arrived, self, data)

    def close(self, peer: str, reason: str) -> None:
        """Begin anew with this member."""
        del reason
        if self._linked.pop(peer, None) is not None:
            self.reactor.callLater(0, self.events.disconnected, peer)

    def of_older_release(self) -> list[str]:
        """None: messages have one form here."""
        return []

    def runs_as_witness(self, address: str) -> bool:
        """What it is started as."""
        office = self.mail.offices.get(address)
        return office is not None and office.versions.witness

    def machine_versions(self) -> dict[str, int]:
        """What those say that are linked now."""
        return {address: office.versions.machine for address, (office, _) in self._linked.items()}

    def reads_snapshots(self, peer: str) -> bool:
        """All run this release."""
        return True

    def refusals(self) -> dict[str, str]:
        """Nobody is refused here."""
        return {}

    def tell_removed(self, members: Membership) -> None:
        """Nobody is told here."""

    def reach(self, address: str, within_s: float) -> Deferred[str]:
        """Everybody may be asked to join."""
        return succeed("")

    def accept(self, connection: object, value: str) -> Session:
        """Nobody opens connections here."""
        raise Condition("amqp:not-allowed", "members of this cluster do not come over TCP")

    def tick(self) -> None:
        """Look who is there."""
        now = self.reactor.events.now
        strangers = [address for address, office in self.mail.offices.items() if self.me in office._linked]
        for address in dict.fromkeys([*self._wanted, *strangers]):
            office = self.mail.offices.get(address)
            linked = self._linked.get(address)
            if linked is not None and (
                office is not linked[0] or now - linked[1] > self.silence_s or not self._keeps(address, office)
            ):
                del self._linked[address]
                self.events.disconnected(address)
            elif office is not None and self._reaches(office, linked is None):
                self._linked[address] = (office, now)
                if linked is None:
                    self.events.connected(address)

    def trouble(self) -> dict[str, str]:
        """Who cannot be talked to."""
        return {address: "is not connected" for address in self._wanted if address not in self._linked}

    def refusing(self) -> dict[str, str]:
        """Nobody: an address of the simulation is that of one member."""
        return {}

    def stop(self) -> None:
        """End."""
        self._stopped = True
        if self.mail.offices.get(self.me) is self:
            del self.mail.offices[self.me]

    # ---- the other end

    def arrived(self, sender: Messenger, data: bytes) -> None:
        """A message has come."""
        if self._stopped:
            return
        now = self.reactor.events.now
        self.mail.network.digest = zlib.crc32(data, zlib.crc32(b"%.9f" % now, self.mail.network.digest))
        self.mail.network.delivered += 1
        message, payload = replication_link.decode(data)
        self.events.receive(sender.me, message, payload)

    def _reaches(self, office: Messenger, anew: bool) -> bool:
        network = self.mail.network
        here, there = self.reactor.ip, office.reactor.ip
        if office.reactor.gone or office.reactor.frozen or network.is_blocked(here, there) or network.is_blocked(there, here):
            return False
        ours, theirs = self.cluster_id(), office.cluster_id()
        return not anew or (ours == theirs if ours and theirs else self.me in office.members().addresses)
