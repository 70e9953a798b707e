"""Logins at a broker: who gets in and as whom, what a login waits for, and how many may wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from broker.core import limits, sasl, users, values
from broker.core.door import HEADER
from broker.core.identity import Certificate, Socket
from broker.core.tokens import Rules, Tokens, parse_keys
from broker.core.users import SHA_256, Users
from broker.sessions.authentication import Authentication, InThread
from broker.sessions.connection import Connection
from broker.sessions.principal import ANONYMOUS, Principal
from tests.broker.clients import Bench, Client, bench
from tests.broker.core.stream import OPEN, init
from tests.broker.test_acl import rules
from tests.tokens import AUDIENCE, ISSUER, NOW_S, key_set, token

ENCRYPTED = Socket("10.0.0.1:1", encrypted=True)
KEYS = users.derive(SHA_256, "secret", b"salt" * 4)
USERS = Users({"ann": {SHA_256: KEYS}}, b"nobody knows")


def demanding(in_thread: InThread = maybeDeferred, **options: Any) -> Callable[[Clock], Authentication]:
    return lambda clock: Authentication(clock, in_thread, lambda: "nonce", demanded=True, users=USERS, **options)


def ann(b: Bench, password: str = "secret", socket: Socket = ENCRYPTED) -> Client:
    return b.client(mechanism="PLAIN", user="ann", password=password, socket=socket)


def is_open(client: Client) -> bool:
    return bool(client.connection.state & client.connection.REMOTE_ACTIVE)


def test_a_user_gets_in_as_itself_and_acts_for_itself() -> None:
    with bench(authentication=demanding()) as b:
        client = ann(b)
        assert is_open(client)
        assert client.server.principal == Principal("ann@QPID", "PLAIN", authenticated=True)
        items = client.request("QUERY", "connection")[2]["items"]
        assert [(item["user"], item["mechanism"]) for item in items] == [("ann@QPID", "PLAIN")]


def test_who_an_open_is_from_is_known_when_it_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(authentication=demanding()) as b:
        admitted: list[Principal] = []
        admit = b.broker.admission.admit

        def watched(connection: Connection) -> None:
            admitted.append(connection.principal)
            admit(connection)

        monkeypatch.setattr(b.broker.admission, "admit", watched)
        ann(b)
        assert [principal.user for principal in admitted] == ["ann@QPID"]


@pytest.mark.parametrize("password", ["wrong", ""])
def test_who_does_not_know_the_password_is_turned_away(password: str) -> None:
    with bench(authentication=demanding()) as b:
        client = ann(b, password)
        assert (client.lost, is_open(client)) == (True, False)
        assert client.server.principal == ANONYMOUS


def test_nobody_gets_in_without_a_login_where_one_is_demanded() -> None:
    with bench(authentication=demanding()) as b:
        assert not is_open(b.client())
        assert not is_open(b.client(sasl=False))
        assert not is_open(b.client({"qpid.ha-admin": True}))
    with bench(authentication=demanding(mechanisms=("ANONYMOUS", "PLAIN"))) as b:
        assert is_open(b.client())
        assert is_open(b.client(sasl=False)), "which is the same"


def test_a_password_goes_over_an_encrypted_socket_unless_told_otherwise() -> None:
    clear = Socket("127.0.0.1:1")
    with bench(authentication=demanding()) as b:
        assert not is_open(ann(b, socket=clear))
    with bench(authentication=demanding(plain_in_clear=True)) as b:
        assert is_open(ann(b, socket=clear))


def test_where_no_login_is_demanded_any_name_and_password_will_do() -> None:
    with bench() as b:
        client = b.client(mechanism="PLAIN", user="whoever", password="whatever")
        assert client.server.principal == Principal("whoever@QPID", "PLAIN", authenticated=False)
        assert b.client().server.principal == ANONYMOUS


def test_mechanisms_are_offered_in_the_order_in_which_they_were_named() -> None:
    authentication = demanding()(Clock())
    assert list(authentication.offer(ENCRYPTED)) == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    assert list(authentication.offer(Socket("h:1"))) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]


def test_a_certificate_that_was_verified_is_a_login() -> None:
    socket = Socket("h:1", encrypted=True, certificate=Certificate("CN=ann", "ann"))
    for authentication in (demanding()(Clock()), Authentication(Clock(), maybeDeferred, lambda: "nonce")):
        assert next(iter(authentication.offer(socket))) == "EXTERNAL"
        assert authentication.offer(socket)["EXTERNAL"]().step(b"") == sasl.Grant("ann@QPID", "EXTERNAL", authenticated=True)
        assert "EXTERNAL" not in authentication.offer(ENCRYPTED), "there is none"


def test_users_are_looked_at_by_scram_where_everybody_else_is_let_in() -> None:
    """So that a cluster can change over: its brokers log in to each other before they demand it."""
    authentication = Authentication(Clock(), maybeDeferred, lambda: "nonce", users=USERS)
    offer = authentication.offer(ENCRYPTED)
    assert list(offer) == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]
    assert offer["PLAIN"]().step(b"\0ann\0wrong") == sasl.Grant("ann@QPID", "PLAIN"), "nobody has to show anything"


class Threads:
    """Work that is done when a test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], bytes], Deferred[bytes]]] = []

    def run(self, work: Callable[[], bytes]) -> Deferred[bytes]:
        self.jobs.append((work, Deferred()))
        return self.jobs[-1][1]

    def finish(self) -> None:
        work, done = self.jobs.pop(0)
        done.callback(work())


