"""How rules decide, mostly by the examples of the Qpid C++ broker book ("Authorization")."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.acl import rules
from broker.core.acl.grammar import read
from broker.core.acl.rules import Acl, Decision, Facts, substitute

SECOND = "group users alice bob charlie\n"


def acl(text: str) -> Acl:
    return read(text, "file.acl")


def allowed(found: Acl, user: str, action: str, kind: str, **facts: str | int) -> bool:
    return found.decide(user, action, kind, facts).allowed


def test_the_first_rule_that_matches_decides_whatever_comes_later() -> None:
    found = acl("group users alice bob charlie\nacl deny charlie create queue\nacl allow users create queue\nacl deny all all\n")
    assert allowed(found, "alice", "create", "queue", name="q")
    assert found.decide("charlie", "create", "queue", {"name": "q"}) == Decision(allowed=False, line=2)
    assert found.decide("dave", "create", "queue", {"name": "q"}) == Decision(allowed=False, line=4)


def test_a_rule_matches_only_when_each_of_its_properties_does() -> None:
    found = acl(
        "acl deny bob create exchange name=test durable=true\n"
        "acl deny-log bob create exchange name=myEx type=direct\n"
        "acl allow all all\n"
    )
    assert found.decide("bob", "create", "exchange", {"name": "test", "durable": "false", "type": "direct"}).line == 3
    assert found.decide("bob", "create", "exchange", {"name": "myEx", "durable": "true", "type": "direct"}) == Decision(
        allowed=False, logged=True, line=2
    )
    assert allowed(found, "bob", "create", "exchange", name="test"), "a rule about what the lookup does not tell says nothing"


def test_without_a_mode_what_no_rule_allows_is_denied() -> None:
    found = acl("acl allow bob consume queue name=work\n")
    assert allowed(found, "bob", "consume", "queue", name="work")
    assert found.decide("bob", "consume", "queue", {"name": "other"}) == Decision(allowed=False)
    assert not allowed(found, "eve", "access", "query", name="", schemaclass="queue")


def test_a_rule_without_an_object_is_about_all_objects_and_one_for_all_actions_about_all_of_them() -> None:
    found = acl("acl allow fred create all\nacl allow bob all queue\nacl allow admin all\n")
    assert allowed(found, "fred", "create", "exchange", name="x", type="topic")
    assert not allowed(found, "fred", "delete", "exchange", name="x")
    assert allowed(found, "bob", "delete", "queue", name="q")
    assert not allowed(found, "bob", "create", "exchange", name="x")
    assert allowed(found, "admin", "unbind", "exchange", name="x", routingkey="k", queuename="q")


def test_a_rule_for_all_actions_with_a_property_is_about_the_lookups_that_tell_it() -> None:
    found = acl("acl deny bob all all queuename=secret\nacl allow bob all\n")
    assert not allowed(found, "bob", "bind", "exchange", name="x", routingkey="k", queuename="secret")
    assert allowed(found, "bob", "consume", "queue", name="secret")


def test_a_star_at_the_end_of_a_value_stands_for_any_rest() -> None:
    found = acl("acl allow bob create queue name=bob*\nacl allow bob consume queue name=a*b\n")
    assert [allowed(found, "bob", "create", "queue", name=name) for name in ("bob", "bobQueue3", "bo", "xbob")] == [
        True,
        True,
    ] + [False] * 2
    assert [allowed(found, "bob", "consume", "queue", name=name) for name in ("a*b", "aab")] == [True, False]


@pytest.mark.parametrize(
    "key, fits",
    [("a.b", True), ("a.x.b", True), ("a.x.y.zz.b", True), ("a.b.", False), ("q.x.b", False), ("", False)],
)
def test_a_routing_key_is_matched_as_a_topic_exchange_would(key: str, fits: bool) -> None:
    found = acl("acl allow-log uHash1@COMPANY publish exchange name=X routingkey=a.#.b\nacl deny all all\n")
    decision = found.decide_publish("uHash1@COMPANY", "X", key)
    assert (decision.allowed, decision.logged, decision.line) == ((True, True, 1) if fits else (False, False, 2))
    assert found.decide_publish("uHash1@COMPANY", "X", key) is decision


def test_a_key_that_is_too_long_to_be_compared_matches_every_rule_that_denies_and_none_that_allows() -> None:
    """Breaks when a long subject, which fanout exchanges and bindings with # deliver, passes a rule that denies its prefix."""
    found = acl(
        "acl allow bob publish exchange name=X routingkey=secret.bob.#\n"
        "acl deny-log bob publish exchange name=X routingkey=secret.#\n"
        "acl allow bob publish exchange name=Y routingkey=#\n"
        "acl deny bob publish exchange name=Y routingkey=secret.#\n"
        "acl deny bob bind exchange routingkey=secret.*\n"
        "acl allow all all\n"
    )
    longest = "secret." + "x" * (limits.MAX_SUBJECT_CHARS - 7)
    assert found.decide_publish("bob", "X", longest) == Decision(allowed=False, logged=True, line=2)
    for key in (longest + "x", "secret.bob." + longest, "y" * 2000):
        assert found.decide_publish("bob", "X", key) == Decision(allowed=False, logged=True, line=2)
        assert found.decide_publish("bob", "Y", key) == Decision(allowed=True, line=3)
        assert found.decide_publish("bob", "Z", key) == Decision(allowed=True, line=6)
        assert not allowed(found, "bob", "bind", "exchange", name="X", routingkey=key, queuename="q")
    assert found.decide_publish("bob", "X", "y" * limits.MAX_SUBJECT_CHARS) == Decision(allowed=True, line=6)


