"""Admission: which connections there are, and which are accepted.

Life of a connection: a socket is accepted, unless there are too many. Its Open is answered with a session, is kept until this
broker serves, or is refused, for example by the ACL rules. When the rules change, existing connections are checked again
(`look_again`). An Open with a property that is registered in `roles` belongs to that role. It is not a client's: it is accepted
whatever the state of this broker is, and stays open when this broker stops serving.

A connection logs in first, by an offered mechanism (`broker.sessions.authentication`). Where a login is required, a connection is
a stranger until then. The number of strangers is limited, and at most half of them may be from one host. A connection ends when
its login does: when its token has expired, or its user was removed from the users' file.

Invariants: clients are admitted only while this broker serves, administrators always; there are never more than `max_connections`
plus `limits.SPARE_CONNECTIONS` sockets; a user's connections count from their admission to their end, except those of roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.amqp.scratch import Scratch
from broker.amqp.unfinished import Unfinished
from broker.core import limits, sasl
from broker.core.acl import questions
from broker.core.acl.questions import Lookups, shown
from broker.core.bearer import CBS, CBS_NODE
from broker.core.identity import Socket
from broker.core.values import Symbol
from broker.sessions.authentication import Authentication
from broker.sessions.claims import Answer
from broker.sessions.client import ClientSession
from broker.sessions.connection import SOLE, Connection, Role
from broker.sessions.guard import UNAUTHORIZED, Guard, Rights
from broker.sessions.logs import Logs
from broker.sessions.principal import principal_of
from broker.sessions.refusals import Refusals
from broker.sessions.share import Allowance, Share
from broker.sessions.termini import Termini
from broker.sessions.transactions import Transactions
from broker.sessions.turn import Turn

_log = Logger()
RABBITMQ = "RabbitMQ", "4.0.0"
"""The product that RabbitMQ's clients look for in an Open, and the oldest version that they take."""


