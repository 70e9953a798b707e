"""The life of a route: what it asks, when it fetches, what it forgets, and when it tries again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import limits
from broker.core.commands import DYNAMIC_SINCE, RouteAdd, RouteDel
from broker.core.definitions import Nothing, OriginMade, RouteGone, RouteMade
from broker.core.interest import Interest
from broker.core.propagation import Wish
from broker.core.queues.lane import Lane
from broker.core.records import BadBatch, Batch, BatchBuilder, Kind
from broker.core.routes import (
    FIRST_DELAY_S,
    IDLE_LOOKS,
    LOOK_RUNS,
    LOOK_S,
    MOST_DELAY_S,
    Ask,
    Attach,
    Connect,
    Drop,
    Effect,
    Finish,
    Forget,
    GoOn,
    Note,
    Place,
    RouteLife,
    Wake,
    asking_for,
    minus,
    source_queue,
)
from broker.core.state import CannotApply, State
from tests.broker.core.definitions import Change, queue, state_of
from tests.broker.core.test_interest import interest, passed
from tests.broker.core.test_origins import change, put, release
from tests.broker.core.test_parts import apply
from tests.broker.core.test_state import rebuilt

PLACE = Place("s", "u-q", "$sequences/s/u-q/r", 3, "c")
FOUND = {"store": "s", "queue": "u-q", "address": "$sequences/s/u-q/r", "epoch": 3, "cluster": "c"}


def route(**more: Any) -> RouteAdd:
    return RouteAdd(**{"uuid": "r", "kind": "queue", "source": "amqp:a:1", "exchange": "x", "key": "q"} | more)


def running(life: RouteLife) -> RouteLife:
    life.start()
    life.connected()
    life.answered(FOUND)
    life.noted("")
    life.attached()
    return life


def life(route: RouteAdd, epoch: int = 0) -> RouteLife:
    return RouteLife(route, lambda key: epoch)


def test_a_route_asks_where_its_queue_is_has_that_noted_and_fetches_from_there() -> None:
    one = life(route(), epoch=3)
    assert one.start() == [Connect()]
    assert one.connected() == [Ask("FIND", "sequence", "", {"queue": "q", "taker": "r"})]
    assert one.answered(FOUND) == [Note(PLACE)]
    assert (PLACE.key, one.state) == ("s/u-q", "Preparing")
    assert one.noted("") == [Attach(PLACE)]
    assert one.attached() == [Wake(LOOK_S)]
    assert (one.state, one.error) == ("Operational", "")


def test_a_route_of_an_exchange_makes_its_queue_and_its_binding_first_where_they_are_not_there() -> None:
    one = life(route(kind="exchange", key="a.#"))
    one.start()
    (made,) = one.connected()
    assert made == Ask("CREATE", "queue", "qpid-route.r", {"durable": True, "replicate": "all"}, (409,))
    binding = {"exchange": "x", "queue": "qpid-route.r", "key": "a.#"}
    assert one.refused(409, "it exists already") == [Ask("CREATE", "binding", "", binding, (409,))]
    asked = {"queue": "qpid-route.r", "taker": "r", "exchange": "x", "key": "a.#"}
    assert one.answered({}) == [Ask("FIND", "sequence", "", asked)]
    assert one.refused(404, "no queue") == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.error == "no queue"


def test_a_source_that_makes_no_queue_for_a_route_is_quoted_with_the_reason_and_not_with_what_follows_from_it() -> None:
    one = life(route(kind="exchange"))
    one.start()
    for status, text, error in ((404, "no queue", "too many queues"), (403, "no binding", "no binding")):
        one.connected()
        one.refused(409, "too many queues")
        one.refused(status, text)
        assert one.error == error
    one.connected()
    one.answered({})
    one.refused(404, "no exchange")
    assert one.error == "no exchange"


@pytest.mark.parametrize("refused", [True, False])
def test_a_route_of_an_exchange_that_it_is_not_bound_to_does_not_run(refused: bool) -> None:
    one = life(route(kind="exchange", key="a.#"))
    one.start()
    one.connected()
    one.refused(409, "the queue exists already")
    if refused:
        one.refused(409, "the exchange has as many bindings as it may have")
    else:
        one.answered({})
    assert one.answered(FOUND | {"bound": False}) == [Drop(), Wake(FIRST_DELAY_S)]
    unbound = "the route's queue is not bound to the source's exchange 'x'"
    assert one.error == ("the exchange has as many bindings as it may have" if refused else unbound)


def running_from_an_exchange() -> RouteLife:
    one = life(route(kind="exchange", key="a.#"))
    one.start()
    one.connected()
    for body in ({}, {}, FOUND | {"bound": True}):
        one.answered(body)
    one.noted("")
    one.attached()
    return one


def look_while_idle(one: RouteLife) -> list[Effect]:
    """What it asks when nothing is held; that is seldom, because it costs both brokers something all the time."""
    for _ in range(IDLE_LOOKS - 1):
        assert one.woken([]) == [Wake(LOOK_S)]
    return one.woken([])


def test_a_route_of_an_exchange_looks_whether_it_is_bound_and_is_bound_again() -> None:
    one = running_from_an_exchange()
    asked = {"store": "s", "queue": "u-q", "runs": [], "exchange": "x", "key": "a.#"}
    bind = Ask("CREATE", "binding", "", {"exchange": "x", "queue": "qpid-route.r", "key": "a.#"}, (409,))
    assert look_while_idle(one) == [Ask("LEFT", "sequence", "", asked)]
    assert one.answered({"runs": [], "bound": True}) == [Wake(LOOK_S)]
    look_while_idle(one)
    assert one.answered({"runs": []}) == [Wake(LOOK_S)], "a source of an earlier release does not say"
    one.woken([(1, 2)])
    assert one.answered({"runs": [2, 1], "bound": False}) == [Forget([(1, 1)]), bind]
    assert one.answered({}) == [Wake(LOOK_S)]
    look_while_idle(one)
    assert one.answered({"runs": [], "bound": False}) == [bind]
    assert one.refused(404, "there is no such exchange") == [Drop(), Wake(FIRST_DELAY_S)]
    assert (one.error, one.state) == ("there is no such exchange", "Waiting")


def test_a_route_of_an_exchange_seldom_asks_whether_it_is_bound_while_nothing_is_held() -> None:
    one = running_from_an_exchange()
    for _ in range(3):
        assert isinstance(one.woken([(1, 2)])[0], Ask)
        one.answered({"runs": [1, 2], "bound": True})
    for _ in range(IDLE_LOOKS - 1):
        assert one.woken([]) == [Wake(LOOK_S)]
    assert isinstance(one.woken([(1, 2)])[0], Ask), "what is held is asked for at once"
    one.answered({"runs": [], "bound": True})
    assert isinstance(look_while_idle(one)[0], Ask)


DYNAMIC = route(kind="dynamic", key="")
WHICH = Ask("QUERY", "exchange", "x")
PAGE = Ask("QUERY", "binding", "", {"exchange": "x", "queue": "qpid-route.r", "after": ["x", "qpid-route.r"], "count": 100})
TOPIC = {"items": [{"uuid": "x-u", "exchangeType": "topic"}]}


def bound(*keys: str, **more: Any) -> dict[str, Any]:
    """A page of the source's bindings."""
    arguments = passed("d")
    return {"items": [{"exchange": "x", "queue": "qpid-route.r", "key": key, "arguments": arguments} for key in keys]} | more