@pytest.mark.parametrize("permission", ["allow", "deny"])
@pytest.mark.parametrize(
    "value, matching",
    [
        ("none", {"none", "reject"}),
        ("reject", {"none", "reject"}),
        ("ring_strict", {"ring_strict", "ring-strict"}),
        ("ring-*", {"ring_strict", "ring-strict"}),
        ("ring*", {"ring", "ring_strict", "ring-strict"}),
        ("ring", {"ring"}),
        ("other", {"other"}),
    ],
)
def test_a_rule_about_a_limit_policy_matches_it_by_all_of_its_names(permission: str, value: str, matching: set[str]) -> None:
    """Breaks when a client passes a rule by another name of the same policy."""
    found = acl(f"acl {permission} bob create queue policytype={value}\n")
    names = ("none", "reject", "ring", "ring_strict", "ring-strict", "other")
    assert {name for name in names if found.decide("bob", "create", "queue", {"policytype": name}).line == 1} == matching


def test_the_exchange_without_a_name_is_named_amq_default() -> None:
    found = acl("acl allow bob publish exchange name=amq.default routingkey=work\n")
    assert found.decide_publish("bob", "", "work").allowed
    assert not found.decide_publish("bob", "", "other").allowed
    assert not found.decide_publish("bob", "x", "work").allowed


@pytest.mark.parametrize(
    "text, user, exchange, by_key",
    [
        ("acl allow bob publish exchange name=x", "bob", "x", False),
        ("acl allow bob publish exchange name=x routingkey=a.*", "bob", "x", True),
        ("acl allow bob publish exchange name=y routingkey=a.*", "bob", "x", False),
        ("acl allow bob publish exchange routingkey=#", "bob", "x", False),
        ("acl allow eve publish exchange routingkey=a", "bob", "x", False),
        ("acl deny bob publish exchange name=x routingkey=a\nacl allow all all", "bob", "x", True),
        ("acl allow bob publish exchange name=x\nacl deny bob publish exchange name=x routingkey=a", "bob", "x", False),
    ],
)
def test_whether_a_message_must_be_looked_at_hangs_on_the_first_rule_that_fits_the_exchange(
    text: str, user: str, exchange: str, by_key: bool
) -> None:
    found = acl(text)
    assert [found.decides_by_key(user, exchange) for _ in range(2)] == [by_key, by_key], "it is kept"


