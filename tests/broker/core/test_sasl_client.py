"""The client's side of SASL: it says who it is to whoever may know, and lets nobody through who has not shown as much."""

from __future__ import annotations

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits, sasl, users, values
from broker.core.door import HEADER
from broker.core.mechanisms import Plain, Register, Scram
from broker.core.sasl_client import MECHANISMS, ClientLayer, Login
from broker.core.users import HASHES, SHA_256, SHA_512, Users
from tests.broker.core.stream import OPEN, Knock, cut

ANN = {mechanism: users.derive(mechanism, "secret", b"salt" * 4) for mechanism in HASHES}
REGISTER = Register(Users({"ann": ANN}, b""), "QPID", lambda user: 0.0)
ALL: sasl.Offer = {
    SHA_512: lambda: Scram(SHA_512, REGISTER, "server"),
    SHA_256: lambda: Scram(SHA_256, REGISTER, "server"),
    "PLAIN": lambda: Plain(REGISTER),
    "ANONYMOUS": sasl.Anonymous,
}
SASL_TEXTS = "a user and a password in characters that SASL allows"
GIVE_IT = "write the password into a file, and name the file with --password-file"
NO_USER = f"no user is given; write the user into the URL, as in ann@host; {GIVE_IT}"
NO_PASSWORD = f"no password is given for the user 'ann'; {GIVE_IT}"
BY = Login("ann", "secret")
IN_THE_DARK = Login("ann", "secret", encrypted=True)


def only(*names: str) -> sasl.Offer:
    return {name: ALL[name] for name in names}


def converse(login: Login, offer: sasl.Offer = ALL, step: int = 1 << 20) -> tuple[ClientLayer, Knock]:
    """Both sides talk, in reads of `step` bytes, until nothing moves any more; what they wait for is done at once."""
    client, server = ClientLayer(login, "client"), Knock(offer=offer)
    for _ in range(20):
        said = bytes(client.output)
        client.output.clear()
        for start in range(0, len(said), step):
            server.say(said[start : start + step])
        waits = server.door.login.waits
        if waits is not None:
            server.door.resume(b"" if waits.work is None else waits.work())
        answer = bytes(server.door.output)
        server.door.output.clear()
        for start in range(0, len(answer), step):
            assert client.take(answer[start : start + step]) == b""
        if client.waits is not None:
            assert client.waits.work is not None
            assert client.resume(client.waits.work()) == b""
    return client, server


def reason(client: ClientLayer) -> str:
    assert client.refusal is not None
    assert "secret" not in client.refusal.text
    return client.refusal.text