def dynamic(wants: Interest, *keys: str) -> tuple[RouteLife, list[Effect]]:
    """A dynamic route that has read these bindings of its source, and what it wants then."""
    one = RouteLife(DYNAMIC, lambda key: 0, wants)
    one.start()
    one.connected()
    for body in ({}, FOUND, TOPIC):
        one.answered(body)
    return one, one.answered(bound(*keys))


def wanting(*keys: str) -> Interest:
    made = interest()
    for key in keys:
        made.put(f"u-{key}", "q", key, {})
    return made


def test_a_dynamic_route_makes_its_queue_and_its_bindings_before_it_fetches() -> None:
    one = RouteLife(DYNAMIC, lambda key: 0, wanting("a", "b"))
    one.start()
    assert one.connected() == [Ask("CREATE", "queue", "qpid-route.r", {"durable": True, "replicate": "all"}, (409,))]
    found = Ask("FIND", "sequence", "", {"queue": "qpid-route.r", "taker": "r", "bindings": "x"})
    assert one.refused(409, "it exists") == [found]
    assert one.answered(FOUND) == [WHICH]
    assert one.answered(TOPIC) == [PAGE]
    after = ["x", "qpid-route.r", "b"]
    assert one.answered(bound("b", next=after)) == [Ask("QUERY", "binding", "", {**PAGE.body, "after": after})]
    wishes = one.answered(bound("c"))
    assert wishes == [Wish("c", None), Wish("a", passed("d"))]
    assert one.bound("a", 200, "") == []
    assert one.bound("c", 200, "") == [Note(PLACE)]
    assert one.noted("") == [Attach(PLACE)]
    assert one.attached() == [Wake(LOOK_S)]
    assert (one.state, one.last_error) == ("Operational", "")