def test_names_of_the_user_stand_in_for_variables_with_dots_and_at_signs_as_underscores() -> None:
    user = "bob.user@QPID.COM"
    assert substitute("${user}-${domain}-${userdomain}-${other}", user) == "bob_user-QPID_COM-bob_user_QPID_COM-${other}"
    found = acl(
        "acl allow all create queue name=${user}-work alternate=${user}-work2\n"
        "acl allow all bind exchange name=${userdomain} routingkey=${user}.* queuename=${user}-work\n"
    )
    assert allowed(found, user, "create", "queue", name="bob_user-work", alternate="bob_user-work2")
    assert not allowed(found, "eve@X", "create", "queue", name="bob_user-work", alternate="bob_user-work2")
    told: Facts = {"name": "bob_user_QPID_COM", "routingkey": "bob_user.x", "queuename": "bob_user-work"}
    assert found.decide(user, "bind", "exchange", told).allowed


@pytest.mark.parametrize("user", ["*@QPID", "bo*@QPID", "#@QPID"])
def test_a_users_name_is_no_wildcard(user: str) -> None:
    """Breaks when who may choose a name, by a token or a certificate, gets what all others have."""
    found = acl(
        "acl allow all consume queue name=${user}\n"
        "acl allow all publish exchange name=amq.topic routingkey=${user}.#\n"
        "acl allow all create queue name=${userdomain}\n"
    )
    assert not allowed(found, user, "consume", "queue", name="bob")
    assert not allowed(found, user, "publish", "exchange", name="amq.topic", routingkey="bob.orders")
    assert not allowed(found, user, "create", "queue", name="bob_QPID")
    assert allowed(found, user, "consume", "queue", name=user.partition("@")[0].replace("*", "_").replace("#", "_"))


def test_a_limit_that_is_passed_turns_an_allowance_into_a_denial_and_leaves_a_denial() -> None:
    found = acl(
        "acl allow bob create queue name=q* queuemaxsizelowerlimit=10 queuemaxsizeupperlimit=100 queuemaxcountupperlimit=5\n"
        "acl deny-log eve create queue queuemaxcountlowerlimit=7\n"
        "acl allow all all\n"
    )
    for size, count, fits in [(10, 5, True), (100, 0, True), (9, 5, False), (101, 5, False), (50, 6, False)]:
        decision = found.decide("bob", "create", "queue", {"name": "q", "queuemaxsize": size, "queuemaxcount": count})
        assert decision == Decision(allowed=fits, line=1)
    assert found.decide("bob", "create", "queue", {"name": "q", "queuemaxsize": 50}).line == 3, "no limit on what is not told"
    assert found.decide("eve", "create", "queue", {"queuemaxcount": 7}) == Decision(allowed=False, logged=True, line=2)


def test_replication_and_the_cluster_s_administration_are_allowed_only_by_rules_that_name_somebody() -> None:
    found = acl("group admins ann\nacl allow admins all\nacl allow repl create link\nacl allow all access\nacl allow all all\n")
    assert allowed(found, "ann", "access", "method", name="promote", schemaclass="ha")
    assert allowed(found, "ann", "create", "link")
    assert allowed(found, "repl", "create", "link")
    assert found.decide("eve", "create", "link", {}) == Decision(allowed=False)
    assert not allowed(found, "repl", "access", "method", name="promote", schemaclass="ha")
    assert allowed(found, "eve", "access", "query", name="", schemaclass="ha")
    assert not allowed(acl("acl deny all access method\nacl allow ann all"), "ann", "access", "method", name="x", schemaclass="y")


def test_who_connects_is_decided_by_rules_for_everybody_then_by_the_user_s_then_by_the_one_for_every_address() -> None:
    found = acl(
        "acl allow bob create connection host=10.0.0.9\n"
        "acl deny-log all create connection host=10.0.0.1,10.0.0.9\n"
        "acl deny bob create connection host=all\n"
        "acl allow eve create connection host=localhost\n"
        "acl deny all create connection host=all\n"
        "acl allow all all\n"
    )
    assert found.decide_connection("bob", "10.0.0.9") == Decision(allowed=False, logged=True, line=2)
    assert found.decide_connection("bob", "10.0.0.10") == Decision(allowed=False, line=3)
    assert found.decide_connection("eve", "127.0.0.1") == Decision(allowed=True, line=4)
    assert found.decide_connection("eve", "::ffff:127.0.0.1").allowed
    assert found.decide_connection("eve", "::1") == Decision(allowed=False, line=5)
    assert found.decide_connection("ann", "unknown") == Decision(allowed=False, line=5)
    assert acl("acl deny all all").decide_connection("ann", "1.2.3.4") == Decision(allowed=True), "what no rule decides"