@pytest.mark.parametrize(
    "login, offer, granted",
    [
        (Login(), ALL, ("anonymous", "ANONYMOUS")),
        (BY, ALL, ("ann@QPID", SHA_512)),
        (BY, only(SHA_256, "PLAIN"), ("ann@QPID", SHA_256)),
        (IN_THE_DARK, only("PLAIN"), ("ann@QPID", "PLAIN")),
        (Login("ann", "secret", "PLAIN"), ALL, ("ann@QPID", "PLAIN")),
        (Login("ann", "secret", or_nobody=True), only("ANONYMOUS", SHA_256), ("ann@QPID", SHA_256)),
        (Login("ann", "secret", or_nobody=True), only("PLAIN", "ANONYMOUS"), ("anonymous", "ANONYMOUS")),
        (Login("ann", "secret", SHA_256), ALL, ("ann@QPID", SHA_256)),
        (Login("ann", "secret", "ANONYMOUS"), ALL, ("anonymous", "ANONYMOUS")),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_it_is_let_in_by_the_best_that_there_is(login: Login, offer: sasl.Offer, granted: tuple[str, str], step: int) -> None:
    client, server = converse(login, offer, step)
    assert client.done, client.refusal
    found = server.door.granted
    assert found is not None
    assert (found.user, found.mechanism) == granted
    assert client.take(HEADER + OPEN) == HEADER + OPEN, "from now on all is AMQP's"


@pytest.mark.parametrize("mechanism", [SHA_512, SHA_256, "PLAIN"])
@pytest.mark.parametrize("user, password", [("ann", "wrong"), ("bob", "secret")])
def test_a_wrong_login_is_said_to_be_one(mechanism: str, user: str, password: str) -> None:
    client, server = converse(Login(user, password, mechanism))
    assert (reason(client), client.done) == ("the broker does not let this login in", False)
    assert server.door.granted is None


@pytest.mark.parametrize(
    "login, offer, said",
    [
        (
            BY,
            only("PLAIN"),
            "the broker offers PLAIN, and this client wants SCRAM-SHA-512 or SCRAM-SHA-256; "
            "a password goes over a connection without encryption only with the mechanism PLAIN named",
        ),
        (
            Login(),
            only(SHA_256),
            "the broker offers SCRAM-SHA-256, and this client wants ANONYMOUS; "
            "it wants to know who you are: give a user and a password (the user in the URL, as in ann@host, "
            "and a file with the password: --password-file)",
        ),
        (IN_THE_DARK, {}, "the broker offers nothing, and this client wants SCRAM-SHA-512 or SCRAM-SHA-256 or PLAIN"),
        (Login("ann", "secret", "EXTERNAL"), only(SHA_256), "the broker offers SCRAM-SHA-256, and this client wants EXTERNAL"),
        (Login("", "secret", SHA_256), ALL, f"SCRAM-SHA-256 needs {SASL_TEXTS}: {NO_USER}"),
        (Login(None, "", SHA_256), ALL, f"SCRAM-SHA-256 needs {SASL_TEXTS}: {NO_USER}"),
        (Login("ann", "\0", SHA_256), ALL, f"SCRAM-SHA-256 needs {SASL_TEXTS}"),
        (Login("ann"), ALL, f"the broker does not let this login in: {NO_PASSWORD}"),
        (Login("ann", "", "PLAIN"), ALL, f"the broker does not let this login in: {NO_PASSWORD}"),
        (Login(None, "", "PLAIN"), ALL, f"the broker does not let this login in: {NO_USER}"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_secret_is(login: Login, offer: sasl.Offer, said: str) -> None:
    client, _ = converse(login, offer)
    assert reason(client) == said
    assert b"secret" not in client.output


def test_a_user_without_a_password_has_none_to_lose() -> None:
    client, server = converse(Login("ann"), {"PLAIN": lambda: Always(sasl.Grant("ann", "PLAIN"))})
    assert client.done
    assert server.door.granted == sasl.Grant("ann", "PLAIN")


class Always:
    """A server's mechanism that has one answer."""

    def __init__(self, *steps: sasl.Step) -> None:
        self.steps = list(steps)

    def step(self, response: bytes) -> sasl.Step:
        return self.steps.pop(0)


def test_external_leaves_it_to_the_socket_to_say_who_it_is() -> None:
    client, _ = converse(Login(mechanism="EXTERNAL"), {"EXTERNAL": lambda: Always(sasl.Grant("ann", "EXTERNAL"))})
    assert client.done


FIRST = b"r=clientserver,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096"


@pytest.mark.parametrize(
    "steps, said",
    [
        ([sasl.Grant("ann", SHA_256)], "the broker has not shown that it knows this user"),
        ([sasl.Ask(FIRST), sasl.Grant("ann", SHA_256)], "the broker has not shown that it knows this user"),
        ([sasl.Ask(FIRST), sasl.Ask(b"v=AAAA")], "the broker has not shown that it knows this user"),
        ([sasl.Ask(FIRST), sasl.Ask(b"\xff")], "the broker has not shown that it knows this user"),
        ([sasl.Ask(FIRST.replace(b"client", b"other"))], "the broker has not shown that it knows this user"),
        ([sasl.Ask(FIRST.replace(b"4096", b"1"))], "the broker has not shown that it knows this user"),
        (
            [sasl.Ask(FIRST.replace(b"4096", b"1000001"))],
            "the broker asks for more than 1000000 iterations of a hash function",
        ),
    ],
)
def test_a_server_that_does_not_know_the_user_is_none_to_talk_to(steps: list[sasl.Step], said: str) -> None:
    client, _ = converse(BY, {SHA_256: lambda: Always(*steps)})
    assert (reason(client), client.done) == (said, False)


def test_a_server_may_show_what_it_knows_with_the_outcome() -> None:
    """AMQP part 5.3.3.6: additional-data. Other brokers do that; this one asks once more."""
    client = ClientLayer(BY, "client")
    server = scramp.ScramMechanism(SHA_256).make_server(
        lambda name: (ANN[SHA_256].salt, ANN[SHA_256].stored, ANN[SHA_256].server, 4096), s_nonce="server"
    )
    client.take(sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.encode(values.Symbol(SHA_256))))
    server.set_client_first("n,,n=ann,r=client")
    client.take(sasl.frame(sasl.CHALLENGE, values.encode(server.get_server_first().encode())))
    assert client.waits is not None
    assert client.waits.work is not None
    final = client.waits.work()
    client.resume(final)
    server.set_client_final(final.decode())
    shown = values.encode(server.get_server_final().encode())
    assert client.take(sasl.frame(sasl.OUTCOME, b"\x50\x00", shown) + HEADER) == HEADER
    assert client.done


def test_a_question_with_the_outcome_shows_nothing() -> None:
    client = ClientLayer(BY, "client")
    client.take(sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols([SHA_256])))
    client.take(sasl.frame(sasl.OUTCOME, b"\x50\x00", values.encode(FIRST)))
    assert (reason(client), client.done) == ("the broker has not shown that it knows this user", False)


@pytest.mark.parametrize("mechanism", ["PLAIN", SHA_256])
def test_a_server_that_asks_too_much_gets_no_more(mechanism: str) -> None:
    steps: list[sasl.Step] = [sasl.Ask(b"and?")]
    if mechanism == SHA_256:
        right = Scram(SHA_256, REGISTER, "server")
        client, _ = converse(BY, {SHA_256: lambda: Twice(right)})
    else:
        client, _ = converse(Login("ann", "secret", "PLAIN"), {"PLAIN": lambda: Always(*steps)})
    assert reason(client) == "the broker asks for more than this mechanism has to say"


class Twice:
    """A server's SCRAM that goes on when all has been said."""

    def __init__(self, right: Scram) -> None:
        self.right = right

    def step(self, response: bytes) -> sasl.Step:
        return self.right.step(response) if response else sasl.Ask(b"v=AAAA")


def test_a_broker_that_cannot_look_at_logins_says_so() -> None:
    client = ClientLayer(Login(), "")
    client.take(sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols(["ANONYMOUS"])))
    client.take(sasl.frame(sasl.OUTCOME, b"\x50\x04"))
    assert reason(client) == "the broker cannot look at logins now"


MECHS = sasl.frame(sasl.MECHANISMS, values.symbols(["ANONYMOUS"]))


@pytest.mark.parametrize(
    "said, why",
    [
        (HEADER, "the broker does not speak AMQP 1.0 with a SASL layer"),
        (b"HTTP/1.1", "the broker does not speak AMQP 1.0 with a SASL layer"),
        (b"\x15\x03\x03\0\x02\x02\x46", "this port is for TLS: write amqps: instead of amqp: in the URL"),
        (b"\x16\x03\x01", "this port is for TLS: write amqps: instead of amqp: in the URL"),
        (sasl.HEADER + OPEN, "the broker sent a frame that is not a SASL frame"),
        (sasl.HEADER + b"\xff" * 8, "the broker sent a frame that is not a SASL frame"),
        (sasl.HEADER + b"\x00\x00\x00\x08\x02\x01\x00\x00", "a frame cannot be decoded: it begins with no performative"),
        (sasl.HEADER + MECHS + MECHS, "the broker sent the SASL performative 0x40, which may not come now"),
        (
            sasl.HEADER + sasl.frame(sasl.OUTCOME, b"\x50\x00"),
            "the broker sent the SASL performative 0x44, which may not come now",
        ),
        (
            sasl.HEADER + sasl.frame(sasl.CHALLENGE, b"\xa0\x00"),
            "the broker sent the SASL performative 0x42, which may not come now",
        ),
        (sasl.HEADER + MECHS[:-1] + b"\xff", "the broker sent a SASL frame that cannot be decoded"),
        (sasl.HEADER + b"\0\0\0\x0c\x02\x01\0\0\0\x53\x40\x40", "the broker sent a SASL frame that cannot be decoded"),
        (sasl.HEADER + sasl.frame(sasl.MECHANISMS), "the broker offers nothing, and this client wants ANONYMOUS"),
        (sasl.HEADER + MECHS + sasl.frame(sasl.OUTCOME), "the broker does not let this login in"),
    ],
)
def test_what_is_no_sasl_layer_ends_it(said: bytes, why: str) -> None:
    for reads in ([said], cut(said, range(len(said)))):
        client = ClientLayer(Login(), "")
        assert b"".join(client.take(data) for data in reads) == b""
        assert reason(client).startswith(why)
        assert client.take(MECHS) == b""


def test_what_comes_while_a_key_is_derived_waits_up_to_a_bound() -> None:
    """The offer has to be complete, and the outcome can only come after an answer."""
    client = ClientLayer(BY, "client")
    client.take(sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols([SHA_256])))
    client.take(sasl.frame(sasl.CHALLENGE, values.encode(FIRST)))
    assert client.waits is not None
    client.take(b"x" * limits.EARLY_BYTES)
    assert client.refusal is None
    client.take(b"x")
    assert reason(client) == "the broker continues without a SASL outcome"
    assert client.resume(b"") == b"", "it is over"


def test_every_mechanism_that_can_be_named_can_be_used() -> None:
    for name in MECHANISMS:
        client = ClientLayer(Login("ann", "secret", name), "client")
        client.take(sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols([name])))
        assert client.refusal is None
        assert name.encode() in client.output