def test_a_binding_is_asked_for_by_its_key_and_withdrawn_by_its_key() -> None:
    names = {"exchange": "x", "queue": "qpid-route.r", "key": "k"}
    assert asking_for(DYNAMIC, Wish("k", {"n": 1})) == Ask("CREATE", "binding", "", names | {"arguments": {"n": 1}})
    assert asking_for(DYNAMIC, Wish("k", None)) == Ask("DELETE", "binding", "", names)


def test_a_dynamic_route_follows_the_interest_while_it_runs_and_only_then() -> None:
    wants = wanting("a")
    one, effects = dynamic(wants, "a")
    assert effects == [Note(PLACE)]
    one.noted("")
    one.attached()
    assert one.touched(wants.put("u-b", "q", "b", {})) == [Wish("b", passed("d"))]
    assert one.bound("b", 403, "ann may not") == []
    assert (one.error, one.last_error) == ("", "binding 'b' of 'x': ann may not")
    assert one.failed("lost") == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.last_error == "lost"
    assert one.touched(wants.put("u-c", "q", "c", {})) == []
    assert one.bound("b", 200, "") == []
    assert one.go_on() == []
    assert life(route()).touched(["a"]) == []
    assert life(route()).bound("a", 200, "") == []
    assert life(route()).go_on() == []


def test_no_answer_about_a_binding_ends_the_connection() -> None:
    one, effects = dynamic(wanting("a"))
    assert effects == [Wish("a", passed("d"))]
    assert one.bound("a", 0, "no answer in 5 s") == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.last_error == "no answer in 5 s"


def test_many_bindings_are_compared_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BINDINGS_COMPARED", 1)
    wants = wanting("a", "b")
    one, effects = dynamic(wants, "a", "b")
    assert effects == [GoOn()]
    assert one.touched(["a"]) == [Note(PLACE)], "it is asked to go on once"
    assert one.go_on() == []
    one.noted("")
    one.attached()
    assert one.touched(["a", "b"]) == [GoOn()]
    assert one.go_on() == []