def test_a_quota_of_the_user_comes_before_that_of_all_and_whom_none_names_gets_nothing() -> None:
    found = acl("group admin ted martin\nquota connections 10 admin\nquota connections 5 all\nquota queues 1 test@qpid\n")
    assert [found.connections_of(user) for user in ("ted", "martin", "eve")] == [10, 10, 5]
    assert [found.queues_of(user) for user in ("test@qpid", "eve")] == [1, 0]
    assert (Acl().connections_of("eve"), Acl().queues_of("eve")) == (None, None)


def test_what_is_kept_of_decisions_is_bounded_and_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_KEPT", 3)
    found = acl("acl allow bob publish exchange name=x routingkey=a\n")
    for _ in range(2):
        for key in "abcde":
            assert found.decide_publish("bob", "x", key).allowed == (key == "a")
        for user in ("bob", "eve", "ann", "tom", "kim"):
            assert not allowed(found, user, "consume", "queue", name="q")
            assert found.decides_by_key(user, "x") is (user == "bob")
    assert len(found._picked) <= 3
    assert len(found._by_key) <= 3
    assert len(found._published) <= 3


def test_a_decision_about_a_long_key_is_not_kept() -> None:
    """Breaks when a client that may send nothing fills the memory with the keys of its denials."""
    found = acl("acl allow bob publish exchange name=x routingkey=a\n")
    longest = "x" * limits.MAX_SUBJECT_CHARS
    for key in (longest, longest + "x"):
        assert [found.decide_publish("bob", "x", key).allowed for _ in range(2)] == [False, False]
    assert list(found._published) == [("bob", "x", longest)]


LONG = "a." * limits.MAX_SUBJECT_CHARS
RULES = st.lists(
    st.builds(
        lambda permission, user, what, name, key: f"acl {permission} {user} {what}{name}{key}",
        st.sampled_from(["allow", "deny", "allow-log", "deny-log"]),
        st.sampled_from(["bob", "eve", "all"]),
        st.sampled_from(["publish exchange", "all exchange", "publish all"]),
        st.sampled_from(["", " name=x", " name=y", " name=x*", " name=${user}", " name=amq.default"]),
        st.sampled_from(["", " routingkey=#", " routingkey=a", " routingkey=a.#", " routingkey=*", " routingkey=${user}"]),
    ).filter(lambda line: " all all " not in line),
    max_size=6,
)


@settings(max_examples=300)
@given(RULES, st.booleans(), st.sampled_from(["x", "xx", "bob", ""]))
def test_where_the_key_does_not_decide_every_key_gets_the_same_answer(lines: list[str], mode: bool, exchange: str) -> None:
    """Breaks when a link is decided once and for all though a message on it would have been denied, or allowed."""
    found = acl("\n".join([*lines, "acl allow all all" if mode else "acl deny all all"]))
    answers = {found.decide_publish("bob", exchange, key) for key in ("", "a", "a.b", "b.a", "bob", "#", LONG)}
    if not found.decides_by_key("bob", exchange):
        assert len(answers) == 1


def test_the_default_exchange_is_named_where_messages_are_rerouted_too() -> None:
    found = acl("acl deny bob reroute queue exchangename=amq.default\nacl allow bob reroute queue\n")
    assert not allowed(found, "bob", "reroute", "queue", name="q", exchangename="")
    assert allowed(found, "bob", "reroute", "queue", name="q", exchangename="x")


@pytest.mark.parametrize("wanted", ["QueuePolicy", "queuepolicy", "QUEUE*"])
def test_a_type_in_a_rule_is_the_same_in_any_case(wanted: str) -> None:
    """Breaks when a rule in lower case, as the reference says, denies nothing about a type that has capital letters."""
    found = acl(f"acl deny bob access method schemaclass={wanted}\nacl allow bob access method\n")
    assert not allowed(found, "bob", "access", "method", name="create", schemaclass="QueuePolicy")
    assert allowed(found, "bob", "access", "method", name="create", schemaclass="TopicPolicy")