PIECES = some.one_of(
    some.binary(max_size=40),
    some.sampled_from([sasl.HEADER, HEADER, MECHS, sasl.frame(sasl.OUTCOME, b"\x50\x00"), OPEN]),
    some.lists(some.sampled_from([*MECHANISMS, "X"])).map(lambda names: sasl.frame(sasl.MECHANISMS, values.symbols(names))),
    some.binary(max_size=60).map(lambda data: sasl.frame(sasl.CHALLENGE, values.encode(data))),
    some.just(sasl.frame(sasl.CHALLENGE, values.encode(FIRST))),
)


@given(
    some.sampled_from([Login(), BY, IN_THE_DARK, Login("ann", "secret", SHA_256)]),
    some.lists(PIECES, max_size=6),
    some.lists(some.integers(0, 1000), max_size=6),
)
def test_any_bytes_in_any_cuts_come_to_the_same_and_to_no_error(login: Login, pieces: list[bytes], at: list[int]) -> None:
    data = sasl.HEADER + b"".join(pieces)
    found = []
    for reads in ([data], cut(data, at)):
        client = ClientLayer(login, "client")
        passed = b"".join(client.take(read) for read in reads)
        if client.waits is not None:
            passed += client.resume(b"c=biws,r=x,p=x")
        found.append((passed, bytes(client.output), client.done, None if client.refusal is None else client.refusal.text))
    assert found[0] == found[1]