def test_a_dynamic_route_reads_its_bindings_again_when_somebody_else_has_changed_them() -> None:
    one, _ = dynamic(wanting("a"), "a")
    one.noted("")
    one.attached()
    asked = {"store": "s", "queue": "u-q", "runs": [], "bindings": "x"}
    assert look_while_idle(one) == [Ask("LEFT", "sequence", "", asked)]
    assert one.answered({"runs": [], "exchange": "x-u", "bindings": 1}) == [WHICH], "a request of before may have come late"
    assert one.answered(TOPIC) == [PAGE]
    assert one.answered(bound("a")) == [Wake(LOOK_S)]
    look_while_idle(one)
    assert one.answered({"runs": [], "exchange": "x-u", "bindings": 1}) == [Wake(LOOK_S)]
    one.woken([(1, 2)])
    assert one.answered({"runs": [2, 1], "exchange": "x-2", "bindings": 0}) == [Forget([(1, 1)]), WHICH]
    assert one.answered({"items": [{"uuid": "x-2", "exchangeType": "topic"}]}) == [PAGE]
    assert one.answered(bound()) == [Wish("a", passed("d")), Wake(LOOK_S)]
    assert one.bound("a", 200, "") == []
    one.woken([(2, 1)])
    assert one.answered({"runs": [2, 1], "exchange": "", "bindings": 0}) == [WHICH]
    assert one.refused(404, "there is no exchange named 'x'") == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.last_error == "there is no exchange named 'x'"


def test_a_dynamic_route_whose_bindings_change_all_the_time_sees_that_the_exchange_of_the_source_is_another_one() -> None:
    wants = wanting("a")
    one, _ = dynamic(wants, "a")
    one.noted("")
    one.attached()
    assert one.touched(wants.put("u-b", "q", "b", {})) == [Wish("b", passed("d"))]
    one.woken([(1, 2)])
    assert one.answered({"runs": [1, 2], "exchange": "x-u", "bindings": 5}) == [Wake(LOOK_S)], "the number says nothing now"
    one.woken([(1, 2)])
    assert one.answered({"runs": [2, 1], "exchange": "x-2", "bindings": 1}) == [
        Forget([(1, 1)]),
        Drop(),
        Wake(FIRST_DELAY_S),
    ]
    assert one.last_error == "the source's exchange 'x' was deleted, or created again"


def test_a_dynamic_route_asks_seldom_for_what_was_refused() -> None:
    one, _ = dynamic(wanting("a"))
    assert one.bound("a", 403, "no") == [Note(PLACE)]
    one.noted("")
    one.attached()
    for _ in range(IDLE_LOOKS - 1):
        assert [type(effect) for effect in one.woken([(1, 2)])] == [Ask]
        assert one.answered({"runs": [1, 2]}) == [Wake(LOOK_S)]
    one.woken([(1, 2)])
    assert one.answered({"runs": [1, 2]}) == [WHICH], "all bindings are read a second time, with which it asks again too"
    one.answered(TOPIC)
    assert one.answered(bound()) == [Wish("a", passed("d")), Wake(LOOK_S)]
    assert one.bound("a", 403, "no") == []
    for _ in range(IDLE_LOOKS - 1):
        one.woken([(1, 2)])
        assert one.answered({"runs": [1, 2]}) == [Wake(LOOK_S)]
    one.woken([(1, 2)])
    assert one.answered({"runs": [1, 2]}) == [Wish("a", passed("d")), Wake(LOOK_S)]


def test_a_dynamic_route_that_is_idle_sees_what_others_changed_although_a_binding_is_refused() -> None:
    one, _ = dynamic(wanting("a", "b"), "a")
    assert one.bound("b", 403, "no") == [Note(PLACE)]
    one.noted("")
    one.attached()
    assert [type(effect) for effect in look_while_idle(one)] == [Ask]
    assert one.answered({"runs": [], "exchange": "x-u", "bindings": 1}) == [WHICH], "the second reading"
    one.answered(TOPIC)
    one.answered(bound("a"))
    one.bound("b", 403, "no")
    for _ in range(2):
        look_while_idle(one)
        assert one.answered({"runs": [], "exchange": "x-u", "bindings": 1}) == [Wish("b", passed("d")), Wake(LOOK_S)]
        assert one.bound("b", 403, "no") == []
    look_while_idle(one)
    assert one.answered({"runs": [], "exchange": "x-u", "bindings": 0}) == [WHICH], "somebody has deleted the one that was there"


