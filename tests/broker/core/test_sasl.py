"""The SASL layer: one init, one mechanism, one outcome, and no word that a client could smuggle into the log."""

from __future__ import annotations

import proton
import pytest

from broker.core import limits, sasl, values
from broker.core.door import HEADER
from tests.broker.core.stream import BEGIN, OPEN, Knock, cut, frame, init

OUTCOME_OK = sasl.frame(sasl.OUTCOME, b"\x50\x00")
OUTCOME_AUTH = sasl.frame(sasl.OUTCOME, b"\x50\x01")


class Riddle:
    """A mechanism that asks, as those with secrets do: it takes the answer "open sesame", and no more than two of them."""

    def __init__(self) -> None:
        self.asked = 0

    def step(self, response: bytes) -> sasl.Step:
        if response == b"open sesame":
            return sasl.Grant("ali", "RIDDLE")
        self.asked += 1
        return sasl.Ask(b"well?") if self.asked <= 2 else sasl.Deny("the riddle was not answered")


RIDDLES: sasl.Offer = {"RIDDLE": Riddle, "ANONYMOUS": sasl.Anonymous}


def response(data: bytes) -> bytes:
    return sasl.frame(sasl.RESPONSE, values.encode(data))


def test_anonymous_is_offered_and_let_in_and_proton_sees_nothing_of_it() -> None:
    knock = Knock().say(sasl.HEADER)
    assert bytes(knock.door.output) == sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols(["ANONYMOUS"]))
    assert not knock.door.granted
    knock.door.output.clear()
    knock.say(init("ANONYMOUS", values.encode(b"me@here")))
    assert bytes(knock.door.output) == OUTCOME_OK
    assert knock.door.granted == sasl.Grant("anonymous", "ANONYMOUS")
    assert (knock.passed, knock.door.speaks_amqp) == (b"", False)
    knock.say(HEADER + OPEN)
    assert (knock.passed, knock.door.speaks_amqp) == (HEADER + OPEN, True)


def test_a_client_may_say_all_of_it_in_one_breath() -> None:
    whole = sasl.HEADER + init() + HEADER + OPEN + BEGIN
    assert Knock().say(whole).passed == HEADER + OPEN + BEGIN
    assert Knock().say(*cut(whole, range(len(whole)))).passed == HEADER + OPEN + BEGIN


def test_proton_s_client_reads_what_is_said() -> None:
    client, knock = proton.Transport(), Knock()
    client.sasl().allowed_mechs("ANONYMOUS")
    connection = proton.Connection()
    client.bind(connection)
    connection.open()
    for _ in range(4):
        while (waiting := client.pending()) > 0:
            knock.say(client.peek(waiting) or b"")
            client.pop(waiting)
        said = bytes(knock.door.output)
        knock.door.output.clear()
        if said:
            client.push(said)
    assert client.sasl().outcome == proton.SASL.OK
    assert knock.passed.startswith(HEADER)
    assert knock.door.refusal is None


def test_a_mechanism_may_ask_and_answers_come_to_it() -> None:
    knock = Knock(offer=RIDDLES).say(sasl.HEADER + init("RIDDLE"))
    knock.door.output.clear()
    knock.say(response(b"barley"))
    assert bytes(knock.door.output) == sasl.frame(sasl.CHALLENGE, values.encode(b"well?"))
    knock.door.output.clear()
    knock.say(response(b"open sesame"))
    assert bytes(knock.door.output) == OUTCOME_OK
    assert knock.door.granted == sasl.Grant("ali", "RIDDLE")


def test_who_does_not_know_is_told_the_outcome_and_turned_away() -> None:
    knock = Knock(offer=RIDDLES).say(sasl.HEADER + init("RIDDLE"), response(b"barley"), response(b"wheat"))
    assert bytes(knock.door.output).endswith(OUTCOME_AUTH)
    assert (knock.refusal, knock.reason) == ("amqp:unauthorized-access", "the riddle was not answered")
    assert knock.say(HEADER + OPEN).passed == b"", "nothing goes through any more"


@pytest.mark.parametrize(
    "mechanism, named",
    [
        (
            "PLAIN",
            "SASL PLAIN is not offered; there is ANONYMOUS; PLAIN is offered under TLS, or with --plain-without-tls yes",
        ),
        ("EXTERNAL", "SASL EXTERNAL is not offered; there is ANONYMOUS"),
        ("anonymous", "SASL a mechanism without a proper name is not offered; there is ANONYMOUS"),
        ("X\nWARN hunter2", "SASL a mechanism without a proper name is not offered; there is ANONYMOUS"),
    ],
)
def test_what_is_not_offered_is_refused_and_its_secrets_stay_out_of_the_text(mechanism: str, named: str) -> None:
    knock = Knock().say(sasl.HEADER + init(mechanism, values.encode(b"\x00ann\x00hunter2")))
    assert bytes(knock.door.output).endswith(OUTCOME_AUTH)
    assert (knock.refusal, knock.reason) == ("amqp:unauthorized-access", named)