def test_few_passwords_are_looked_at_at_once_and_none_in_the_reactor_s_thread() -> None:
    threads = Threads()
    with bench(authentication=demanding(threads.run)) as b:
        clients = [ann(b) for _ in range(limits.LOGINS_AT_ONCE + 2)]
        assert len(threads.jobs) == limits.LOGINS_AT_ONCE
        assert not any(map(is_open, clients))
        while threads.jobs:
            threads.finish()
            b.settle()
            assert len(threads.jobs) <= limits.LOGINS_AT_ONCE
        assert all(map(is_open, clients))


def test_more_logins_than_may_wait_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGINS_WAITING", 1)
    threads = Threads()
    with bench(authentication=demanding(threads.run)) as b:
        first, second = ann(b), ann(b)
        assert (first.lost, second.lost) == (False, True)
        assert second.transport.sasl().outcome == second.transport.sasl().TEMP
        threads.finish()
        b.settle()
        assert is_open(first)
        assert b.broker.admission.connections.keys() == {first.server.number}


def test_a_client_that_leaves_while_it_is_looked_at_leaves_nothing_behind() -> None:
    threads = Threads()
    with bench(authentication=demanding(threads.run)) as b:
        client = ann(b)
        client.lose()
        threads.finish()
        b.settle()
        assert b.broker.admission.connections == {}
        assert is_open_after(b, threads), "its turn is given back"


def test_a_password_that_nobody_waits_for_any_more_is_not_looked_at() -> None:
    """Breaks when clients that come and go by the thousand keep the threads busy for those who stay."""
    threads = Threads()
    authentication = demanding(threads.run)(Clock())
    waits = sasl.Wait(lambda result: sasl.Deny("never"), lambda: b"key")
    for _ in range(limits.LOGINS_AT_ONCE):
        authentication.attend(waits, lambda: True, "a", 1)
    for _ in range(limits.LOGINS_WAITING - limits.LOGINS_AT_ONCE - 1):
        assert authentication.attend(waits, lambda: False, "a", 1) is not None
    done: list[bytes] = []
    stays = authentication.attend(waits, lambda: True, "a", 1)
    assert stays is not None
    stays.addCallback(done.append)
    assert (len(threads.jobs), done, authentication.waiting) == (limits.LOGINS_AT_ONCE, [], limits.LOGINS_WAITING)
    threads.finish()
    assert len(threads.jobs) == limits.LOGINS_AT_ONCE, "the one that stays is looked at next"
    while threads.jobs:
        threads.finish()
    assert (done, authentication.waiting) == ([b"key"], 0)


def test_a_thread_that_fails_turns_its_client_away_and_is_free_again() -> None:
    failing: list[Deferred[bytes]] = []

    def fail(work: Callable[[], bytes]) -> Deferred[bytes]:
        failing.append(Deferred())
        return failing[-1]

    with bench(authentication=demanding(fail)) as b:
        clients = [ann(b) for _ in range(limits.LOGINS_AT_ONCE + 1)]
        assert len(failing) == limits.LOGINS_AT_ONCE
        failing[0].errback(MemoryError("no memory"))
        b.settle()
        assert [client.lost for client in clients] == [True, False, False]
        assert len(failing) == limits.LOGINS_AT_ONCE + 1


def is_open_after(b: Bench, threads: Threads) -> bool:
    client = ann(b)
    threads.finish()
    b.settle()
    return is_open(client)


def test_failures_put_the_next_login_off_and_a_right_password_gets_in_all_the_same() -> None:
    with bench(authentication=demanding()) as b:
        for _ in range(4):
            wrong = ann(b, "wrong")
            b.clock.advance(limits.LOGIN_DELAY_S)
            b.settle()
            assert wrong.lost
        client = ann(b)
        assert not is_open(client)
        b.clock.advance(limits.LOGIN_DELAY_S)
        b.settle()
        assert is_open(client)


