"""The door: what may come when, how large it may be, and that neither cuts nor any bytes move its decisions."""

from __future__ import annotations

import struct
from functools import partial

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits, sasl
from broker.core.bundles import FORMAT
from broker.core.door import HEADER
from tests.broker.core.stream import (
    BEGIN,
    CLOSE,
    END,
    FALSE,
    HEARTBEAT,
    NULL,
    OPEN,
    SIXTY_KB_OF_EMPTY_LISTS,
    TRUE,
    ZERO,
    Knock,
    admitted,
    attach,
    cut,
    echo,
    flow,
    frame,
    init,
    listed,
    mapped,
    performative,
    properties,
    transfer,
    uint,
)

FLOW = performative(0x13, ZERO, ZERO, ZERO, ZERO)
DISPOSITION = performative(0x15, TRUE, ZERO, ZERO, TRUE, b"\x00\x53\x24\x45")
DETACH = performative(0x16, ZERO, TRUE)
SECOND_OPEN = OPEN
UNKNOWN = performative(0x19)
FULL = performative(0x12, b"\xa1\x01l", ZERO, FALSE, NULL, NULL, NULL, NULL, NULL, NULL, ZERO, NULL, NULL, NULL, b"\xc1\x01\x00")


def text(nbytes: int) -> bytes:
    return b"\xb1" + struct.pack(">I", nbytes) + b"x" * nbytes


# ---- headers


@pytest.mark.parametrize(
    "said, answer",
    [
        (b"GET / HTTP/1.1\r\n", b""),
        (b"\x16\x03\x01", b""),
        (b"AMQP\x00\x00\x09\x01", HEADER),
        (b"AMQP\x02\x01\x00\x00", HEADER),
        (b"AMQP\x01\x01\x00\x0a", HEADER),
        (b"AMQP\x03\x01\x00\x01", HEADER),
        (b"AMX", b""),
    ],
)
def test_another_protocol_is_answered_with_the_version_that_is_spoken_if_it_is_amqp(said: bytes, answer: bytes) -> None:
    for reads in ([said], cut(said, range(20))):
        knock = Knock().say(*reads)
        assert knock.refusal == "amqp:connection:framing-error"
        assert "if it is TLS: this port does not use TLS" in knock.reason
        assert (bytes(knock.door.output), knock.passed, knock.door.speaks_amqp) == (answer, b"", False)


def test_a_client_without_a_sasl_layer_is_let_in_as_nobody() -> None:
    knock = Knock().say(HEADER, OPEN)
    assert (knock.passed, knock.refusal, knock.door.granted, bytes(knock.door.output)) == (HEADER + OPEN, "", None, b"")


# ---- until the Open is admitted


@pytest.mark.parametrize("first", [BEGIN, FULL, FLOW, transfer(b"x"), DISPOSITION, DETACH, END, CLOSE, UNKNOWN])
def test_nothing_but_an_open_comes_first(first: bytes) -> None:
    knock = Knock().say(HEADER + first + OPEN)
    assert (knock.refusal, knock.passed) == ("amqp:not-allowed", HEADER)


@pytest.mark.parametrize("ahead, goes", [(BEGIN, 1), (FULL, 1), (FLOW, 1), (DETACH, 1), (END, 1), (HEARTBEAT, 1), (CLOSE, 1)])
def test_what_pipelining_clients_say_ahead_of_the_answer_goes_through(ahead: bytes, goes: int) -> None:
    knock = Knock(admits=False).say(HEADER + OPEN + ahead)
    assert (knock.passed, knock.refusal) == (HEADER + OPEN + ahead, "")


@pytest.mark.parametrize("ahead", [transfer(b"x"), DISPOSITION, SECOND_OPEN, UNKNOWN])
def test_what_nobody_can_say_yet_does_not(ahead: bytes) -> None:
    knock = Knock(admits=False).say(HEADER + OPEN + BEGIN + ahead)
    assert (knock.passed, knock.refusal) == (HEADER + OPEN + BEGIN, "amqp:not-allowed")


