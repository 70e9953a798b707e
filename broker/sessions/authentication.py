"""How clients log in to this broker: the offered mechanisms, the work for a login, and the delays after failed logins.

Life of a login: a socket is accepted, and its connection gets an offer of mechanisms that are made only for it. A mechanism that
must verify a password requests this work. The work is done in a thread (`attend`), after the delay that earlier failures cause,
and when it is its turn. Then the login has `succeeded` or `failed`, or its connection has `left`. If other logins from the same
host have failed, the login also needs a try of that host (`broker.core.turnstile`), and waits in the host's line for it. The
hosts take turns at the threads. So however many logins come from one host, a login from another host waits for only one of them.

If no login is required, every client is admitted (qpidd's `--auth no`): as `anonymous`, or by PLAIN with any name, and the
password is not verified. If there are users anyway, SCRAM is offered too, so that the brokers of a cluster can be changed to
logins one by one.

Invariants: at most `limits.LOGINS_AT_ONCE` passwords are verified at the same time, never in the reactor's thread; at most
`limits.LOGINS_WAITING` logins wait, and one more is refused; PLAIN without encryption is offered only if an option allows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.core import limits, sasl
from broker.core.backoff import Backoff
from broker.core.bearer import OAUTHBEARER, XOAUTH2, Desk, Later, Oauth
from broker.core.identity import Socket
from broker.core.mechanisms import LOOKED_AT, REALM, External, Plain, Register, Scram, TakenAtItsWord
from broker.core.tokens import Tokens
from broker.core.turnstile import Turnstile
from broker.core.users import HASHES, Users
from broker.sessions.principal import Principal

BY_USERS = frozenset((*HASHES, sasl.PLAIN))
"""The mechanisms that use the users' file."""
InThread = Callable[[Callable[[], bytes]], Deferred[bytes]]
"""Does the work in a thread; fires with its result in the reactor's."""


@dataclass(slots=True)
class _Job:
    """A waiting login of the connection with this number; `delayed` is the timer of its delay."""

    waits: sasl.Wait
    wanted: Callable[[], bool]
    host: str
    number: int
    attended: Deferred[bytes]
    delayed: IDelayedCall | None = None


@dataclass(slots=True)
class _Line:
    """The logins of a host that wait for a try, and the call for the next one."""

    jobs: deque[_Job] = field(default_factory=deque)
    call: IDelayedCall | None = None

    def wait(self, clock: IReactorTime, wait_s: float, go_on: Callable[[], None]) -> None:
        """Call it then, and not before."""
        self.end()
        self.call = clock.callLater(wait_s, go_on)

    def end(self) -> None:
        """Cancel the call."""
        if self.call is not None and self.call.active():
            self.call.cancel()
        self.call = None