def test_a_host_that_guesses_has_few_passwords_looked_at_and_others_do_not_wait_for_it() -> None:
    """However many connections it has at a time: they would each wait two seconds, side by side."""
    looked_at: Counter[str] = Counter()
    clock = Clock()
    authentication = demanding()(clock)
    waiting = {"guesser": 0, "other": 0}

    def begin(host: str, delay_s: float) -> None:
        def work() -> bytes:
            looked_at[host] += 1
            return b"key"

        waits = sasl.Wait(lambda result: sasl.Deny("wrong"), work, delay_s)
        attended = authentication.attend(waits, lambda: True, host, looked_at.total())
        assert attended is not None
        waiting[host] += 1
        attended.addCallback(lambda _: waiting.__setitem__(host, waiting[host] - 1))

    for _ in range(600):
        for _ in range(1000 - waiting["guesser"]):
            begin("guesser", limits.LOGIN_DELAY_S)
        begin("other", limits.LOGIN_DELAY_S)
        clock.advance(0.1)
    assert looked_at["guesser"] <= limits.LOGIN_TRIES_AT_ONCE + 60 * limits.LOGIN_TRIES_A_S
    assert looked_at["guesser"] > 50 * limits.LOGIN_TRIES_A_S
    assert waiting["other"] <= 0.1 + limits.LOGIN_DELAY_S / 0.1, "but for the time that its own failures cost"


def test_a_host_whose_logins_succeed_is_not_held_up_by_one_that_fails() -> None:
    with bench(authentication=demanding()) as b:
        for _ in range(4):
            ann(b, "wrong")
            b.clock.advance(limits.LOGIN_DELAY_S)
            b.settle()
        many = [ann(b) for _ in range(3 * limits.LOGIN_TRIES_AT_ONCE)]
        b.clock.advance(limits.LOGIN_DELAY_S)
        b.settle()
        assert all(map(is_open, many))


def test_the_hosts_take_turns_at_the_threads() -> None:
    """Breaks when a thousand logins from one host, which have not failed yet, have all others wait for them."""
    threads = Threads()
    with bench(authentication=demanding(threads.run)) as b:
        crowd = [ann(b) for _ in range(50)]
        other = ann(b, socket=Socket("10.0.0.2:1", encrypted=True))
        for _ in range(limits.LOGINS_AT_ONCE + 2):
            threads.finish()
            b.settle()
        assert is_open(other)
        while threads.jobs:
            threads.finish()
            b.settle()
        assert all(map(is_open, crowd))


def test_failures_are_counted_for_a_login_that_named_nobody_too() -> None:
    with bench(authentication=demanding()) as b:
        for _ in range(4):
            connection = b.broker.new_connection(ENCRYPTED)
            assert connection is not None
            connection.engine.push(sasl.HEADER + init("PLAIN", values.encode(b"nonsense")))
            connection._follow_login()
            connection.engine.free()
        client = ann(b)
        assert not is_open(client)
        b.clock.advance(limits.LOGIN_DELAY_S)
        b.settle()
        assert is_open(client)


def taking_tokens(**options: Any) -> Callable[[Clock], Authentication]:
    """Where the clock begins at `NOW_S`."""

    def make(clock: Clock) -> Authentication:
        tokens = Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S + clock.seconds())
        tokens.keys = parse_keys(key_set("RS256"))
        options.setdefault("users", USERS)
        return Authentication(clock, maybeDeferred, lambda: "nonce", demanded=True, tokens=tokens, **options)

    return make


def by_token(b: Bench, exp_s: float = 600, name: str = "ann", **claims: Any) -> Client:
    """Proton's client, which sends a frame of more than AMQP's 512 bytes."""
    said = token("RS256", exp=NOW_S + b.clock.seconds() + exp_s, **claims)
    return b.client(mechanism="PLAIN", user=name, password=said, socket=ENCRYPTED)


def test_a_client_is_let_in_by_its_token_and_turned_out_when_that_has_expired() -> None:
    """Before its Open it is not served either. Who has logged in by a password stays."""
    with bench(authentication=taking_tokens()) as b:
        short, long, other = by_token(b, 10 - limits.TOKEN_LEEWAY_S), by_token(b, sub="bob", name="bob"), ann(b)
        assert short.server.principal == Principal("ann@QPID", "PLAIN", True, NOW_S + 10)
        assert (is_open(short), is_open(long), is_open(other)) == (True, True, True)
        b.clock.advance(9)
        b.settle()
        assert not short.connection.remote_condition
        b.clock.advance(2)
        b.settle()
        condition = short.connection.remote_condition
        assert (condition.name, condition.description) == (
            "amqp:unauthorized-access",
            "the token of ann@QPID has expired: get a new one",
        )
        assert not long.connection.remote_condition
        assert not other.connection.remote_condition