def test_early_frames_are_small_and_all_of_them_together_too() -> None:
    most = limits.EARLY_FRAME_BYTES - len(performative(0x10, text(0), wide=True))
    assert Knock().say(HEADER + performative(0x10, text(most), wide=True)).refusal == ""
    assert Knock().say(HEADER + performative(0x10, text(most + 1), wide=True)).refusal == "amqp:connection:framing-error"
    assert Knock(admits=False).say(HEADER + OPEN + performative(0x12, text(5000))).refusal == "amqp:connection:framing-error"
    assert Knock(max_frame_bytes=512).say(HEADER + performative(0x10, text(600))).refusal == "amqp:connection:framing-error"
    large = performative(0x12, text(4000))
    knock = Knock(admits=False).say(HEADER + OPEN + large * 16)
    assert knock.refusal == ""
    assert knock.say(large).refusal == "amqp:resource-limit-exceeded"


def test_the_answer_to_an_open_counts_for_the_very_next_frame_in_the_same_read() -> None:
    large = performative(0x12, b"\xa1\x01l", ZERO, FALSE, text(5000))
    knock = Knock().say(HEADER + OPEN + large)
    assert (knock.passed, knock.refusal) == (HEADER + OPEN + large, "")


def test_sixty_thousand_empty_lists_are_stopped_by_their_size_before_and_by_their_number_after_the_open() -> None:
    """PROTON-2954: this Open cost 20 ms of the reactor and 6 MB, without a login. What proton gets of it is nothing."""
    knock = Knock().say(HEADER + SIXTY_KB_OF_EMPTY_LISTS)
    assert (knock.passed, knock.refusal) == (HEADER, "amqp:connection:framing-error")
    lists = mapped(b"\xa3\x01k", listed(*[b"\x45"] * 3000))
    knock = Knock().say(HEADER + properties(lists))
    assert (knock.passed, knock.refusal) == (HEADER, "amqp:resource-limit-exceeded")
    knock = admitted().say(BEGIN, performative(0x12, b"\xa1\x01l", ZERO, FALSE, *[NULL] * 10, lists))
    assert (knock.passed, knock.refusal) == (BEGIN, "amqp:resource-limit-exceeded")


# ---- afterwards