def test_a_dynamic_route_does_not_run_between_exchanges_of_different_types_or_within_a_cluster() -> None:
    wants = wanting("a")
    wants.become(interest("fanout"))
    one = RouteLife(DYNAMIC, lambda key: 0, wants)
    one.start()
    one.connected()
    one.answered({})
    one.answered(FOUND)
    assert one.answered(TOPIC) == [PAGE]
    assert one.answered(bound("b")) == [Wish("b", None)], "what is there is withdrawn, and nothing is made"
    assert one.bound("b", 200, "") == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.error.startswith("exchange 'x' is of type topic at the source, and of type fanout here")
    wants.become(interest("topic", "d", ("u", "q", "k", {})))
    two, _ = dynamic(wants, "k")
    two.noted("")
    two.attached()
    assert two.touched(wants.become(interest("direct", "d", ("u", "q", "k", {})))) == [Wish("k", None)]
    assert two.bound("k", 200, "") == [Drop(), Wake(FIRST_DELAY_S)]
    assert "of type direct here" in two.error
    three = RouteLife(DYNAMIC, lambda key: 0, interest(here="c"))
    three.start()
    three.connected()
    three.answered({})
    assert three.answered(FOUND) == [Drop(), Wake(FIRST_DELAY_S)]
    assert three.error == "the source is this cluster: a dynamic route fetches from another one"


def test_a_source_that_does_not_say_what_its_exchange_is_gets_no_bindings() -> None:
    one = RouteLife(DYNAMIC, lambda key: 0, wanting("a"))
    one.start()
    one.connected()
    one.answered({})
    assert one.answered(FOUND) == [WHICH]
    assert one.answered({"items": []}) == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.error == "the source does not say what its exchange 'x' is"


def test_a_dynamic_route_that_ends_has_its_queue_deleted() -> None:
    one = RouteLife(route(kind="dynamic", key="", ending=True), lambda key: 0)
    one.start()
    assert one.connected() == [Ask("DELETE", "queue", "qpid-route.r", {"ifUnused": False, "ifEmpty": False}, (404,))]
    assert one.answered({}) == [Drop(), Finish()]


def test_what_is_held_is_asked_for_and_what_has_left_the_source_is_forgotten() -> None:
    one = running(life(route()))
    assert one.woken([]) == [Wake(LOOK_S)]
    asked = {"store": "s", "queue": "u-q", "runs": [1, 5, 9, 2]}
    assert one.woken([(1, 5), (9, 2)]) == [Ask("LEFT", "sequence", "", asked)]
    assert one.answered({"runs": [4, 2]}) == [Forget([(1, 3), (9, 2)]), Wake(LOOK_S)]
    one.woken([(4, 2)])
    assert one.answered({"runs": [4, 2]}) == [Wake(LOOK_S)]


def test_while_there_is_more_than_can_be_asked_for_at_a_time_a_route_asks_more_often() -> None:
    one = running(life(route()))
    many = [(2 * number, 1) for number in range(LOOK_RUNS)]
    one.woken(many)
    (forget, wake) = one.answered({"runs": []})
    assert forget == Forget(many)
    assert isinstance(wake, Wake)
    assert 0 < wake.after_s < LOOK_S / 10
    one.woken(many[1:])
    assert one.answered({"runs": []}) == [Forget(many[1:]), Wake(LOOK_S)]


@pytest.mark.parametrize("answer", [{}, {"runs": [1]}, {"runs": [1, "2"]}, {"runs": [-1, 1]}])
def test_an_answer_that_says_nothing_forgets_nothing(answer: dict[str, Any]) -> None:
    one = running(life(route()))
    one.woken([(1, 5)])
    assert one.answered(answer) == [Drop(), Wake(FIRST_DELAY_S)]


@pytest.mark.parametrize("wrong", [{"store": ""}, {"queue": 1}, {"epoch": "3"}, {"epoch": True}])
def test_a_source_that_does_not_say_where_its_messages_are_gives_none(wrong: dict[str, Any]) -> None:
    one = life(route())
    one.start()
    one.connected()
    assert one.answered(FOUND | wrong) == [Drop(), Wake(FIRST_DELAY_S)]