class Admission:
    """See the module. Fulfils `connection.Owner`."""

    def __init__(
        self,
        clock: IReactorTime,
        logs: Logs,
        turn: Turn,
        termini: Termini,
        guard: Guard,
        allowance: Allowance,
        *,
        authentication: Authentication,
        transactions: Callable[[], Transactions],
        container: str,
        version: str,
        as_rabbitmq: bool,
        max_connections: int,
        max_connections_per_host: int,
        max_message_bytes: int,
        part_bytes: int,
        max_frame_bytes: int,
        open_timeout_s: float,
        max_unfinished_bytes: int,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.roles: dict[str, Role] = {}
        """Property of an Open -> the object that makes the sessions of connections with this property."""
        self.failover_urls: Callable[[], list[dict[Any, Any]]] = list
        """The other addresses for clients, as the maps of a failover-server-list."""
        self._clock = clock
        self._logs = logs
        self._turn = turn
        self._termini = termini
        self._guard = guard
        self._max_per_host = max_connections_per_host
        self._counted: dict[int, tuple[str, str, str]] = {}
        """Number of a connection that was admitted -> its user, its host and its container."""
        self._messages_of_ended = (0, 0)
        """The messages that ended connections had sent and received."""
        self._by_container: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._by_host: Counter[str] = Counter()
        self._unlooked: dict[int, None] = {}
        """Numbers of the connections that are still to be looked at under the rules in force."""
        self._look_call: IDelayedCall | None = None
        self._authentication = authentication
        self._transactions = transactions
        self._strangers: dict[int, str] = {}
        """Number of each connection that has to log in and has not -> its host."""
        self._shown: set[int] = set()
        """Numbers of the connections of which a token is being looked at."""
        self._strangers_of: Counter[str] = Counter()
        """Host -> how many of them come from it."""
        self._version = version
        self._as_rabbitmq = as_rabbitmq
        self._max_connections = max_connections
        self.share = Share(clock, turn.flush, allowance)
        """The share of a turn for new connections."""
        self._unfinished = Unfinished(max_unfinished_bytes)
        self._unfinished.over = self._too_much_unfinished
        self._relief_call: IDelayedCall | None = None
        self._engine_options: dict[str, Any] = {
            "container": container,
            "max_frame_bytes": max_frame_bytes,
            "max_message_bytes": max_message_bytes,
            "part_bytes": part_bytes,
            "open_timeout_s": open_timeout_s,
            "scratch": Scratch(),
            "share": self.share,
            "unfinished": self._unfinished,
        }
        self._refusals = Refusals(clock.seconds, lambda line: _log.warn("{line}", line=line))
        self._next_number = 1
        self._held_opens: dict[Connection, None] = {}
        self._admit_call: IDelayedCall | None = None
        """While it serves, and many of them are still to be answered."""
        self._holding = False
        """Whether clients that come now wait, because another broker is about to take over."""
        self._unticked: list[int] = []
        """Numbers of the connections that this second's tick has still to look at."""
        self._tick_call: IDelayedCall | None = None
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        self._ticker.start(limits.TICK_S, now=False)

    def new_connection(self, socket: Socket) -> Connection | None:
        """A connection object for an accepted socket; None when there are too many."""
        limit = self._max_connections + limits.SPARE_CONNECTIONS
        if len(self.connections) >= limit:
            self._refusals.line(f"{socket.address} refused: there are {limit} connections, with the spare ones")
            return None
        if self._demands_login(socket) and self._too_many_strangers(socket.host):
            self._refusals.told(socket.address, "too many connections have not logged in; it was closed at once")
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        connection = Connection(
            self,
            self._turn,
            self._clock,
            number,
            socket,
            offer=self._authentication.offer(socket),
            sasl_frame_bytes=self._authentication.frame_bytes(socket),
            **self._engine_options,
        )
        connection.session = ClientSession(
            connection, self._termini, self._turn, self._logs.inflow, self._guard_of(socket), self._transactions()
        )
        return connection

    def _demands_login(self, socket: Socket) -> bool:
        return self._authentication.demanded and not socket.own

    def _guard_of(self, socket: Socket) -> Guard:
        """No rules apply to this process itself."""
        return Guard(self._guard.audit) if socket.own else self._guard

    def _too_many_strangers(self, host: str) -> bool:
        most = max(limits.FEW_STRANGERS, self._max_connections // limits.STRANGERS_SHARE)
        return len(self._strangers) >= most or self._strangers_of[host] >= most // 2

    def _is_stranger(self, connection: Connection) -> None:
        host = self._strangers[connection.number] = connection.socket.host
        self._strangers_of[host] += 1

    def _is_none(self, connection: Connection) -> None:
        host = self._strangers.pop(connection.number, None)
        if host is not None:
            self._strangers_of[host] -= 1
            if not self._strangers_of[host]:
                del self._strangers_of[host]

    def handshake_failed(self, address: str, reason: str) -> None:
        """A socket has ended before it became a connection."""
        self._refusals.told(address, reason)

    def _too_much_unfinished(self) -> None:
        if self._relief_call is None:
            self._relief_call = self._clock.callLater(0, self._relieve)

    def _relieve(self) -> None:
        """Unfinished messages take too much memory together: end the connections that have most of it."""
        self._relief_call = None
        while self._unfinished.is_too_much:
            clients = (one for one in self.connections.values() if one.session.serves_clients)
            worst = max(clients, key=lambda connection: connection.engine.gathering.nbytes)
            limit, has = self._unfinished.limit_bytes, worst.engine.gathering.nbytes
            text = (
                f"the unfinished messages of all connections may take {limit} bytes, and those of this one take {has}, the most"
            )
            self._refusals.told(worst.address, text)
            worst.turn_out(Condition("amqp:resource-limit-exceeded", text))
            worst.engine.gathering.drop(worst.engine.links)
        self._turn.flush()

    # ---- connection.Owner

    def connection_made(self, connection: Connection) -> None:
        """A socket was accepted."""
        self.connections[connection.number] = connection
        if self._demands_login(connection.socket):
            self._is_stranger(connection)

    def connection_lost(self, connection: Connection) -> None:
        """A socket is gone."""
        if self.connections.pop(connection.number, None) is not None and connection.session.serves_clients:
            received, sent = self._messages_of_ended
            self._messages_of_ended = received + connection.engine.messages_in, sent + connection.engine.messages_out
        self._authentication.left(connection.number)
        self._is_none(connection)
        counters = (self._by_user, self._by_host, self._by_container)
        for counter, key in zip(counters, self._counted.pop(connection.number, ()), strict=False):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
        self._turn.forget(connection)
        self._held_opens.pop(connection, None)
        self._turn.flush()

    def ended_with(self, connection: Connection, reason: str) -> None:
        """Its peer broke the protocol, or closed it with an error."""
        self._refusals.told(connection.address, reason)

    def not_opened(self, connection: Connection, limit_s: float) -> None:
        """It has sent no Open within this time, and is dropped."""
        self._refusals.line(f"{connection.address} is not open after {limit_s:g} s: dropped")

    def login_waits(self, connection: Connection, waits: sasl.Wait) -> None:
        """Its login is paused."""
        number = connection.number
        attended = self._authentication.attend(waits, lambda: number in self.connections, connection.socket.host, number)
        if attended is None:
            connection.refuse_login(f"{limits.LOGINS_WAITING} logins wait already")
        else:
            attended.addCallbacks(connection.resume_login, lambda failure: connection.refuse_login(failure.getErrorMessage()))

    def login_failed(self, connection: Connection, denied: sasl.Deny) -> None:
        """A mechanism has turned it away."""
        self._authentication.failed(connection.socket, denied.user)

    def admit(self, connection: Connection) -> None:
        """Answer an Open, keep it waiting, or refuse the peer with a Condition."""
        if connection.principal.owes_token:
            self._admit_stranger(connection)
            return
        self._is_none(connection)
        if connection.principal.authenticated:
            self._authentication.succeeded(connection.number)
        denial = self._denial(connection)
        if denial:
            raise Condition(UNAUTHORIZED, denial)
        for name, role in self.roles.items():
            value = self._role_value(connection, name)
            if value:
                connection.session = role.accept(connection, value)
                connection.engine.gathering.count_apart()
                connection.complete_open()
                return
        self._make_one_of_many(connection)
        self._answer_open(connection)

    def _admit_stranger(self, connection: Connection) -> None:
        """The Open of a client that must send a token to `$cbs` afterwards: it stays a stranger until then."""
        if connection.admin or any(self._role_value(connection, name) for name in self.roles):
            raise Condition(UNAUTHORIZED, f"who shows a token to {CBS_NODE} is a client, and nothing else")
        self._answer_open(connection)

    def _make_one_of_many(self, connection: Connection) -> None:
        if len(self.connections) > self._max_connections and not connection.admin:
            text = f"this broker serves {self._max_connections} connections at once (--max-connections): close some first"
            raise Condition("amqp:resource-limit-exceeded", text)
        if connection.is_sole and self._by_container[connection.container]:
            text = f"container id {shown(connection.container)} is in use, and this connection is to be its only one"
            raise Condition("amqp:invalid-field", text, {"invalid-field": Symbol("container-id")})
        self._count(connection)

    def _answer_open(self, connection: Connection) -> None:
        connection.properties = {}  # it has no role, so they are not needed any more
        if connection.admin or (self._logs.serving and not self._holding and not self._logs.closed):
            connection.complete_open()
        elif self._logs.serving and self._logs.closed:
            connection.drop()  # a client that gets no Open tries its next address
        elif self._holding or self._logs.state == "recovering":
            connection.waiting = True
            self._held_opens[connection] = None
        else:
            connection.drop()

    # ---- tokens behind an Open

    def take_token(self, number: int, token: str, answer: Answer) -> None:
        """See `claims.TakeToken`."""
        connection = self.connections.get(number)
        desk = None if connection is None else self._authentication.desk(connection.socket)
        if connection is None or desk is None or connection.principal.mechanism != CBS:
            answer(403, "this connection has already logged in with another mechanism: it cannot send a token")
            return
        if number in self._shown:
            answer(429, "another token of this connection is being checked")
            return
        who = connection.principal.user if connection.principal.authenticated else ""
        step = desk.look(CBS, who, token)
        if not isinstance(step, sasl.Wait):
            self._token_shown(connection, step, answer)
            return
        then = step.then
        attended = self._authentication.attend(step, lambda: number in self.connections, connection.socket.host, number)
        if attended is None:
            answer(503, f"{limits.LOGINS_WAITING} logins are waiting: try again")
            return
        self._shown.add(number)

        def looked_at(result: bytes) -> None:
            self._shown.discard(number)
            shown = self.connections.get(number)
            if shown is not None:
                self._token_shown(shown, then(result), answer)
                self._turn.flush()

        attended.addCallbacks(looked_at, lambda failure: self._shown.discard(number))

    def _token_shown(self, connection: Connection, step: sasl.Step, answer: Answer) -> None:
        """A token has come to this."""
        if not isinstance(step, sasl.Grant):
            assert isinstance(step, sasl.Deny), "a token is looked at in one step"
            self.login_failed(connection, step)
            self._refusals.line(f"a token of {connection.address} was refused: {step.reason}")
            answer(401, "the token was refused; the broker's log has the reason")
            return
        first, connection.principal = connection.principal.owes_token, principal_of(step)
        try:
            if first:
                self._is_none(connection)
                self._authentication.succeeded(connection.number)
                denial = self._denial(connection)
                if denial:
                    raise Condition(UNAUTHORIZED, denial)
                self._make_one_of_many(connection)
        except Condition as condition:
            self.ended_with(connection, str(condition))
            connection.turn_out(condition)
            return
        answer(200, "OK")

    @staticmethod
    def _role_value(connection: Connection, name: str) -> str:
        return str(connection.properties.get(name) or "")

    def _denial(self, connection: Connection) -> str:
        """Why its login, or the rules, do not let this connection be; "" if they do."""
        ended = self._authentication.ended(connection.principal)
        if ended:
            return ended
        rights = Rights(self._guard_of(connection.socket), connection)
        needs: Lookups = (questions.ADMINISTER,) if connection.admin else ()
        if any(self._role_value(connection, name) for name in self.roles):
            needs = (questions.REPLICATE,)
        return rights.denial_of_connection() or rights.denial(needs)

    def _count(self, connection: Connection) -> None:
        """One more of its user's and its host's; Condition when that is one too many."""
        user, host = Rights(self._guard, connection).user, connection.socket.host
        if connection.socket.own:
            return
        if 0 < self._max_per_host <= self._by_host[host]:
            text = f"{host} has {self._by_host[host]} connections, and may have no more (--connection-limit-per-ip)"
            raise Condition("amqp:resource-limit-exceeded", text)
        most = self._guard.connections_of(user)
        if most is not None and self._by_user[user] >= most:
            where = "--connection-limit-per-user" if self._guard.acl is None else "`quota connections` of the ACL"
            text = f"{shown(user)} has {self._by_user[user]} connections, and may have {most} ({where})"
            raise Condition("amqp:resource-limit-exceeded", text)
        self._counted[connection.number] = user, host, connection.container
        self._by_container[connection.container] += 1
        self._by_user[user] += 1
        self._by_host[host] += 1

    def messages(self) -> tuple[int, int]:
        """How many messages clients have sent since this broker began, and how many they were given; links of members do not
        count."""
        received, sent = self._messages_of_ended
        for connection in self.connections.values():
            if connection.session.serves_clients:
                received += connection.engine.messages_in
                sent += connection.engine.messages_out
        return received, sent

    def look_again(self) -> None:
        """Other rules are in force, or other users are known: end the connections and links that they do not allow, in this turn
        or, where there are many, in the next ones."""
        self._unlooked = dict.fromkeys(self.connections)
        if self._look_call is None:
            self._look_on()

    def _look_on(self) -> None:
        self._look_call = None
        began_s = self._clock.seconds()
        while self._unlooked and self._look_call is None:
            connection = self.connections.get(self._unlooked.popitem()[0])
            if connection is not None:
                self._look_at(connection)
            if self._unlooked and self._clock.seconds() - began_s >= limits.MANAGEMENT_TURN_S:
                self._look_call = self._clock.callLater(0, self._look_on)
        self._turn.flush()

    def _look_at(self, connection: Connection) -> None:
        if not (connection.opened or connection.waiting):
            return
        denial = self._denial(connection)
        if denial:
            connection.turn_out(Condition(UNAUTHORIZED, denial))
        elif connection.session.serves_clients:
            connection.session.look_again()

    def open_properties(self, max_frame: int) -> dict[str, Any]:
        """The properties of this broker's Open: one frame, which the peer takes up to `max_frame` bytes (0: any size)."""
        product, version = RABBITMQ if self._as_rabbitmq else ("understudy", self._version)
        properties: dict[str, Any] = {"product": product, "version": version, "platform": "Python"}
        urls = self.failover_urls()
        if urls and (not max_frame or limits.PLAIN_OPEN_BYTES + len(str(urls)) <= max_frame):
            properties["failover-server-list"] = urls
        return properties

    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that this broker's Open offers. Qpid JMS looks for DELAYED_DELIVERY before it sends a message with a
        delay, and for SHARED-SUBS before it shares a subscription."""
        delayed = ("DELAYED_DELIVERY",) if self._logs.takes_times else ()
        return "ANONYMOUS-RELAY", "SHARED-SUBS", SOLE, *delayed

    # ---- what the broker's state means

    def admit_held(self) -> None:
        """This broker serves now: answer the Opens that wait, in this turn or, where there are many, in the next ones."""
        if self._admit_call is None:
            self._admit_some()

    def _admit_some(self) -> None:
        self._admit_call = None
        began_s = self._clock.seconds()
        while self._held_opens and not self._holding:
            connection = next(iter(self._held_opens))
            del self._held_opens[connection]
            if self._logs.closed:
                connection.drop()
                continue
            connection.complete_open()
            connection.engine.drain()
            self._turn.touch(connection)
            if self._held_opens and self._clock.seconds() - began_s >= limits.ADMIT_TURN_S:
                self._admit_call = self._clock.callLater(0, self._admit_some)
                break
        self._turn.flush()

    def drop_held(self) -> None:
        """This broker is not about to serve any more."""
        self._holding = False
        if self._admit_call is not None:
            self._admit_call.cancel()
            self._admit_call = None
        held, self._held_opens = self._held_opens, {}
        for connection in held:
            connection.drop()

    def hold(self) -> None:
        """Another broker is about to take over: keep the Opens that come waiting."""
        self._holding = True

    def heed_no_clients(self) -> None:
        """Drop the clients' input from now on: the next primary gets it again."""
        for connection in self._clients():
            connection.heeded = False

    def serve_again(self) -> None:
        """The handover is cancelled. Disconnect clients whose input was dropped, so that they do not wait for its effect."""
        self._holding = False
        for connection in self._clients():
            if not connection.heeded:
                connection.cut_off()
        self.admit_held()

    def clients(self) -> list[Connection]:
        """The connections of clients, first those that have been silent for the longest time."""
        return sorted(self._clients(), key=lambda connection: connection.heard)

    def end_producers(self) -> None:
        """This broker leaves: end the links of clients that send to its queues."""
        for connection in self._clients():
            if isinstance(connection.session, ClientSession):
                connection.session.end_producers()

    def administrators(self) -> list[Connection]:
        """Those of administrators."""
        return [each for each in self.connections.values() if each.opened and each.admin]

    def _clients(self) -> list[Connection]:
        everybody = self.connections.values()
        return [each for each in everybody if each.opened and not each.admin and each.session.serves_clients]

    def stop_serving(self) -> None:
        """Cut the clients off; leave administrators nothing but management."""
        where = f"; the primary is {self._logs.primary}" if self._logs.primary else ""
        if self._admit_call is not None:
            self.drop_held()
        for connection in list(self.connections.values()):
            if connection.admin:
                connection.session.end_service(Condition("amqp:not-allowed", f"this broker is a backup now{where}"))
        for connection in self._clients():
            connection.cut_off()

    def _tick(self) -> None:
        """Once a second: the heartbeats and time limits of all connections, in this turn or, where there are many, in the next
        ones."""
        if self._tick_call is None:
            self._unticked = list(reversed(self.connections))
            self._tick_on()

    def _tick_on(self) -> None:
        self._tick_call = None
        now_s = self._clock.seconds()
        while self._unticked:
            connection = self.connections.get(self._unticked.pop())
            if connection is not None:
                self._tick_one(connection, now_s)
            if self._unticked and self._clock.seconds() - now_s >= limits.TICK_TURN_S:
                self._tick_call = self._clock.callLater(0, self._tick_on)
                break
        self._turn.flush()

    def _tick_one(self, connection: Connection, now_s: float) -> None:
        connection.tick(now_s)
        if connection.principal.until_s is not None and (ended := self._authentication.ended(connection.principal)):
            connection.turn_out(Condition(UNAUTHORIZED, ended))

    def close(self) -> None:
        """Cut everybody off."""
        if self._ticker.running:
            self._ticker.stop()
        if self._tick_call is not None:
            self._tick_call.cancel()
        if self._look_call is not None:
            self._look_call.cancel()
        if self._relief_call is not None:
            self._relief_call.cancel()
        if self._admit_call is not None:
            self._admit_call.cancel()
        self.share.close()
        for connection in list(self.connections.values()):
            connection.cut_off()