def test_a_token_is_taken_where_nobody_can_read_it_and_long_frames_there_alone() -> None:
    authentication = taking_tokens()(Clock())
    clear, long = Socket("h:1"), limits.TOKEN_FRAME_BYTES
    assert list(authentication.offer(clear)) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert list(authentication.offer(ENCRYPTED)) == ["SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER", "XOAUTH2", "PLAIN"]
    assert list(taking_tokens(users=None)(Clock()).offer(ENCRYPTED)) == ["OAUTHBEARER", "XOAUTH2", "PLAIN"]
    assert (authentication.frame_bytes(clear), authentication.frame_bytes(ENCRYPTED)) == (limits.SASL_FRAME_BYTES, long)
    told = taking_tokens(plain_in_clear=True)(Clock())
    assert ("XOAUTH2" in told.offer(clear), told.frame_bytes(clear)) == (True, long)
    without = demanding()(Clock())
    assert ("XOAUTH2" in without.offer(ENCRYPTED), without.frame_bytes(ENCRYPTED)) == (False, limits.SASL_FRAME_BYTES)
    with bench(authentication=demanding()) as b:
        assert by_token(b).lost, "no frame of this length comes in where no token is taken"
    with bench(authentication=taking_tokens()) as b:
        assert by_token(b, more="x" * limits.TOKEN_FRAME_BYTES).lost


def test_who_is_gone_from_the_users_file_is_turned_out_and_nobody_else() -> None:
    keys = {SHA_256: KEYS}
    with bench(authentication=taking_tokens(users=Users({"ann": keys, "bob": keys}, b"nobody knows"))) as b:
        gone, stays, token_s = ann(b), b.client(mechanism="PLAIN", user="bob", password="secret", socket=ENCRYPTED), by_token(b)
        certified = b.client(mechanism="EXTERNAL", socket=Socket("h:1", encrypted=True, certificate=Certificate("CN=ann", "ann")))
        assert all(map(is_open, (gone, stays, token_s, certified)))
        b.broker.authentication.users = Users({"bob": keys}, b"nobody knows")
        b.broker.admission.look_again()
        b.settle()
        condition = gone.connection.remote_condition
        assert condition.description == "ann@QPID is not a user of this broker any more"
        assert not any(client.connection.remote_condition for client in (stays, token_s, certified))
    with bench(authentication=lambda clock: Authentication(clock, maybeDeferred, lambda: "nonce", users=USERS)) as b:
        client = b.client(mechanism="PLAIN", user="nobody-of-these", password="any", socket=ENCRYPTED)
        b.broker.admission.look_again()
        b.settle()
        assert not client.connection.remote_condition, "who has not shown who it is need not be in the file"


def test_what_comes_behind_a_login_waits_for_it() -> None:
    """A client may say all of it in one breath; nothing of it counts before the outcome."""
    threads = Threads()
    with bench(authentication=demanding(threads.run)) as b:
        client = ann(b)
        client.server.dataReceived(HEADER + OPEN)
        assert client.server.container == ""
        threads.finish()
        assert (client.server.container, client.server.opened) == ("c", True)


def test_strangers_are_few_and_half_of_them_from_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEW_STRANGERS", 4)
    with bench(authentication=demanding(), max_connections=16) as b:
        known = [ann(b) for _ in range(10)]
        assert all(map(is_open, known)), "who has logged in is none"

        def silent(host: str) -> Any:
            connection = b.broker.new_connection(Socket(f"{host}:1"))
            if connection is not None:
                connection.makeConnection(StringTransport())
            return connection

        strangers = [silent("a") for _ in range(2)]
        assert all(strangers)
        assert silent("a") is None
        assert [bool(silent("b")) for _ in range(3)] == [True, True, False]
        strangers[0].connectionLost()
        assert silent("c") is not None
        assert silent("d") is None
        for connection in set(b.broker.connections.values()) - {client.server for client in known}:
            connection.connectionLost()
    with bench(max_connections=16) as b:
        assert all(b.broker.new_connection(Socket(f"a:{i}")) for i in range(16)), "nobody is one where nobody logs in"


def test_a_connection_of_the_broker_s_own_process_logs_in_to_nothing_and_no_rule_is_about_it() -> None:
    """What drains a broker from within has no password of it, and needs none: nobody else can have that socket."""
    with bench(authentication=demanding()) as b:
        b.broker.enforce(rules("acl deny all all"))
        own = b.client({"qpid.ha-admin": True}, socket=Socket("inside:1", own=True))
        assert own.request("CREATE", "queue", "q", {})[0] == 201
        b.broker.enforce(rules("acl deny all all"))
        b.settle()
        assert is_open(own), "it stays when other rules are in force"
        assert not is_open(b.client({"qpid.ha-admin": True}, socket=ENCRYPTED))