def test_a_primary_that_was_deposed_gives_none() -> None:
    one = life(route(), epoch=4)
    one.start()
    one.connected()
    assert one.answered(FOUND) == [Drop(), Wake(FIRST_DELAY_S)]
    assert one.error == "the source's primary is of epoch 3, and there was one of epoch 4"


def test_it_tries_again_ever_more_seldom_until_it_has_run() -> None:
    one = life(route())
    one.start()
    waits = [effect.after_s for _ in range(9) for effect in one.failed("away") if isinstance(effect, Wake)]
    assert waits[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert waits[-1] == MOST_DELAY_S
    assert (one.woken([]), one.state) == ([Connect()], "Connecting")
    running(one)
    assert one.failed("a message came back") == [Drop(), Wake(MOST_DELAY_S)], "it has stopped at its first message"
    running(one).woken([])
    assert one.failed("lost") == [Drop(), Wake(FIRST_DELAY_S)]
    one.start()
    one.connected()
    one.answered(FOUND)
    assert one.noted("no room") == [Drop(), Wake(2 * FIRST_DELAY_S)]


@pytest.mark.parametrize("ends", [lambda one: one.answered({}), lambda one: one.refused(404, "no such queue")])
def test_a_route_that_ends_has_its_queue_deleted_first(ends: Any) -> None:
    one = life(route(kind="exchange", ending=True))
    one.start()
    (asked,) = one.connected()
    assert asked == Ask("DELETE", "queue", "qpid-route.r", {"ifUnused": False, "ifEmpty": False}, (404,))
    found: list[Effect] = ends(one)
    assert (found, one.state) == ([Drop(), Finish()], "Closed")


_RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=6)


