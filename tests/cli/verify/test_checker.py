"""The checker against a deliberately dumb one, and against histories in which one thing is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.verify.core import checker as module
from cli.verify.core.checker import MAX_EXAMPLES, MAX_NUMBER, Checker, Report
from cli.verify.core.measures import Measures

ONE = (0, 0)
HOUR_S = 3600.0


def checker(consumers: int = 1, *, sent: int = 10, attached: bool = True) -> Checker:
    """A checker that has heard of so many messages sent and accepted."""
    made = Checker(["jobs"], 1, consumers)
    made.sent(ONE, 0, sent)
    made.accepted(ONE, 0, sent)
    for consumer in range(consumers if attached else 0):
        made.attached(consumer, 0.0)
    return made


def receive(heard: Checker, *numbers: int, consumer: int = 0, at_s: float = 1.0) -> None:
    for number in numbers:
        heard.received(consumer, ONE, number, 1, at_s)


def report(heard: Checker) -> Report:
    return heard.report(Measures())


def wrong(heard: Checker) -> dict[str, int]:
    """The figures that are not as they should be."""
    said = report(heard)
    names = ("lost", "unexplained", "unexpected", "altered", "reordered")
    return {name: getattr(said, name) for name in names if getattr(said, name)}


# ---- one thing wrong, or none


def test_a_history_in_which_all_is_well_has_no_faults() -> None:
    heard = checker()
    receive(heard, *range(10))
    said = report(heard)
    assert said.faults() == []
    assert (said.sent, said.accepted, said.received, said.lost, said.duplicated) == (10, 10, 10, 0, 0)


def test_a_message_that_was_accepted_and_never_came_is_lost() -> None:
    heard = checker()
    receive(heard, *range(6), *range(7, 10))
    assert wrong(heard) == {"lost": 1}
    assert report(heard).faults() == ["1 message accepted and never received, such as number 6 of producer 0 on jobs"]


def test_a_message_that_was_altered_is_no_lost_one_besides() -> None:
    heard = checker()
    receive(heard, *range(10))
    heard.altered(ONE, 4)
    assert wrong(heard) == {"altered": 1}
    assert "number 4 of producer 0 on jobs" in report(heard).faults()[0]


def test_two_messages_that_changed_places_are_one_that_came_too_late() -> None:
    heard = checker()
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9)
    assert wrong(heard) == {"reordered": 1}
    assert "number 3 of producer 0 on jobs" in report(heard).faults()[0]


def test_a_message_that_comes_twice_without_a_reason_is_unexplained_and_no_reordering() -> None:
    heard = checker()
    receive(heard, *range(10), 4)
    assert wrong(heard) == {"unexplained": 1}
    assert report(heard).duplicated == 1


def test_a_message_that_nobody_sent_is_unexpected() -> None:
    heard = checker()
    receive(heard, *range(10), 10)
    heard.strange("a message 'hello' on jobs")
    assert wrong(heard) == {"unexpected": 2}
    assert report(heard).examples["unexpected"] == ["number 10 of producer 0 on jobs", "a message 'hello' on jobs"]


def test_a_producer_or_a_number_that_cannot_be_is_unexpected_and_takes_no_memory() -> None:
    heard = checker()
    receive(heard, *range(10), -1, MAX_NUMBER)
    heard.received(0, (7, 0), 0, 3, 1.0)
    assert wrong(heard) == {"unexpected": 5}
    assert report(heard).received == 10


def test_a_message_that_was_sent_once_and_refused_must_not_come() -> None:
    heard = Checker(["jobs"], 1, 1)
    heard.attached(0, 0.0)
    heard.sent(ONE, 0, 2)
    heard.refused(ONE, 0, 2)
    heard.sent_again(ONE, 1)
    receive(heard, 0, 1)
    assert wrong(heard) == {"unexpected": 1}
    assert report(heard).refused == 2


def test_a_report_is_a_line_of_figures() -> None:
    heard = checker()
    receive(heard, *range(9), 3)
    assert str(report(heard)) == (
        "10 accepted of 10 sent (0 times again), 9 received, 1 lost, 1 duplicated (1 unexplained), 0 unexpected, 0 altered, "
        "0 reordered, 0 refused; longest gap 0.00 s"
    )


def test_what_is_altered_beyond_recognition_is_counted_without_a_name() -> None:
    heard = checker()
    receive(heard, *range(10))
    heard.altered((7, 0), 3)
    heard.altered(ONE, MAX_NUMBER)
    assert report(heard).faults() == ["2 messages received with another body than they were sent with"]


def test_of_strange_messages_a_few_are_named_and_all_are_counted() -> None:
    heard = checker(sent=0)
    for number in range(100):
        heard.strange(f"a message {number}")
    assert report(heard).unexpected == 100
    assert report(heard).examples["unexpected"] == [f"a message {number}" for number in range(MAX_EXAMPLES)]


# ---- what explains


def test_a_message_may_come_as_often_as_it_was_sent() -> None:
    heard = checker()
    heard.sent_again(ONE, 4)
    heard.sent_again(ONE, 4)
    receive(heard, *range(10), 4, 4)
    said = report(heard)
    assert (said.duplicated, said.unexplained, said.sent_again) == (2, 0, 2)
    receive(heard, 4)
    assert report(heard).unexplained == 1


def test_where_producers_send_once_sending_again_explains_no_duplicate_and_promises_no_place() -> None:
    heard = Checker(["q"], 1, 1, once=True)
    heard.attached(0, 0.0)
    heard.sent((0, 0), 0, 10)
    heard.sent_again((0, 0), 3, 2)
    heard.accepted((0, 0), 0, 10)
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9)
    assert wrong(heard) == {}
    receive(heard, 4)
    assert wrong(heard) == {"unexplained": 1}
    assert report(heard).sent_again == 2


def test_a_message_may_come_again_when_its_acceptance_was_not_confirmed() -> None:
    heard = checker()
    receive(heard, 0, 1, 2)
    heard.unconfirmed(ONE, 2)
    heard.detached(0, 2.0)
    heard.attached(0, 3.0)
    receive(heard, 2, 3, 4, 5, 6, 7, 8, 9)
    assert wrong(heard) == {}
    assert report(heard).duplicated == 1


def test_what_explains_a_duplicate_may_be_heard_after_it() -> None:
    heard = checker()
    receive(heard, *range(10), 8, 9)
    heard.sent_again(ONE, 8, 2)
    assert wrong(heard) == {}


def test_what_was_sent_and_accepted_may_be_heard_after_it_came() -> None:
    heard = Checker(["jobs"], 1, 1)
    heard.attached(0, 0.0)
    receive(heard, 0, 1)
    assert heard.missing() == 0
    heard.sent(ONE, 0, 3)
    heard.accepted(ONE, 0, 3)
    assert heard.missing() == 1
    assert wrong(heard) == {"lost": 1}


def test_a_message_without_an_outcome_that_came_is_recovered_and_one_that_did_not_is_unknown() -> None:
    heard = checker()
    heard.sent(ONE, 10, 3)
    receive(heard, *range(11))
    said = report(heard)
    assert (said.recovered, said.unknown, said.faults()) == (1, 2, [])


# ---- order


def test_a_queue_s_only_consumer_sees_it_in_order_over_several_links() -> None:
    heard = checker()
    receive(heard, 0, 1, 2, 4, 5)
    heard.detached(0, 2.0)
    heard.attached(0, 3.0)
    receive(heard, 3, 6, 7, 8, 9)
    assert wrong(heard) == {"reordered": 1}


def test_of_a_message_that_was_sent_twice_nobody_knows_the_place() -> None:
    heard = checker()
    heard.sent_again(ONE, 3)
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9)
    assert wrong(heard) == {}


def test_competing_consumers_each_see_their_share_in_order() -> None:
    heard = checker(2)
    receive(heard, 1, 2, 5, 6, 9, consumer=1)
    receive(heard, 0, 3, 4, 7, 8, consumer=0)
    assert wrong(heard) == {}
    heard = checker(2)
    receive(heard, 1, 5, 2, 6, 9, consumer=1)
    receive(heard, 0, 3, 4, 7, 8, consumer=0)
    assert wrong(heard) == {"reordered": 1}


def test_of_competing_consumers_one_gets_what_another_had_when_its_link_ended() -> None:
    heard = checker(2)
    receive(heard, 0, 2, 4, 6, consumer=0)
    receive(heard, 1, consumer=1)
    heard.detached(1, 2.0)
    receive(heard, 3, 5, 7, 8, 9, consumer=0, at_s=2.0)
    assert wrong(heard) == {}


def test_the_end_of_a_link_explains_nothing_on_a_link_that_began_later() -> None:
    heard = checker(2)
    for consumer in (0, 1):
        heard.detached(consumer, 2.0)
        heard.attached(consumer, 3.0)
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9, consumer=0, at_s=4.0)
    assert wrong(heard) == {"reordered": 1}


def test_the_end_of_a_link_explains_nothing_that_came_long_before() -> None:
    heard = checker(2)
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9, consumer=0, at_s=1.0)
    heard.detached(1, HOUR_S)
    assert wrong(heard) == {"reordered": 1}


def test_a_link_that_a_client_gave_up_may_hold_messages_for_a_while() -> None:
    for at_s, faults in ((3.0, {}), (HOUR_S, {"reordered": 2})):
        heard = checker()
        receive(heard, 0, 1)
        heard.detached(0, 2.0, silent=True)
        heard.attached(0, 2.5)
        receive(heard, 4, 5, 2, 3, 6, 7, 8, 9, at_s=at_s)
        assert wrong(heard) == faults


def test_too_many_late_messages_and_ended_links_are_judged_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LATE", 4)
    monkeypatch.setattr(module, "MAX_ENDS", 4)
    heard = checker(2, sent=1000)
    for step in range(0, 1000, 2):
        receive(heard, step + 1, step, at_s=step * HOUR_S)
        heard.detached(1, (step + 1) * HOUR_S)
        heard.attached(1, (step + 1) * HOUR_S)
    assert len(heard._late) <= 4
    assert len(heard._ends) <= 4
    assert wrong(heard) == {"reordered": 500}


def test_what_came_late_is_not_judged_before_the_end_of_a_link_that_explains_it_can_be_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ENDS", 2)
    heard = checker(2)
    for at_s in (1.0, 2.0):
        heard.detached(0, at_s)
    heard.attached(0, 3.0)
    receive(heard, 0, 1, 2, 4, 3, 5, 6, 7, 8, 9, consumer=0, at_s=10.0)
    heard.detached(1, 10.4)
    assert wrong(heard) == {}


# ---- several streams


def test_each_producer_s_messages_on_each_queue_have_an_order_of_their_own() -> None:
    heard = Checker(["jobs", "orders"], 2, 1)
    heard.attached(0, 0.0)
    streams = [(producer, queue) for producer in range(2) for queue in range(2)]
    for stream in streams:
        heard.sent(stream, 0, 5)
        heard.accepted(stream, 0, 5)
    for stream in streams:
        heard.received(0, stream, 0, 4 if stream == (1, 1) else 5, 1.0)
    assert report(heard).faults() == ["1 message accepted and never received, such as number 4 of producer 1 on orders"]


def test_a_few_examples_are_named_and_not_a_thousand() -> None:
    said = report(checker(sent=1000))
    assert said.lost == 1000
    assert len(said.examples["lost"]) == MAX_EXAMPLES


# ---- any history at all


@dataclass
class Dumb:
    """Lists of everything, judged by definition. One producer, one queue, one consumer on one link."""

    sendings: list[int] = field(default_factory=list)
    accepted: set[int] = field(default_factory=set)
    came: list[int] = field(default_factory=list)
    unconfirmed: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        came, sendings, unconfirmed = Counter(self.came), Counter(self.sendings), Counter(self.unconfirmed)
        allowed = {number: max(sendings[number], 1) + unconfirmed[number] for number in came}
        firsts = list(dict.fromkeys(self.came))
        late = [number for at, number in enumerate(firsts) if any(number < before for before in firsts[:at])]
        sent = set(self.sendings)
        return {
            "sent": len(sent),
            "sent_again": len(self.sendings) - len(sent),
            "accepted": len(self.accepted),
            "received": len(came),
            "lost": len(self.accepted - came.keys()),
            "duplicated": len(self.came) - len(came),
            "unexplained": sum(max(count - allowed[number], 0) for number, count in came.items()),
            "unexpected": len(came.keys() - sent),
            "reordered": len([number for number in late if sendings[number] < 2 and not unconfirmed[number]]),
            "recovered": len((sent - self.accepted) & came.keys()),
            "unknown": len(sent - self.accepted - came.keys()),
        }


EVENT = st.tuples(st.sampled_from(["send", "again", "accept", "come", "come", "run", "unconfirmed"]), st.integers(0, 12))


@given(st.lists(EVENT, max_size=60))
def test_of_any_history_the_report_says_what_the_definitions_say(events: list[tuple[str, int]]) -> None:
    heard, dumb = Checker(["jobs"], 1, 1), Dumb()
    heard.attached(0, 0.0)
    made = 0
    for what, number in events:
        match what:
            case "send":
                heard.sent(ONE, made, number)
                dumb.sendings += range(made, made + number)
                made += number
            case "again" if number < made:
                heard.sent_again(ONE, number)
                dumb.sendings.append(number)
            case "accept" if number < made:
                heard.accepted(ONE, number)
                dumb.accepted.add(number)
            case "come":
                receive(heard, number)
                dumb.came.append(number)
            case "run":
                heard.received(0, ONE, number, 3, 1.0)
                dumb.came += range(number, number + 3)
            case "unconfirmed":
                heard.unconfirmed(ONE, number)
                dumb.unconfirmed.append(number)
    said = report(heard)
    figures = dumb.figures()
    assert {name: getattr(said, name) for name in figures} == figures
    assert heard.missing() == figures["lost"]
    assert bool(said.faults()) == any(figures[name] for name in ("lost", "unexplained", "unexpected", "reordered"))


@given(st.integers(2, 200), st.data())
def test_of_a_flawless_history_with_one_flaw_the_report_tells_that_flaw(count: int, data: st.DataObject) -> None:
    """Breaks when the checker is blind: the same history passes before, and must fail after."""
    came = list(range(count))
    heard = checker(sent=count)
    receive(heard, *came)
    assert report(heard).faults() == []
    flaw = data.draw(st.sampled_from(["lost", "altered", "reordered", "unexplained", "unexpected"]))
    at = data.draw(st.integers(0, count - 2))
    match flaw:
        case "lost":
            del came[at]
        case "reordered":
            came[at], came[at + 1] = came[at + 1], came[at]
        case "unexplained":
            came.insert(at + 1, came[at])
        case "unexpected":
            came.append(count)
    heard = checker(sent=count)
    receive(heard, *came)
    if flaw == "altered":
        heard.altered(ONE, at)
    assert wrong(heard) == {flaw: 1}