@pytest.mark.parametrize(
    "said, condition",
    [
        (response(b"x"), "amqp:not-allowed"),
        (sasl.frame(sasl.OUTCOME, b"\x50\x00"), "amqp:not-allowed"),
        (OPEN, "amqp:connection:framing-error"),
        (frame(OPEN[8:], kind=1), "amqp:not-allowed"),
        (frame(BEGIN[8:], kind=1), "amqp:not-allowed"),
        (frame(b"", kind=1), "amqp:decode-error"),
        (frame(b"\x00\x53\x41\xc0", kind=1), "amqp:decode-error"),
        (frame(b"\x00\x53\x41\x40", kind=1), "amqp:decode-error"),
        (frame(b"\x00\x53\x41\x45", kind=1), "amqp:decode-error"),
        (frame(b"\x00\x53\x41\xc0\x02\x01\x43", kind=1), "amqp:decode-error"),
        (frame(b"\x00\x53\x41\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45", kind=1), "amqp:decode-error"),
        (frame(b"x" * 505, kind=1), "amqp:connection:framing-error"),
    ],
)
def test_only_an_init_may_come_first_whole_and_small(said: bytes, condition: str) -> None:
    """AMQP's performatives before a login, in frames of either layer, are what proton 0.40 acts on (PROTON-2945)."""
    for reads in ([sasl.HEADER + said], cut(sasl.HEADER + said, range(600))):
        knock = Knock().say(*reads)
        assert knock.refusal == condition
        assert (knock.passed, knock.door.granted) == (b"", None)


class Slow:
    """A mechanism that takes its time, twice: for the right word it lets in."""

    def step(self, response: bytes) -> sasl.Step:
        return sasl.Wait(lambda first: sasl.Wait(lambda second: self._end(response, first + second)), lambda: b"!", 1.0)

    def _end(self, response: bytes, results: bytes) -> sasl.Step:
        return sasl.Grant("ann", "SLOW") if (response, results) == (b"please", b"12") else sasl.Deny("too late", "ann")


SLOW: sasl.Offer = {"SLOW": Slow}


def slowly(word: bytes, *reads: bytes) -> Knock:
    """The login has been waited for, and waits again."""
    knock = Knock(offer=SLOW).say(sasl.HEADER + init("SLOW", values.encode(word)), *reads)
    knock.door.output.clear()
    assert knock.door.login.waits is not None
    knock.door.resume(b"1")
    assert knock.door.login.waits is not None
    return knock


def test_a_login_that_is_waited_for_is_gone_on_with_by_whoever_has_done_the_work() -> None:
    knock = slowly(b"please")
    assert (bytes(knock.door.output), knock.door.granted) == (b"", None), "nothing is said meanwhile"
    knock.door.resume(b"2")
    assert (knock.door.granted, bytes(knock.door.output)) == (sasl.Grant("ann", "SLOW"), OUTCOME_OK)
    assert knock.say(HEADER + OPEN).passed == HEADER + OPEN


def test_what_comes_while_a_login_is_waited_for_waits_too_however_it_is_cut() -> None:
    ahead = HEADER + OPEN + BEGIN
    for reads in ([ahead], cut(ahead, range(len(ahead)))):
        knock = slowly(b"please", *reads)
        assert knock.passed == b""
        knock.door.resume(b"2")
        assert knock.door.more
        assert knock.say(b"").passed == ahead


def test_a_client_that_is_turned_away_after_a_wait_gets_its_outcome_and_nothing_goes_through() -> None:
    knock = slowly(b"now", HEADER + OPEN)
    knock.door.resume(b"2")
    assert bytes(knock.door.output) == OUTCOME_AUTH
    assert (knock.refusal, knock.reason) == ("amqp:unauthorized-access", "too late")
    assert knock.door.login.denied == sasl.Deny("too late", "ann")
    assert knock.say(b"").passed == b""


def test_what_waits_with_a_login_is_bounded() -> None:
    knock = Knock(offer=SLOW).say(sasl.HEADER + init("SLOW", values.encode(b"please")), b"x" * limits.EARLY_BYTES)
    assert knock.refusal == ""
    knock.say(b"x")
    assert (knock.refusal, knock.reason) == (
        "amqp:resource-limit-exceeded",
        "more than 65536 bytes came before the outcome of a login",
    )
    knock.door.resume(b"1")
    assert knock.door.granted is None, "it is over"


def test_a_login_that_cannot_be_looked_at_now_may_be_tried_again() -> None:
    knock = Knock(offer=SLOW).say(sasl.HEADER + init("SLOW"))
    knock.door.output.clear()
    knock.door.give_up_login("too many logins")
    assert bytes(knock.door.output) == sasl.frame(sasl.OUTCOME, b"\x50\x04")
    assert (knock.refusal, knock.reason) == ("amqp:resource-limit-exceeded", "too many logins")


def test_who_has_to_log_in_cannot_leave_the_layer_out() -> None:
    """Without this a client that speaks AMQP at once would be let in as nobody, whatever is offered."""
    knock = Knock(offer=SLOW).say(HEADER + OPEN)
    assert (knock.refusal, knock.passed) == ("amqp:unauthorized-access", b"")
    assert bytes(knock.door.output) == sasl.HEADER, "this is what has to come first"


def test_a_second_init_does_not_begin_anew() -> None:
    knock = Knock(offer=RIDDLES).say(sasl.HEADER + init("RIDDLE") + init("ANONYMOUS"))
    assert (knock.refusal, knock.door.granted) == ("amqp:not-allowed", None)


def test_the_layer_comes_once() -> None:
    knock = Knock().say(sasl.HEADER + init() + sasl.HEADER)
    assert knock.refusal == "amqp:connection:framing-error"