class Authentication:
    """See the module. `clock` is the reactor's time.

    `demanded`: whether a login is required. `mechanisms`: those that may be offered, the best first. `plain_in_clear`: offer
    PLAIN without TLS too. `name_in_certificate`: the field with EXTERNAL's user (`NAMES_IN_CERTIFICATES`). `new_nonce` returns
    texts that cannot be guessed and are never repeated. `tokens` verifies tokens, if they are accepted. `token_put`: whether a
    client may send a token after an ANONYMOUS login.
    """

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: InThread,
        new_nonce: Callable[[], str],
        *,
        demanded: bool = False,
        users: Users | None = None,
        mechanisms: Sequence[str] = LOOKED_AT,
        realm: str = REALM,
        plain_in_clear: bool = False,
        name_in_certificate: str = "cn",
        tokens: Tokens | None = None,
        token_put: bool = False,
        checks_user_ids: bool = True,
    ) -> None:
        self.demanded = demanded
        self.realm = realm
        self.users = users
        """May be replaced. Logins in progress continue with the old one."""
        self.tokens = tokens
        self.checks_user_ids = checks_user_ids
        """Whether a message may only name the user that has logged in as its user."""
        self._token_put = token_put
        self.waiting = 0
        """Logins that wait for their turn or their time."""
        self._clock = clock
        self._in_thread = in_thread
        self._new_nonce = new_nonce
        self._mechanisms = tuple(mechanisms)
        self._plain_in_clear = plain_in_clear
        self._name_in_certificate = name_in_certificate
        self._backoff = Backoff()
        self._turnstile = Turnstile()
        self._lines: dict[str, _Line] = {}
        """Host -> its logins that wait for a try."""
        self._jobs: dict[int, _Job] = {}
        """Number of each connection whose login waits -> its job."""
        self._tries: dict[int, str] = {}
        """Number of each connection whose login has a try -> its host."""
        self._queued: dict[str, deque[_Job]] = {}
        """Host -> its jobs that wait for a thread. The host with the next turn is first."""
        self._working = 0

    def offer(self, socket: Socket) -> sasl.Offer:
        """The mechanisms that are offered over this socket."""
        found: dict[str, Callable[[], sasl.Mechanism]] = {}
        register = None
        if self.users is not None:
            register = Register(self.users, self.realm, partial(self._delay_s, socket.host))
        for name in self._mechanisms:
            maker = self._maker(name, socket, register, self.desk(socket))
            if maker is not None:
                found[name] = maker
        if self._token_put and sasl.ANONYMOUS not in found and self.desk(socket) is not None:
            found[sasl.ANONYMOUS] = Later
        if socket.own:
            return {sasl.ANONYMOUS: sasl.Anonymous}
        if not self.demanded:
            found |= {sasl.ANONYMOUS: sasl.Anonymous, sasl.PLAIN: partial(TakenAtItsWord, self.realm)}
        return found

    def frame_bytes(self, socket: Socket) -> int:
        """The largest frame of the SASL layer over this socket: a token needs more than AMQP's minimum."""
        return limits.SASL_FRAME_BYTES if self.desk(socket) is None else limits.TOKEN_FRAME_BYTES

    def desk(self, socket: Socket) -> Desk | None:
        """Verifies tokens over this socket; None if tokens are not accepted: without encryption others could read them."""
        if self.tokens is None or not (socket.encrypted or self._plain_in_clear):
            return None
        return Desk(self.tokens, self.realm, partial(self._delay_s, socket.host, ""))

    def _maker(
        self, name: str, socket: Socket, register: Register | None, desk: Desk | None
    ) -> Callable[[], sasl.Mechanism] | None:
        """The function that makes a mechanism for this socket; None if it is not possible."""
        if name == sasl.ANONYMOUS:
            return sasl.Anonymous
        if name == sasl.EXTERNAL:
            certificate = socket.certificate
            where = self._name_in_certificate
            return None if certificate is None else partial(External, certificate, where, self.realm)
        if name in (OAUTHBEARER, XOAUTH2):
            return None if desk is None else partial(Oauth, name, desk)
        if name == sasl.PLAIN and (socket.encrypted or self._plain_in_clear) and (register is not None or desk is not None):
            return partial(Plain, register, desk)
        if register is None or name == sasl.PLAIN:
            return None
        return lambda: Scram(name, register, self._new_nonce())

    def ended(self, principal: Principal) -> str:
        """Why an existing login is no longer valid, as a text for the client; "" if it is valid."""
        if principal.until_s is not None and self.tokens is not None:
            return "" if self.tokens.wall() < principal.until_s else f"the token of {principal.user} has expired: get a new one"
        if principal.mechanism not in BY_USERS or not principal.authenticated or self.users is None:
            return ""
        there = principal.user.removesuffix(f"@{self.realm}") in self.users
        return "" if there else f"{principal.user} is not a user of this broker any more"

    def _delay_s(self, host: str, user: str) -> float:
        return self._backoff.delay_s(host, user, self._clock.seconds())

    def failed(self, socket: Socket, user: str) -> None:
        """A login over this socket as `user` ("": it did not come so far) has failed."""
        self._backoff.failed(socket.host, user, self._clock.seconds())

    def succeeded(self, number: int) -> None:
        """The login of that connection has come to something."""
        host = self._tries.pop(number, None)
        if host is not None:
            self._turnstile.give_back(host, self._clock.seconds())
            self._let_in(host)

    def left(self, number: int) -> None:
        """This connection has ended: drop its login and its delay. A job in a host's line stays there."""
        self._tries.pop(number, None)
        job = self._jobs.pop(number, None)
        if job is not None:
            job.attended.cancel()
            if job.delayed is not None:
                job.delayed.cancel()
                self.waiting -= 1

    def attend(self, waits: sasl.Wait, wanted: Callable[[], bool], host: str, number: int) -> Deferred[bytes] | None:
        """Do the work of a login from `host`. The Deferred fires with the result for `resume`. None: too many logins wait. Work
        that is no longer `wanted` at its turn is not done.
        """
        if self.waiting >= limits.LOGINS_WAITING:
            return None
        self.waiting += 1
        job = self._jobs[number] = _Job(waits, wanted, host, number, Deferred())
        if waits.delay_s:
            job.delayed = self._clock.callLater(waits.delay_s, self._line_up, job)
        else:
            self._queue(job)
        return job.attended

    def _line_up(self, job: _Job) -> None:
        job.delayed = None
        line = self._lines.setdefault(job.host, _Line())
        line.jobs.append(job)
        if line.call is None:
            self._let_in(job.host)

    def _let_in(self, host: str) -> None:
        """Let jobs of a host's line continue, as many as the host has tries. A job that is no longer wanted needs no try."""
        line = self._lines.get(host)
        while line is not None and line.jobs:
            if line.jobs[0].wanted():
                wait_s = self._turnstile.enter(host, self._clock.seconds())
                if wait_s:
                    line.wait(self._clock, wait_s, partial(self._let_in, host))
                    return
                self._tries[line.jobs[0].number] = host
            self._queue(line.jobs.popleft())
        if line is not None:
            line.end()
            self._lines.pop(host, None)

    def _queue(self, job: _Job) -> None:
        if job.waits.work is None:
            self._attended(b"", job)
            return
        self._queued.setdefault(job.host, deque()).append(job)
        self._work()

    def _work(self) -> None:
        while self._queued and self._working < limits.LOGINS_AT_ONCE:
            host = next(iter(self._queued))
            jobs = self._queued.pop(host)
            job = jobs.popleft()
            if jobs:
                self._queued[host] = jobs
            if not job.wanted() or job.waits.work is None:
                self._attended(b"", job)
                continue
            self._working += 1
            self._in_thread(job.waits.work).addBoth(self._worked, job)

    def _worked(self, result: bytes | Failure, job: _Job) -> None:
        self._working -= 1
        self._attended(result, job)
        self._work()

    def _attended(self, result: bytes | Failure, job: _Job) -> None:
        self.waiting -= 1
        self._jobs.pop(job.number, None)
        job.attended.callback(result)
