"""What may stand in an ACL file, and what is said of anything else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.acl import lookups
from broker.core.acl.grammar import MAX_FILE, BadAcl, read

WORDS = st.sampled_from(
    [
        *("group", "acl", "quota", "allow", "deny-log", "all", "bob", "g", "queue", "create", "connection", "connections"),
        *("name=x", "host=1.2.3.4", "host=all", "5", "\\", "\n", "#", "routingkey=a.#", "queuemaxsizeupperlimit=9", "é"),
    ]
)


def test_quotas_from_elsewhere_stand_before_the_first_line_of_the_file() -> None:
    text = "quota connections 7 ann\nquota queues 8 all\n"
    found = read(text, "a.acl", connections_of_all=3, queues_of_all=4)
    assert [found.connections_of(user) for user in ("ann", "eve")] == [7, 3]
    assert found.queues_of("eve") == 8
    assert read("acl allow all all", "a.acl", queues_of_all=4).queues_of("eve") == 4
    assert read("acl allow all all", "a.acl").connections_of("eve") is None


def test_the_book_s_examples_are_read_without_a_warning() -> None:
    found = read(
        "# who\n"
        "group admin ted@QPID martin@QPID\n"
        "group user-consume martin@QPID ted@QPID\n"
        "group group2 kim@QPID user-consume rob@QPID\n"
        "group publisher group2 \\\n"
        "tom@QPID andrew@QPID \\\n"
        "   debbie@QPID\n"
        "\n   \n"
        "acl allow carlt@QPID create exchange name=carl.*\n"
        "acl allow rob@QPID create queue\n"
        "acl allow guest@QPID bind exchange name=amq.topic routingkey=stocks.rht.#\n"
        "acl allow user-consume create queue name=tmp.*\n"
        "acl allow publisher create queue name=RequestQueue\n"
        "acl allow fred@QPID create all\n"
        "acl allow bob@QPID all queue\n"
        "acl allow admin all\n"
        "acl allow all consume queue\n"
        "acl allow all bind exchange\n"
        "quota connections 10 admin\n"
        "acl deny all all\n",
        "book.acl",
    )
    assert found.warnings == ()
    assert found.rules[4].users == frozenset(
        f"{name}@QPID" for name in ("kim", "martin", "ted", "rob", "tom", "andrew", "debbie")
    )
    assert (found.mode.allowed, found.mode.line) == (False, 21)


@pytest.mark.parametrize(
    "text, said",
    [
        ("allow bob all", "a line begins with `group`, `acl`, `quota` or #, not with 'allow'"),
        (" # a comment", "a line begins with `group`, `acl`, `quota` or #, not with '#'"),
        ("acl", "a rule needs a permission, a user and an action"),
        ("acl allow bob", "a rule needs a permission, a user and an action"),
        ("acl permit bob all", "'permit' is not a permission: one of allow, allow-log, deny, deny-log"),
        ("acl allow b!b all", "'b!b' is not the name of a user"),
        ("acl allow bob Create queue", "'Create' is not an action: one of all, access, bind"),
        ("acl allow bob create topic", "'topic' is not an object: one of all, broker, connection"),
        ("acl allow bob create queue name", "'name' is not a property with a value"),
        ("acl allow bob create queue name=", "'name=' is not a property with a value"),
        ("acl allow bob create queue nam=x", "'nam' is not a property: one of alternate,"),
        ("acl allow bob create queue name=x name=y", "property 'name' is given twice"),
        (
            "acl allow bob create queue queuemaxsizeupperlimit=1k",
            "'1k' is not a limit for queuemaxsizeupperlimit: it must be a whole number",
        ),
        ("acl allow all all queue", "a rule for all users and all actions is the mode of the whole file"),
        ("acl allow all create connection", "a rule about `create connection` names the property host, and no other"),
        ("acl allow all create connection host=1.2.3.4 name=x", "a rule about `create connection` names the property host"),
        ("acl allow all create connection host=nowhere", "'nowhere' is not an IP address (names are not looked up)"),
        ("acl allow all create connection host=1.2.3.9,1.2.3.4", "'1.2.3.9,1.2.3.4' is not a range of addresses"),
        ("acl allow all create connection host=1.2.3.4,::1", "'1.2.3.4,::1' is not a range of addresses"),
        ("acl allow bob all \\", "only a group can continue on the next line"),
        ("acl allow bob all \\ queue", "a \\ may only be the last character of a line"),
        ("acl allow bøb all", "only ASCII characters may stand in an ACL file"),
        ("acl allow bob create queue name=" + "x" * 1024, "a line has at most 1024"),
        ("group", "a group needs a name in the same line"),
        ("group \\", "a group needs a name in the same line"),
        ("group a@b c", "'a@b' is not the name of a group"),
        ("group all bob", "`all` means every user, so it cannot be the name of a group"),
        ("group g all", "`all` means every user, so it cannot be in a group"),
        ("group g", "group 'g' has no members"),
        ("group g b,c", "'b,c' is not the name of a user"),
        ("quota queues 5", "a quota needs a kind, a number and a user"),
        ("quota messages 5 bob", "'messages' is not a kind of quota: one of connections, queues"),
        ("quota queues -1 bob", "'-1' is not a quota: it must be a whole number from 0 to 65530"),
        ("quota queues 65531 bob", "'65531' is not a quota"),
    ],
)
def test_a_wrong_line_is_told_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(BadAcl) as error:
        read(f"# first\n{text}\nacl deny all all\n", "a.acl")
    assert str(error.value).startswith("a.acl:2: ")
    assert said in str(error.value)


def test_a_group_goes_on_only_with_members() -> None:
    assert read("group g \\\n  bob\nacl allow g all\n", "a.acl").rules[0].users == frozenset({"bob"})
    with pytest.raises(BadAcl, match=r"a\.acl:2: the line should go on with members of group 'g'"):
        read("group g bob \\\n   \\\nann\n", "a.acl")
    with pytest.raises(BadAcl, match=r"a\.acl:2: there is a group 'g' already"):
        read("group g bob\ngroup g ann\n", "a.acl")
    with pytest.raises(BadAcl, match=r"the last line ends with \\, and no line follows"):
        read("group g bob \\\n", "a.acl")
    with pytest.raises(BadAcl, match="an ACL file has at most"):
        read("#" * (MAX_FILE + 1), "a.acl")


@pytest.mark.parametrize(
    "rule, why",
    [
        ("acl allow bob delete broker", "this broker never checks `delete broker`"),
        ("acl allow bob create queue exchangename=x", "`create queue` is never checked with exchangename"),
        ("acl allow bob access exchange alternate=a queuename=b", "`access exchange` is never checked with alternate, queuename"),
        ("acl allow bob all all paging=true", "nothing that this broker checks has the properties paging"),
        ("acl allow all create link", "`create link` is allowed by rules that name a user or a group alone"),
    ],
)
def test_a_rule_that_can_never_match_is_read_and_told(rule: str, why: str) -> None:
    found = read(f"{rule}\nacl allow all all\n", "a.acl")
    assert found.warnings == (f"a.acl:1: {why}: the rule is never used",) or why in found.warnings[0]
    assert len(found.rules) == 1


def test_only_the_last_rule_for_everybody_and_everything_is_the_mode() -> None:
    found = read("acl allow all all\nacl deny-log all all\n", "a.acl")
    assert (found.mode.allowed, found.mode.logged, found.mode.line) == (False, True, 2)
    assert found.decide("bob", "consume", "queue", {"name": "q"}).line == 1


def test_every_lookup_names_actions_objects_and_properties_that_the_grammar_has() -> None:
    for (action, kind), properties in lookups.LOOKUPS.items():
        assert (action in lookups.ACTIONS, kind in lookups.OBJECTS, properties <= lookups.PROPERTIES) == (True, True, True)


@given(st.lists(WORDS, max_size=40).map(" ".join))
def test_whatever_stands_in_a_file_it_is_rules_or_refused(text: str) -> None:
    with suppress(BadAcl):
        found = read(text, "a.acl")
        lines = range(len(text.splitlines()) + 1)
        assert found.decide("bob", "create", "queue", {"name": "x", "queuemaxsize": 3}).line in lines
        assert found.decide_connection("bob", "1.2.3.4").line in lines