@pytest.mark.parametrize(
    "frames",
    [
        BEGIN + FULL + FLOW + DISPOSITION + DETACH + END,
        HEARTBEAT * 3,
        transfer(b"a") + transfer(b"b" * 5000) + transfer(b""),
        transfer(b"a", wide=True) + DISPOSITION + transfer(b"b", extended=bytes(8)),
        frame(b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14" + listed(ZERO, ZERO, b"\xa0\x01t", ZERO) + b"payload"),
        frame(b"\x00\x53\x14" + listed(ZERO)),
    ],
)
def test_ordinary_frames_go_through_as_they_are_however_they_are_cut(frames: bytes) -> None:
    assert admitted().say(frames).passed == frames
    assert admitted().say(*cut(frames, range(len(frames)))).passed == frames


def test_a_transfer_goes_through_as_its_bytes_come_and_nothing_else_does() -> None:
    piece = transfer(b"x" * 1000)
    assert admitted().say(piece[:100]).passed == piece[:100]
    assert admitted().say(piece[:15]).passed == b""
    assert admitted().say(FULL[:-1]).passed == b""


@pytest.mark.parametrize(
    "bad, condition",
    [
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x01\x00\x00\x00" + bytes(8), "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x05\x00\x00\x00" + bytes(8), "amqp:connection:framing-error"),
        (transfer(bytes(1 << 16)), "amqp:connection:framing-error"),
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (frame(FULL[8:], kind=1), "amqp:connection:framing-error"),
        (frame(b"", kind=2), "amqp:connection:framing-error"),
        (UNKNOWN, "amqp:decode-error"),
        (frame(b"\xff" * 9), "amqp:decode-error"),
        (frame(b"\x00\x53\x14\x40" + bytes(20)), "amqp:decode-error"),
        (frame(b"\x00\x53\x12\xc0\xff\x01" + b"x"), "amqp:decode-error"),
        (SECOND_OPEN, "amqp:not-allowed"),
        (performative(0x11, b"\x60\x00\x00", ZERO, uint(9), uint(9)), "amqp:not-allowed"),
        (performative(0x11, b"\x60\x00\x00", ZERO, uint(9), uint(9), wide=True), "amqp:not-allowed"),
        (transfer(b"", tag=bytes(600)), "amqp:resource-limit-exceeded"),
        (transfer(b"", tag=bytes(600), extended=bytes(4)), "amqp:resource-limit-exceeded"),
        (performative(0x15, TRUE, ZERO, ZERO, TRUE, text(20_000)), "amqp:resource-limit-exceeded"),
        (performative(0x15, TRUE, ZERO, ZERO, TRUE, b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45"), "amqp:resource-limit-exceeded"),
        (performative(0x16, ZERO, b"\xe0\x01"), "amqp:decode-error"),
    ],
)
def test_a_frame_that_is_wrong_ends_it_behind_those_that_are_right(bad: bytes, condition: str) -> None:
    whole = FLOW + transfer(b"x") + bad + FLOW
    for reads in ([whole], cut(whole, range(len(FLOW) + 100))):
        knock = admitted().say(*reads)
        assert (knock.passed, knock.refusal) == (FLOW + transfer(b"x"), condition)
        assert knock.say(FLOW).passed == FLOW + transfer(b"x"), "nothing goes through afterwards"


BUNDLE = transfer(b"\x00\x53\x75\xa0\x01x", says=FORMAT, more=False, number=5)
MARKED = transfer(b"\x00\x53\x00\x40\x00\x53\x75\xa0\x01x", more=False, number=5)
URL = b"amqps://h/q"
AZURE = attach(0, name=b"\xa1" + bytes((len(URL),)) + URL)
"""An attach of a client that may send bundles."""


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("extended", [b"", b"----"])
def test_a_bundle_goes_through_with_its_mark_wherever_the_stream_is_cut(wide: bool, extended: bytes) -> None:
    """Breaks when messages that come as one are stored as one, which no consumer can read; or when proton is given a frame of
    another size than its head says."""
    bundle = partial(transfer, wide=wide, extended=extended, number=5, more=False)
    said = AZURE + PIECE + bundle(b"payload", says=FORMAT) + PIECE
    goes = AZURE + PIECE + bundle(b"\x00\x53\x00\x40payload") + PIECE
    assert len(said) == len(goes)
    for at in range(len(said)):
        knock = admitted().say(*cut(said, [at]))
        assert (knock.refusal, knock.passed) == ("", goes), at


def test_only_the_first_frame_of_a_bundle_is_marked_and_that_of_the_next_one_too() -> None:
    """Clients say the format in all of them, or in the first alone."""
    goes_on = transfer(b"more", says=FORMAT, number=5)
    nameless = performative(0x14, ZERO, NULL, NULL, FORMAT, FALSE, TRUE)
    following = transfer(b"\x00\x53\x75\xa0\x01x", says=FORMAT, more=False, number=6)
    said = AZURE + BUNDLE + goes_on + nameless + following
    assert admitted().say(said).passed == AZURE + MARKED + goes_on + nameless + MARKED.replace(b"\x70\0\0\0\5", b"\x70\0\0\0\6")


def test_numbers_begin_anew_with_a_session_and_a_link() -> None:
    """Breaks when a bundle is taken for the rest of one that came before it."""
    again = AZURE + BUNDLE
    marked = AZURE + MARKED
    assert admitted().say(again + DETACH + again + END + BEGIN + again).passed == marked + DETACH + marked + END + BEGIN + marked


def test_a_bundle_on_a_link_that_is_not_there_is_left_to_proton() -> None:
    assert admitted().say(BUNDLE).passed == BUNDLE


@pytest.mark.parametrize("sign", [URL, b"$cbs"])
def test_bundles_are_looked_for_when_the_client_has_attached_as_only_those_do_that_send_them(sign: bytes) -> None:
    """Breaks when each message of every client costs the look, or a bundle is none because its sign came in the same read."""
    plain, other = attach(0) + BUNDLE, attach(1, name=b"\xa1" + bytes((len(sign),)) + sign)
    assert admitted().say(plain).passed == plain
    assert admitted().say(plain + other + END + plain).passed == plain + other + END + attach(0) + MARKED


def test_a_tag_may_be_what_it_likes() -> None:
    said = AZURE + transfer(b"x", tag=FORMAT)
    assert admitted().say(said).passed == said


def test_fields_that_are_more_than_their_frame_are_left_to_proton_whatever_they_are() -> None:
    beyond = frame(b"\x00\x53\x14\xc0\x40\x04" + FORMAT)
    odd = frame(b"\x00\x53\x14\xc0\x06\x04" + FORMAT)
    assert admitted().say(AZURE + odd + beyond + BUNDLE).passed == AZURE + odd + beyond + MARKED


def test_frames_may_be_larger_where_larger_ones_are_announced_if_they_carry_messages() -> None:
    large = transfer(bytes(200_000))
    knock = admitted(max_frame_bytes=1 << 20).say(large)
    assert knock.passed == large
    assert knock.say(performative(0x12, text(100_000))).refusal == "amqp:connection:framing-error"
    assert admitted(max_frame_bytes=0).say(large).passed == large


def test_what_links_leave_behind_has_a_bound_and_their_end_gives_it_back() -> None:
    """Names, addresses and properties of a link live as long as it: 8,000 links of 16 KiB would be 128 MiB a connection."""
    link = attach(0, text(12_000))
    per_session = limits.ATTACHED_BYTES // (len(link) + limits.LINK_BYTES)
    knock = admitted()
    for _ in range(per_session + 10):
        knock.say(link, DETACH).passed = b""
    assert knock.refusal == ""
    for handle in range(3):
        knock.say(attach(handle, text(12_000), channel=1))
    knock.say(performative(0x17, channel=1), END)
    for number in range(per_session):
        knock.say(attach(number % 256, text(12_000))).passed = b""
    assert knock.refusal == ""
    assert knock.say(link, link).refusal == "amqp:resource-limit-exceeded"


@pytest.mark.costs
def test_a_link_takes_memory_until_it_is_detached_however_short_its_attach_is() -> None:
    """Breaks when a client attaches links that are refused and never detaches them: proton keeps 1.5 KB for each, and looks
    through all of them at the next attach. As many links as a connection may have fit, with names and filters."""
    knock, most, nbytes = admitted(), limits.ATTACHED_BYTES // limits.LINK_BYTES, 0
    for number in range(most + 1):
        knock.say(performative(0x12, b"\xa1\x01l", uint(number), FALSE, channel=number % 50)).passed = b""
        nbytes += 1
        if knock.refusal:
            break
    assert (knock.refusal, most * 0.98 < nbytes < most) == ("amqp:resource-limit-exceeded", True)
    assert knock.reason == "this connection's links take more than 16777216 bytes: detach those that were refused"
    knock = admitted()
    for number in range(limits.MAX_LINKS_PER_CONNECTION):
        knock.say(performative(0x12, text(2500), uint(number), FALSE)).passed = b""
    assert knock.refusal == ""


def test_a_handle_that_cannot_be_read_is_left_to_proton() -> None:
    odd = performative(0x12, b"\xa1\x01l", TRUE)
    assert admitted().say(odd).passed == odd


# ---- the end


def test_nothing_comes_behind_a_close() -> None:
    assert admitted().say(FLOW + CLOSE + FLOW, FLOW).passed == FLOW + CLOSE
    knock = Knock(admits=False).say(HEADER + OPEN + CLOSE + BEGIN, BEGIN)
    assert (knock.passed, knock.refusal) == (HEADER + OPEN + CLOSE, "")


@pytest.mark.parametrize("admits", [True, False])
def test_behind_this_side_s_close_only_the_client_s_close_goes_through(admits: bool) -> None:
    knock = Knock(admits=admits).say(HEADER + OPEN)
    knock.door.leave()
    knock.passed = b""
    knock.say(BEGIN + FULL + HEARTBEAT + transfer(b"x" * 10_000), CLOSE, CLOSE)
    assert (knock.passed, knock.refusal) == (CLOSE, "")


def test_a_transfer_that_is_half_through_comes_to_its_end_when_this_side_closes() -> None:
    """Else the client's Close would be taken for a piece of a message."""
    piece = transfer(b"x" * 1000)
    knock = admitted().say(piece[:300])
    knock.door.leave()
    assert knock.say(piece[300:500], piece[500:] + FLOW + CLOSE).passed == piece + CLOSE


def test_leaving_before_the_client_has_said_anything_changes_nothing() -> None:
    knock = Knock()
    knock.door.leave()
    knock.door.admit()
    assert knock.say(HEADER + OPEN).passed == HEADER + OPEN


# ---- what costs much and brings no message

LINK = attach(7) + DETACH + BEGIN + END
PIECE = transfer(b"x" * 100)


def in_turns(knock: Knock, stream: bytes, allowance: int) -> list[bytes]:
    """What goes through turn by turn."""
    knock.door.allowance = allowance
    found = [knock.door.take(stream)]
    while knock.door.enough:
        assert knock.door.costly or not found[-1], "it stops only because of those"
        found.append(knock.door.take(b""))
    return found


@pytest.mark.parametrize("allowance,turns", [(1, 13), (4, 4), (12, 2), (13, 1)])
def test_so_many_begins_attaches_detaches_and_ends_go_through_at_once_and_any_number_of_others(
    allowance: int, turns: int
) -> None:
    stream = (PIECE + FLOW + LINK + PIECE) * 3 + attach(9)
    found = in_turns(admitted(), stream, allowance)
    assert (b"".join(found), len(found)) == (stream, turns)


def test_without_an_allowance_nothing_goes_through_from_the_first_of_them_on() -> None:
    knock = admitted()
    knock.door.allowance = 0
    assert knock.door.take(PIECE + FLOW + LINK) == PIECE + FLOW
    assert (knock.door.enough, knock.door.costly) == (True, False)
    assert in_turns(knock, PIECE, 100) == [LINK + PIECE]


def test_one_that_is_written_in_another_way_counts_as_well() -> None:
    """Breaks when a client passes the bound by the long form of a descriptor."""
    attaches = b"".join(frame(b"\x00\x80" + bytes(7) + b"\x12" + attach(number)[11:]) for number in range(5))
    assert len(in_turns(admitted(), attaches, 0)) == 5


@given(some.lists(some.sampled_from([PIECE, FLOW, *cut(LINK, ()), BEGIN, attach(1, text(300))]), max_size=12), some.data())
def test_what_goes_through_does_not_depend_on_the_turns_it_takes(frames: list[bytes], data: some.DataObject) -> None:
    stream, knock = b"".join(frames), admitted()
    found = b""
    for read in cut(stream, data.draw(some.lists(some.integers(0, 5000), max_size=4))):
        found += b"".join(in_turns(knock, read, data.draw(some.integers(1, 3))))
    assert (found, knock.refusal) == (stream, "")


# ---- flows that ask for a state


def consumes(handle: int, role: bytes = TRUE) -> bytes:
    """An attach of a client that receives."""
    return performative(0x12, b"\xa1\x01r", b"\x52" + bytes((handle,)), role)


LINKS = BEGIN + attach(0) + attach(7) + consumes(8) + consumes(9, b"\x56\x01")


@pytest.mark.parametrize(
    "said, asks",
    [
        (echo(), (0, 0)),
        (echo(b"\x56\x01"), (0, 0)),
        (echo(TRUE, NULL), (0, 0)),
        (echo(TRUE, mapped(b"\xa3\x01k", TRUE)), (0, 0)),
        (echo(TRUE, mapped(b"\xa3\x01k", text(300))), (0, 0)),
        (echo(handle=b"\x52\x07"), (0, 7)),
        (echo(handle=uint(7)), (0, 7)),
        (echo(wide=True), (0, 0)),
        (echo(extended=b"more"), (0, 0)),
        (echo(handle=NULL), (0, None)),
        (flow(NULL, NULL, NULL, NULL, TRUE, handle=NULL, channel=3), (3, None)),
    ],
)
def test_a_flow_with_echo_asks_for_the_state_of_the_link_that_it_names_or_of_its_session(
    said: bytes, asks: tuple[int, int | None]
) -> None:
    for ahead in (b"", PIECE, FLOW):
        for knock in (admitted().say(LINKS + ahead + said), admitted().say(*cut(LINKS + ahead + said, range(400)))):
            assert [*knock.asked, *((channel, None) for channel in knock.door.asked_of)] == [asks]
            assert knock.refusal == ""
            assert knock.passed == LINKS + ahead + said


@pytest.mark.parametrize(
    "said",
    [
        *(FLOW, flow(), flow(uint(7), b"\x52\x41", NULL, TRUE), flow(uint(7), b"\x52\x41", NULL, TRUE, FALSE)),
        *(echo(FALSE), echo(NULL), echo(b"\x56\x00"), echo(FALSE, TRUE), echo(FALSE, wide=True), echo(NULL, NULL)),
        pytest.param(echo(ZERO), id="a number"),
        pytest.param(echo(handle=FALSE), id="a handle that is no number"),
        pytest.param(flow(uint(7), text(3), NULL, FALSE, TRUE), id="a credit that is no number"),
        pytest.param(frame(b"\x00\x53\x13\x45"), id="no fields"),
    ],
)
def test_other_flows_ask_for_nothing(said: bytes) -> None:
    knock = admitted().say(LINKS + said * 2)
    assert (knock.asked, knock.door.asked_of, knock.passed, knock.refusal) == (set(), set(), LINKS + said * 2, "")


def test_nobody_can_say_the_state_of_a_link_on_which_the_client_receives_or_that_is_not_there() -> None:
    """Breaks when a consumer that asks with each flow has to wait for its turn, for an answer that never comes."""
    said = b"".join(echo(handle=b"\x52" + bytes((handle,))) for handle in (3, 8, 9)) + echo(channel=1)
    knock = admitted().say(LINKS)
    assert in_turns(knock, said, 0) == [said]
    assert (knock.door.asked, knock.door.costly) == (set(), False)
    for end in (performative(0x16, b"\x52\x07", TRUE), END):
        assert admitted().say(LINKS + end + echo(handle=b"\x52\x07")).asked == set()
    assert admitted().say(LINKS + performative(0x16, b"\x52\x07") + attach(7) + echo(handle=b"\x52\x07")).asked == {(0, 7)}


def test_who_asks_ahead_of_the_answer_to_its_open_is_heard() -> None:
    knock = Knock(admits=False).say(HEADER + OPEN + LINKS + echo() + echo(handle=NULL))
    assert (knock.asked, knock.door.asked_of, list(knock.door.begun)) == ({(0, 0)}, {0}, [0])


def test_so_many_states_may_be_asked_for_at_once_and_each_of_them_as_often_as_one_likes() -> None:
    """Breaks when a client makes the broker say the states of thousands of links in one turn."""
    first, other, session = echo(), echo(handle=b"\x52\x07"), echo(handle=NULL)
    stream = PIECE + (first + other) * 50 + session + PIECE
    for allowance, turns in ((0, 102), (1, 51), (2, 2), (3, 1)):
        knock = admitted().say(LINKS)
        found = in_turns(knock, stream, allowance)
        assert (b"".join(found), len(found)) == (stream, turns)
        assert knock.door.asked_of == {0}
        assert in_turns(knock, stream, 2) == [stream], "it waits for the state of the session still"
        knock.door.asked_of.clear()
        assert len(in_turns(knock, stream, 2)) == 2


def test_the_channels_of_sessions_are_told_in_their_order() -> None:
    begins = b"".join(frame(BEGIN[8:], channel=channel) for channel in (5, 2, 9))
    assert list(admitted().say(begins + END).door.begun) == [5, 2, 9]


# ---- dispositions that name many deliveries

ACCEPTED = b"\x00\x53\x24\x45"
NOTED = b"\x00\x53\x27\xc0\x08\x03\x41\x40\xc1\x03\x02\xa1\x00"
"""An outcome with fields."""


def disposition(first: bytes, last: bytes = NULL, outcome: bytes = ACCEPTED, *, role: bytes = TRUE) -> bytes:
    return performative(0x15, role, first, last, TRUE, outcome)


def naming(n_deliveries: int) -> bytes:
    """A disposition that names so many."""
    return disposition(uint(0), uint(n_deliveries - 1))


@pytest.mark.parametrize("outcome", [ACCEPTED, NOTED], ids=["plain", "with fields"])
@pytest.mark.parametrize("role", [TRUE, FALSE, b"\x56\x01"])
@pytest.mark.parametrize(
    "first, last, names",
    [
        (uint(5), NULL, 1),
        (uint(5), uint(5), 1),
        (uint(5), uint(7), 3),
        (uint(0xFFFFFFFE), uint(1), 4),
        (b"\x52\x05", NULL, 1),
        (b"\x52\x05", b"\x52\x07", 3),
        (b"\x52\x05", uint(0x105), 257),
        (ZERO, b"\x52\x07", 8),
        (ZERO, ZERO, 1),
        (b"\x80" + bytes(7) + b"\x05", uint(7), 8),
        (uint(5), b"\x53\x07", 1),
    ],
)
def test_what_dispositions_name_is_added_up_and_beyond_a_bound_the_rest_waits(
    first: bytes, last: bytes, names: int, role: bytes, outcome: bytes
) -> None:
    """Breaks when proton makes millions of events in one turn: a disposition of 34 bytes may name all of a session. Another one
    names nearly all that may be named, so that ten like this one tell whether any of them counts for one too many or too few."""
    one = disposition(first, last, outcome, role=role)
    most, beyond = (naming(limits.NAMED_AT_ONCE + more - 10 * names) + one * 10 for more in (0, 1))
    knock = admitted()
    assert (knock.door.take(most + PIECE), knock.door.enough, knock.door.costly) == (most + PIECE, False, False)
    assert (knock.door.take(beyond), knock.door.enough) == (beyond, False), "nothing follows"
    assert knock.door.take(beyond + PIECE + one) == beyond
    assert (knock.door.enough, knock.door.costly) == (True, True)
    assert (knock.door.take(b""), knock.door.enough, knock.refusal) == (PIECE + one, False, "")


def test_dispositions_that_name_one_delivery_each_go_through_up_to_the_bound() -> None:
    said = disposition(uint(5)) * limits.NAMED_AT_ONCE
    knock = admitted()
    assert (knock.door.take(said + PIECE), knock.door.enough) == (said + PIECE, False)
    assert (knock.door.take(disposition(uint(5)) + said + PIECE), knock.door.enough) == (disposition(uint(5)) + said, True)


def test_a_client_that_settles_five_thousand_one_by_one_in_one_read_does_not_wait() -> None:
    for last in (NULL, uint(77_000)):
        said = disposition(uint(77_000), last) * 5000
        assert (in_turns(admitted(), said, 16), admitted().say(said).refusal) == ([said], "")


@pytest.mark.parametrize(
    "fields",
    [(), (TRUE,), (TRUE, b"\x1f"), (TRUE, b"\x1f", uint(7), TRUE, ACCEPTED)],
    ids=["none", "a role", "a first delivery of no type", "the same and more"],
)
def test_a_disposition_that_names_nothing_is_refused_wherever_it_is(fields: tuple[bytes, ...]) -> None:
    said = performative(0x15, *fields)
    alone, behind = admitted().say(FLOW, said), admitted().say(FLOW + said)
    assert (alone.refusal, alone.passed) == ("amqp:decode-error", FLOW)
    assert behind.reason == alone.reason


@given(
    some.lists(
        some.sampled_from([PIECE, FLOW, disposition(uint(0), uint(15_000)), disposition(ZERO, uint(9000)), disposition(uint(3))]),
        max_size=12,
    ),
    some.lists(some.integers(0, 5000), max_size=4),
)
def test_what_dispositions_name_moves_no_decision(frames: list[bytes], places: list[int]) -> None:
    stream, knock = b"".join(frames), admitted()
    assert b"".join(b"".join(in_turns(knock, read, 16)) for read in cut(stream, places)) == stream
    assert knock.refusal == ""


# ---- any bytes, any cuts

_FRAMES = some.sampled_from(
    [
        *(OPEN, BEGIN, FULL, FLOW, DISPOSITION, DETACH, END, CLOSE, HEARTBEAT, UNKNOWN, SIXTY_KB_OF_EMPTY_LISTS),
        *(disposition(uint(1), uint(9)), disposition(b"\x52\x01", NULL, NOTED), disposition(b"\x52\x01", b"\x52\x09")),
        *(transfer(b"x"), transfer(b"y" * 300, wide=True), attach(3, text(300)), init(), sasl.HEADER, HEADER),
        *(echo(), echo(handle=NULL), echo(wide=True), attach(0)),
        *(AZURE, BUNDLE, transfer(b"z" * 30, wide=True, says=FORMAT), transfer(b"z", extended=b"----", says=FORMAT)),
        *(
            frame(OPEN[8:], kind=1),
            b"\x00\x00\x00\x03\x02\x00\x00\x00",
            frame(b"\x00\x53\x12\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45"),
        ),
    ]
)
_STARTS = some.sampled_from([b"", HEADER, HEADER + OPEN, sasl.HEADER + init() + HEADER + OPEN, sasl.HEADER])


@some.composite
def streams(draw: some.DrawFn) -> bytes:
    """Mostly right: a beginning, frames, and some bytes of it changed."""
    data = bytearray(draw(_STARTS) + b"".join(draw(some.lists(_FRAMES, max_size=8))) + draw(some.binary(max_size=20)))
    for place, value in draw(some.lists(some.tuples(some.integers(0, 1 << 17), some.integers(0, 255)), max_size=3)):
        if data:
            data[place % len(data)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "broken",
    [
        frame(b"\x00\x53\x12\xc0\xff\x02\xa1\x01l\x52\x01"),
        performative(0x12, b"\xa1\x01l", b"\x52\x00", FALSE, *[NULL] * 300, b"\xb1\x00\x00\xff\xff"),
    ],
    ids=["fields longer than their frame", "a text longer than its list"],
)
def test_why_a_frame_is_refused_does_not_depend_on_what_came_in_the_same_read(broken: bytes) -> None:
    alone, behind = admitted().say(FLOW, broken), admitted().say(FLOW + broken)
    assert alone.refusal == "amqp:decode-error"
    assert alone.reason == behind.reason


@given(streams() | some.binary(max_size=100), some.lists(some.integers(0, 1 << 17), max_size=30), some.booleans())
def test_any_bytes_in_any_cuts_give_the_same_decision(data: bytes, places: list[int], admits: bool) -> None:
    whole, pieces = Knock(admits=admits).say(data), Knock(admits=admits).say(*cut(data, places))
    assert (pieces.refusal, pieces.reason, bytes(pieces.door.output)) == (whole.refusal, whole.reason, bytes(whole.door.output))
    assert pieces.passed == whole.passed
    assert (pieces.asked, pieces.door.asked_of, pieces.door.begun) == (whole.asked, whole.door.asked_of, whole.door.begun)
    assert FORMAT in data or whole.passed in data, "what goes through is a part of the stream"
    assert len(whole.passed) <= len(data)


@given(streams(), some.lists(some.integers(0, 1 << 17), max_size=5))
def test_what_goes_through_is_for_proton_to_judge_and_no_more(data: bytes, places: list[int]) -> None:
    """Proton takes it or ends the connection; it decodes no property of it that has more values than the bound."""
    knock = Knock().say(*cut(data, places))
    transport, connection = proton.Transport(proton.Transport.SERVER), proton.Connection()
    transport.bind(connection)
    position = 0
    while position < len(knock.passed) and (room := transport.capacity()) > 0:
        transport.push(knock.passed[position : position + room])
        position += room
    assert str(connection.remote_properties).count("[]") <= limits.PERFORMATIVE_VALUES
