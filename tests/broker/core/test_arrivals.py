"""The messages of a link are checked by their layout, with the result of a check of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import arrivals, message
from broker.core.arrivals import Arrivals, _Noted
from broker.core.message import BadMessage

ANN, BOB = b"ann@QPID", b"bob@QPID"


def sent(body: Any = "it", **fields: Any) -> bytes:
    return bytes(proton.Message(body=body, **fields).encode())


class Counting(bytes):
    """A message that counts how often it is copied, and single bytes of it are read: that is what a check does, while a
    comparison of layouts does neither."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        self.read += not isinstance(at, slice)
        return super().__getitem__(at)

    def __bytes__(self) -> bytes:
        self.read += 1
        return super().__bytes__()


def checked(link: Arrivals, messages: list[bytes]) -> int:
    """How many of these messages the link checks by themselves. They are without fault and say no time."""
    counting = list(map(Counting, messages))
    assert link.look(counting) == ([], False)
    return sum(each.read > 0 for each in counting)


@st.composite
def batches(draw: st.DrawFn) -> list[list[bytes]]:
    """Batches of messages that differ from a few others in their body, in some bytes, or in their length."""
    usual = st.fixed_dictionaries(
        {"body": st.sampled_from(["it", "that", b"\x00" * 300, None])},
        optional={
            "id": st.sampled_from(["a", "b", 7]),
            "user_id": st.sampled_from([ANN, BOB, b"\xff" * 300]),
            "ttl": st.sampled_from([0, 5]),
            "creation_time": st.sampled_from([0.0, 5.0]),
            "expiry_time": st.sampled_from([0.0, 5.0]),
            "durable": st.booleans(),
            "annotations": st.sampled_from(
                [{proton.symbol("x-opt-delivery-delay"): 3}, {proton.symbol("x-opt-whatever-delay"): 3}]
            ),
        },
    )
    kinds = [sent(**fields) for fields in draw(st.lists(usual, min_size=1, max_size=3))]

    def one() -> bytes:
        data = bytearray(draw(st.sampled_from(kinds)))
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(data[: draw(st.sampled_from([len(data)] * 4 + [len(data) // 2]))])

    return [[one() for _ in range(draw(st.integers(0, 6)))] for _ in range(draw(st.integers(1, 4)))]


def has_fault(data: bytes, names: set[bytes] | None) -> bool:
    """The slow way."""
    try:
        message.check(data)
        return names is not None and message.is_of_others(data, names)
    except BadMessage:
        return True


@settings(max_examples=400)
@given(batches(), st.sampled_from([None, {ANN}]))
def test_what_was_seen_on_a_link_changes_no_result(arriving: list[list[bytes]], names: set[bytes] | None) -> None:
    """Breaks when a byte that a check depends on is not among the places that are compared."""
    link = Arrivals(names)
    for batch in arriving + arriving:
        bad, timed = link.look(batch)
        alone = [Arrivals(names).look([each]) for each in batch]
        assert bad == [at for at, each in enumerate(batch) if has_fault(each, names)]
        assert timed == any(each for _, each in alone)


def test_messages_of_one_layout_are_checked_once() -> None:
    link = Arrivals({ANN})
    assert checked(link, [sent(id="m1", user_id=ANN)] * 3) == 3, "the first batch brings the layout"
    assert checked(link, [sent(id=f"m{number}", user_id=ANN, body=body) for number in range(9) for body in ("so", "it")]) == 0
    assert link.look([sent(id="m1", user_id=BOB)]) == ([0], True)
    assert checked(link, [sent(id="m1", user_id=ANN)]) == 0, "a fault does not disturb what is known"


def test_only_the_size_of_a_body_of_one_text_or_binary_may_differ() -> None:
    link = Arrivals(None)
    assert checked(link, [sent("it")]) == 1
    assert checked(link, [sent("x" * length) for length in range(256)]) == 0
    assert checked(link, [sent("x" * length) for length in (256, 1000)]) == 2, "the size takes four bytes now"
    assert checked(link, [sent("x" * length) for length in (300, 3, 70_000)]) == 0
    assert link.look([sent("x") + b"x", sent("xx")[:-1]]) == ([0, 1], True)
    assert [checked(link, [sent([body])]) for body in (1, 10_000, "x", 1)] == [1, 1, 1, 0]
    assert checked(link, [sent(5)]) == 1
    assert checked(link, [sent(6)]) == 0


def test_a_message_with_longer_properties_is_checked_and_then_known_too() -> None:
    link = Arrivals(None)
    for expected in (1, 0):
        for subject in ("a", "bc", "def"):
            assert checked(link, [sent(subject=subject)]) == expected
    assert checked(link, [sent(subject=subject) for subject in ("a", "ghij", "a", "xyz")]) == 1


def test_a_link_keeps_a_few_layouts_and_forgets_the_oldest() -> None:
    link = Arrivals(None)
    layouts = [
        sent(id="m1" if kind & 1 else None, properties={"n": 1} if kind & 2 else None, group_id="g" if kind & 4 else None)
        for kind in range(arrivals.MAX_LAYOUTS + 1)
    ]
    for expected in (1, 0):
        for known in layouts[:-1]:
            assert checked(link, [known]) == expected
    assert checked(link, [*layouts, *layouts]) == 2
    assert checked(link, layouts) == 1


def test_a_message_that_says_a_time_is_known_as_such() -> None:
    link = Arrivals(None)
    for ttl in (1, 2, 3):
        assert link.look([sent(ttl=ttl)]) == ([], True)
    assert link.look([sent(ttl=4), sent("x")]) == ([], True)
    assert link.look([sent("x")]) == ([], False)
    for name in ("x-opt-whatever-delay", "x-opt-delivery-delay") * 2:
        annotated = sent(annotations={proton.symbol(name): 3})
        assert link.look([annotated]) == ([], name == "x-opt-delivery-delay")


def test_a_link_whose_messages_have_little_in_common_stops_keeping_layouts() -> None:
    link = Arrivals(None)
    for number in range(2 * arrivals.MAX_BALANCE // arrivals.LEARNING_COSTS):
        assert checked(link, [sent(subject="x" * number)]) == 1
    assert checked(link, [sent(subject="x")] * 10) == 10
    assert checked(link, [sent(subject="x")] * 10) == 10


def test_results_are_kept_up_to_a_limit() -> None:
    users = [f"user{number:05}".encode() for number in range(arrivals.MAX_RESULTS + 1)]
    link, usual = Arrivals(set(users)), [sent(user_id=users[0])] * 2 * arrivals.LEARNING_COSTS
    assert checked(link, usual) == len(usual)
    others = [sent(user_id=user) for user in users[1:]]
    for other in others[:-1]:
        assert checked(link, [*usual, other]) == 1
    assert checked(link, [*usual, *others[:-1]]) == 0
    assert checked(link, [*usual, others[-1]]) == 1, "the limit is reached: the others are forgotten"
    assert checked(link, [others[-1], *usual]) == len(usual)


def test_large_and_scattered_layouts_are_not_kept() -> None:
    link = Arrivals(None)
    large = sent("it", annotations={proton.symbol("x-opt-note"): "n" * arrivals.MAX_PLACE_BYTES})
    assert checked(link, [large]) == checked(link, [large]) == 1
    scattered = b"\x00\x53\x75\xa0\x09 in parts" * (arrivals.MAX_PLACES + 1)
    assert checked(link, [scattered]) == checked(link, [scattered]) == 1


@pytest.mark.parametrize(
    "data",
    [b"\x00\x53\x75\xa0\x00" * 100_000, sent("it", annotations={proton.symbol("x-opt-note"): "n" * 500_000})],
    ids=["sections", "annotations"],
)
def test_of_a_message_few_places_are_noted_however_many_are_read(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when each of the first messages of a link takes a second if it has so many sections: no client is served then."""
    most, note = 0, _Noted._note

    def noting(self: _Noted, places: Sequence[int]) -> None:
        nonlocal most
        try:
            note(self, places)
        finally:
            most = max(most, len(self.read))

    monkeypatch.setattr(_Noted, "_note", noting)
    assert Arrivals(None).look([data]) == ([], False)
    assert 0 < most <= 2 * arrivals.MAX_PLACE_BYTES