def _sorted(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, count in sorted(runs):
        if not found or sum(found[-1]) < first:
            found.append((first, count))
    return found


def _members(runs: list[tuple[int, int]]) -> set[int]:
    return {sequence for first, count in runs for sequence in range(first, first + count)}


@given(_RUNS, _RUNS)
def test_runs_without_others_are_the_difference_of_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    runs, others = _sorted(one), _sorted(other)
    assert _members(minus(runs, others)) == _members(runs) - _members(others)


# ---- what the log says of routes


def made(uuid: str = "r", key: str = "q", **more: Any) -> Change:
    fields = {"op": "route-add", "uuid": uuid, "kind": "queue", "source": "amqp:a:1", "exchange": "x", "key": key, "needs": 6}
    return fields | more


def origin(queue: str, store: str = "s", drain: str = "r", **more: Any) -> Change:
    return {"op": "origin-add", "drain": drain, "store": store, "queue": f"{store}/{queue}", "into": "", "needs": 6} | more


def forget(state: State, number: int, *runs: tuple[int, int]) -> None:
    builder = BatchBuilder()
    for first, count in runs:
        builder.forget(number, first, count)
    assert builder
    assert not builder.only_dequeues
    apply(state, builder)


def test_a_route_is_there_once_and_a_checkpoint_has_it_with_what_is_held() -> None:
    state = state_of(queue("q"), made(), origin("one"))
    ((gone, why),) = change(state, made("other"))
    assert (isinstance(gone, Nothing), why) == (True, "this route exists already")
    assert change(state, made())[0][1] == "this route is so already"
    assert change(state, release("r"))[0][1] == "this is a route, and no drain: delete it"
    put(state, 2, (1, 9))
    forget(state, 2, (1, 3), (5, 2), (99, 1))
    forget(state, 77, (1, 1))
    assert (state.held[2].runs(), state.held_runs) == ([(4, 1), (7, 3)], 2)
    again = rebuilt(state)
    assert (again.definitions.routes, again.held[2].runs()) == (state.definitions.routes, [(4, 1), (7, 3)])
    ((ending, _),) = change(state, made(ending=True))
    assert isinstance(ending, RouteMade)
    assert ending.route.ending is True
    ((ended, _),) = change(state, RouteDel(uuid="r").to_dict())
    assert isinstance(ended, RouteGone)
    assert (state.held, state.held_runs, state.definitions.origins, state.definitions.routes) == ({}, 0, {}, {})
    assert change(state, RouteDel(uuid="r").to_dict())[0][1] == "there is no such route"


def test_a_queue_of_the_same_name_ends_the_origin_of_the_one_before_and_of_no_other_store() -> None:
    state = state_of(queue("q"), made(), origin("one"), origin("one", "t"), origin("one", drain="another"))
    put(state, 2, (1, 5))
    ((found, _),) = change(state, origin("two"))
    assert isinstance(found, OriginMade)
    assert [each.queue for each in found.gone] == ["s/one"]
    assert sorted(state.definitions.origins) == [("another", "s/one"), ("r", "s/two"), ("r", "t/one")]
    assert (2 in state.held, state.held_runs) == (False, 0)


def test_an_origin_knows_the_highest_epoch_of_its_source() -> None:
    state = state_of(queue("q"), made(), origin("one", sourceEpoch=4))
    assert change(state, origin("one", sourceEpoch=4))[0][1] == "this origin is known already"
    assert change(state, origin("one", sourceEpoch=3))[0][1] == "this origin is known already"
    put(state, 2, (1, 5))
    assert change(state, origin("one", sourceEpoch=5))[0][1] == ""
    assert (state.definitions.origins["r", "s/one"].source_epoch, state.held[2].count) == (5, 5)


def test_there_are_so_many_routes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTES", 1)
    state = state_of(made())
    assert change(state, made("other", "q2"))[0][1] == "there are 1 routes already"


def test_a_member_of_an_older_release_stops_before_a_route_and_before_what_is_forgotten() -> None:
    builder = BatchBuilder()
    builder.forget(2, 1, 1)
    with pytest.raises(CannotApply, match="a FORGOTTEN record needs machine version 6"):
        State(5).apply(Batch.parse(builder.seal(1, 1, 0)))
    builder = BatchBuilder()
    builder.define(made())
    with pytest.raises(CannotApply, match="'route-add' needs machine version 6"):
        State(5).apply(Batch.parse(builder.seal(1, 1, 0)))
    builder = BatchBuilder()
    builder.define(made(kind="dynamic", needs=DYNAMIC_SINCE))
    with pytest.raises(CannotApply, match="'route-add' needs machine version 10"):
        State(9).apply(Batch.parse(builder.seal(1, 1, 0)))
    builder = BatchBuilder()
    builder.forget(2, 1, 1)
    assert builder.seal(1, 1, 0, first_format=True)[:4] == b"USB2"


def test_a_forgotten_record_has_no_payload() -> None:
    builder = BatchBuilder()
    builder.large(1, 1, b"manifest")
    data = bytearray(builder.seal(1, 1, 0))
    data[48] = Kind.FORGOTTEN
    with pytest.raises(BadBatch, match="FORGOTTEN record with a payload"):
        Batch.parse(bytes(data), verified=True)


def test_what_is_alive_between_two_sequences_is_told_by_stretches() -> None:
    state = state_of(queue("q"))
    builder = BatchBuilder()
    builder.messages_for(1, 1).extend([b"m"] * 1000)
    apply(state, builder)
    builder = BatchBuilder()
    builder.dequeues_for(1).extend([*range(3, 6), *range(500, 900)])
    apply(state, builder)
    lane: Lane = state.messages[1].order.lanes[0]
    for first, end in ((1, 10), (4, 5), (4, 501), (1, 2000), (950, 960), (2000, 2001)):
        found = list(lane.alive_between(first, end))
        alive = [sequence for sequence in range(first, end) if lane.is_live(sequence)]
        assert [sequence for start, count in found for sequence in range(start, start + count)] == alive


def test_the_name_of_a_routes_own_queue_is_its_own() -> None:
    assert source_queue(route()) == "q"
    assert source_queue(route(kind="exchange")) == "qpid-route.r"
