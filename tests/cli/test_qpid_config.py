"""`qpid-config`: words and options become requests; what the broker has becomes lists."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run

EXCHANGES = [
    {"name": "", "exchangeType": "direct", "durable": True, "replicate": "configuration"},
    {"name": "news", "exchangeType": "topic", "durable": False, "replicate": "none"},
    {"name": "orders", "exchangeType": "topic", "durable": False, "replicate": "all"},
]
HEADERS = {"name": "match", "exchangeType": "headers", "durable": False, "replicate": "all"}
QUEUES = [
    {
        "name": "jobs",
        "durable": True,
        "replicate": "all",
        "arguments": {"qpid.max_count": 9, "x": 1},
        "alternateExchange": "dead",
    },
    {"name": "mail", "durable": False, "replicate": "none", "arguments": {}},
]
BINDINGS = [
    {"exchange": "", "queue": "jobs", "key": "jobs", "arguments": {}},
    {"exchange": "news", "queue": "jobs", "key": "eu.#", "arguments": {}},
]


@pytest.fixture(scope="module")
def broker(peers: Any) -> Any:
    return peers(items={"exchange": EXCHANGES, "queue": QUEUES, "binding": BINDINGS})


@pytest.fixture
def asked(peers: Any, tmp_path: Path) -> Any:
    """Run qpid-config with these words, and give the one change that it asked the broker for."""

    def ask(*words: str) -> Any:
        record = tmp_path / "requests"
        broker = peers(items={"exchange": [*EXCHANGES, HEADERS], "queue": QUEUES, "binding": BINDINGS}, record=str(record))
        ran = run("qpid-config", *words, "-b", broker.name)
        assert (ran.status, ran.err) == (0, "")
        (change,) = [one for one in map(json.loads, record.read_text().splitlines()) if not one["what"].startswith("QUERY")]
        return change["what"], change["name"], change["body"]

    return ask


@pytest.mark.parametrize("option, argument", [("--max-queue-size", "qpid.max_size"), ("--flow-stop-size", "qpid.flow_stop_size")])
@pytest.mark.parametrize("given, nbytes", [("10G", 10 << 30), ("512MiB", 512 << 20), ("1 GB", 1 << 30), ("1000", 1000)])
def test_a_size_may_have_a_unit(asked: Any, option: str, argument: str, given: str, nbytes: int) -> None:
    assert asked("add", "queue", "new", option, given)[2]["arguments"] == {argument: nbytes}


@pytest.mark.parametrize("given", ["10X", "1.5G", "-1", "9" * 19, ""])
def test_what_is_no_size_is_refused_with_the_forms_that_are_allowed(given: str) -> None:
    ran = run("qpid-config", "add", "queue", "new", "--max-queue-size", given)
    assert ran.status == 2
    assert f"{given!r} is not a size from 0 to 9223372036854775807: write a whole number of bytes, or one with k, M" in ran.err


@pytest.mark.parametrize(
    "words",
    [["add", "queue", "new", f"--{option}", str(1 << 63)] for option in ("max-queue-count", "flow-stop-count")]
    + [["purge", "q", "--count", str(1 << 63)]],
)
def test_a_number_that_amqp_cannot_carry_is_wrong_usage(words: list[str]) -> None:
    ran = run("qpid-config", *words)
    assert (ran.status, "9223372036854775808 is not in the range" in ran.err) == (2, True), ran.err


def test_the_help_promises_nothing_of_durable_that_other_queues_have_not() -> None:
    assert "every queue survives a restart" in " ".join(run("qpid-config", "--help").out.split())


def test_without_words_there_is_an_overview(broker: Any) -> None:
    assert run("qpid-config", "-b", broker.name).out.splitlines() == [
        "Total Exchanges: 3",
        "          topic: 2",
        "        headers: 0",
        "         fanout: 0",
        "         direct: 1",
        "",
        "   Total Queues: 2",
        "        durable: 1",
        "    non-durable: 1",
    ]


def test_queues_are_listed_with_the_options_that_would_make_them(broker: Any) -> None:
    lines = run("qpid-config", "-b", broker.name, "queues").out.splitlines()
    assert (lines[0].split(), set(lines[1])) == (["Queue", "Name", "Attributes"], {"="})
    assert lines[2].split() == [
        *("jobs", "--durable", "--replicate=all", "--alternate-exchange=dead", "--max-queue-count=9", "--argument", "x=1")
    ]
    assert lines[3] == "mail"


def test_the_listed_options_can_be_given_back_in_a_shell(peers: Any) -> None:
    arguments = {"qpid.shared_msg_group": 1, "qpid.group_header_key": "my key", "note": "a b", "x": 1}
    queue = {"name": "jobs", "durable": False, "arguments": arguments, "alternateExchange": "dead letters"}
    exchange = {"name": "e", "exchangeType": "topic", "arguments": {"qpid.msg_sequence": 1, "qpid.ive": 0}}
    broker = peers(items={"queue": [queue], "exchange": [exchange]}).name
    listed = run("qpid-config", "queues", "-b", broker).out.splitlines()[2]
    assert shlex.split(listed) == [
        *("jobs", "--alternate-exchange=dead letters", "--argument", "note=a b", "--group-header=my key", "--shared-groups"),
        *("--argument", "x=1"),
    ]
    listed = run("qpid-config", "exchanges", "-b", broker).out.splitlines()[2]
    assert shlex.split(listed) == ["topic", "e", "--argument", "qpid.ive=0", "--sequence"]


def test_names_are_listed_without_their_control_characters(peers: Any) -> None:
    evil = {"name": "a\x9b2J\u2028b", "durable": False, "arguments": {"note": "\x1b[2J"}}
    bindings = [{"exchange": "", "queue": evil["name"], "key": "\x7fk\n", "arguments": {}}]
    hostile = peers(items={"exchange": [], "queue": [evil], "binding": bindings}).name
    assert run("qpid-config", "queues", "-b", hostile).out.splitlines()[2].split()[0] == "a\\x9b2J\\u2028b"
    lines = run("qpid-config", "queues", "-r", "-b", hostile).out.split("\n")
    assert lines == ["Queue 'a\\x9b2J\\u2028b'", "    bind [\\x7fk\\n] => ''", ""]
    for words in (["queues"], ["list", "queue"]):
        assert run("qpid-config", *words, "-b", hostile).out.replace("\n", "").isprintable()


def test_lists_are_filtered_by_name(broker: Any) -> None:
    lines = run("qpid-config", "-b", broker.name, "exchanges", "n*").out.splitlines()
    assert [line.split() for line in lines[2:]] == [["topic", "news"]]
    lines = run("qpid-config", "-b", broker.name, "queues", "[jk]obs").out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["jobs"]


def test_a_filter_that_matches_nothing_ends_with_1_as_in_the_original(broker: Any) -> None:
    for type in ("queue", "exchange"):
        ran = run("qpid-config", f"{type}s", "x*", "-b", broker.name)
        assert (ran.status, ran.err) == (1, f"qpid-config: no {type} matches 'x*'\n")
    ran = run("qpid-config", "queues", "x*", "--format", "json", "-b", broker.name)
    assert (ran.status, ran.out) == (1, "[]\n")


def test_bindings_are_shown_from_both_sides(broker: Any) -> None:
    queues = run("qpid-config", "queues", "-r", "-b", broker.name).out.splitlines()
    assert queues == ["Queue 'jobs'", "    bind [jobs] => ''", "    bind [eu.#] => news", "Queue 'mail'"]
    exchanges = run("qpid-config", "exchanges", "news", "-r", "-b", broker.name).out.splitlines()
    assert exchanges == ["Exchange 'news' (topic)", "    bind [eu.#] => jobs"]


def test_a_queue_is_made_with_level_limits_and_arguments(asked: Any) -> None:
    """Breaks when an option is taken and then not passed on."""
    options = ["--replicate", "all", "--durable", "--max-queue-count", "9", "--argument", "a=b", "--argument", "n=-3"]
    assert asked("add", "queue", "jobs", *options, "--alternate-exchange", "dead") == (
        "CREATE queue",
        "jobs",
        {
            "durable": True,
            "autoDelete": False,
            "exclusive": False,
            "replicate": "all",
            "alternateExchange": "dead",
            "arguments": {"qpid.max_count": 9, "a": "b", "n": -3},
        },
    )


def test_without_a_level_the_brokers_default_holds(asked: Any) -> None:
    """Breaks when the tool says "none" where the user has said nothing."""
    assert "replicate" not in asked("add", "queue", "plain")[2]


def test_what_the_broker_may_not_know_is_passed_on_for_it_to_refuse(asked: Any) -> None:
    assert asked("add", "queue", "r", "--limit-policy", "ring")[2]["arguments"] == {"qpid.policy_type": "ring"}


def test_the_brokers_refusal_is_the_line_that_is_printed(peers: Any) -> None:
    broker = peers(answers={"CREATE queue": [501, "queue 'r': the policy 'ring' is not available", None]})
    ran = run("qpid-config", "add", "queue", "r", "--limit-policy", "ring", "-b", broker.name)
    assert (ran.status, ran.err) == (1, "qpid-config: queue 'r': the policy 'ring' is not available\n")


@pytest.mark.parametrize(
    "words, why",
    [
        (
            ["add", "queue", "r", "--argument", f"a={10**23}"],
            f"CREATE queue r cannot be sent: AMQP has no type for a number like {10**23}",
        ),
        (["add", "queue", "\udcff"], "CREATE queue \\udcff cannot be sent: a text in it is not UTF-8"),
    ],
)
def test_what_amqp_cannot_carry_is_refused_in_a_line(peers: Any, words: list[str], why: str) -> None:
    ran = run("qpid-config", *words, "-b", peers().name)
    assert (ran.status, ran.err) == (1, f"qpid-config: {why}\n")


def test_an_exchange_is_made_of_its_type(asked: Any) -> None:
    what, name, body = asked("add", "exchange", "topic", "news", "--replicate", "configuration")
    assert (what, name, body["exchangeType"], body["replicate"]) == ("CREATE exchange", "news", "topic", "configuration")


@pytest.mark.parametrize(
    "options, empty, unused",
    [
        ([], True, True),
        (["--force"], False, False),
        (["--force-if-not-empty"], False, True),
        (["--force-if-used"], True, False),
    ],
)
def test_a_queue_in_use_is_removed_by_force_alone(asked: Any, options: list[str], empty: bool, unused: bool) -> None:
    assert asked("del", "queue", "jobs", *options) == ("DELETE queue", "jobs", {"ifEmpty": empty, "ifUnused": unused})


def test_an_exchange_is_removed(asked: Any) -> None:
    assert asked("del", "exchange", "news") == ("DELETE exchange", "news", None)


@pytest.mark.parametrize(
    "words, key, arguments",
    [
        (["eu.#"], "eu.#", {}),
        ([], "", {}),
        (["k", "all", "a=1", "b=x"], "k", {"x-match": "all", "a": 1, "b": "x"}),
        (["any", "a=1", "b=2"], "", {"x-match": "any", "a": 1, "b": 2}),
        (["all", "a=1"], "", {"x-match": "all", "a": 1}),
        (["any", "all", "a=1"], "any", {"x-match": "all", "a": 1}),
        (["all"], "", {"x-match": "all"}),
    ],
)
def test_bindings_are_made_with_key_or_headers(asked: Any, words: list[str], key: str, arguments: dict[str, Any]) -> None:
    body = {"exchange": "match", "queue": "jobs", "key": key, "arguments": arguments}
    assert asked("bind", "match", "jobs", *words) == ("CREATE binding", None, body)


@pytest.mark.parametrize("key", ["all", "any"])
def test_a_key_may_be_a_word_about_headers(asked: Any, key: str) -> None:
    """Breaks when messages with this key are lost, because the queue is bound with another one."""
    body = {"exchange": "orders", "queue": "jobs", "key": key, "arguments": {}}
    assert asked("bind", "orders", "jobs", key) == ("CREATE binding", None, body)


def test_a_binding_is_removed(asked: Any) -> None:
    assert asked("unbind", "news", "jobs", "eu.#") == (
        "DELETE binding",
        None,
        {"exchange": "news", "queue": "jobs", "key": "eu.#"},
    )


def test_binding_a_replicated_queue_to_an_unreplicated_exchange_warns(broker: Any) -> None:
    """Breaks when the loss of a binding comes as a surprise after the first failover."""
    ran = run("qpid-config", "bind", "news", "jobs", "k", "-b", broker.name)
    assert ran.status == 0
    assert ran.err.startswith("warning: queue 'jobs' is replicated, but exchange 'news' is not")
    assert run("qpid-config", "bind", "news", "mail", "k", "-b", broker.name).err == ""


@pytest.mark.parametrize("type", ["queue", "exchange"])
def test_a_binding_of_a_user_who_may_not_look_at_it_is_done(peers: Any, type: str) -> None:
    """Breaks when a script takes a binding that was made for one that was refused."""
    denied = {f"QUERY {type}": [403, f"ann@QPID may not: access query name=jobs schemaclass={type}", None]}
    broker = peers(items={"exchange": EXCHANGES, "queue": QUEUES}, answers=denied)
    ran = run("qpid-config", "bind", "news", "jobs", "k", "-b", broker.name)
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_anything_is_listed_by_its_properties(broker: Any) -> None:
    out = run("qpid-config", "list", "queue", "--show-property", "name", "-b", broker.name).out
    assert out.split() == ["name", "====", "jobs", "mail"]


def test_json_is_what_the_broker_said(broker: Any) -> None:
    assert json.loads(run("qpid-config", "queues", "-b", broker.name, "--format", "json").out) == QUEUES


@pytest.mark.parametrize(
    "words",
    [
        ["dance"],
        ["add", "queue"],
        ["add", "exchange", "round", "x"],
        ["bind", "e"],
        ["bind", "e", "q", "k", "some", "a=1"],
        ["bind", "e", "q", "k", "all", "a"],
        ["list", "cats"],
        ["queues", "a", "b"],
        ["add", "queue", "q", "--max-queue-count", "many"],
        ["add", "queue", "q", "--argument", "=1"],
    ],
)
def test_wrong_usage_ends_with_2_before_any_broker_is_asked(words: list[str]) -> None:
    ran = run("qpid-config", *words, "-b", "127.0.0.1:1")
    assert (ran.status, ran.out) == (2, "")


@pytest.mark.parametrize(
    "words, said",
    [
        (["lsit", "queue"], "there is no command 'lsit'; there are: exchanges, queues, add, "),
        (["lsit", "queue"], "; did you mean 'list'?"),
        (["queus"], "; did you mean 'queues'?"),
        (["queue", "add", "q"], "; did you mean 'add queue'?"),
        (["list", "qeue"], "; did you mean 'queue'?"),
        (["add", "qeue", "q"], "; did you mean 'queue'?"),
        (["add", "exchange", "dirct", "e"], "; did you mean 'direct'?"),
        (["add", "queue"], "'add queue' has too many or too few words; write: add queue NAME, exchange TYPE NAME,"),
        (["bind", "e"], "'bind e' has too many or too few words; write: bind EXCHANGE QUEUE [KEY]"),
        (["update", "queue", "q"], "there is nothing to change: give what is to be changed, with one or more of --alternate"),
        (["update", "QueuePolicy", "q"], "there is nothing to change: give what is to be changed, with one or more of --alt"),
        (["update", "exchange", "e"], "with one or more of --alternate-exchange (see"),
    ],
)
def test_wrong_words_are_told_with_what_was_perhaps_meant(words: list[str], said: str) -> None:
    ran = run("qpid-config", *words, "-b", "127.0.0.1:1")
    assert (ran.status, ran.out, said in ran.err) == (2, "", True), ran.err


@pytest.mark.parametrize(
    "options",
    [["--max-queue-size", "0"], ["--shared-groups"], ["--argument", "a=0"], ["--durable"], ["--alternate-exchange", ""]],
)
def test_an_update_with_one_option_goes_to_the_broker(asked: Any, options: list[str]) -> None:
    assert asked("update", "queue", "jobs", *options)[:2] == ("UPDATE queue", "jobs")


@pytest.mark.parametrize("words", ["add queue new", "update queue jobs"])
def test_a_limit_of_0_is_passed_on(asked: Any, words: str) -> None:
    """Breaks when 0, which takes a limit away, counts as no option."""
    body = asked(*words.split(), "--max-queue-size", "0", "--flow-stop-count", "0")[2]
    assert body["arguments"] == {"qpid.max_size": 0, "qpid.flow_stop_count": 0}


def test_a_property_that_nothing_has_is_told_with_a_near_one(broker: Any) -> None:
    """Breaks when a slip of the pen makes an empty list."""
    ran = run("qpid-config", "list", "queue", "--show-property", "name", "--show-property", "durabel", "-b", broker.name)
    assert (ran.status, ran.out.split()) == (0, ["name", "====", "jobs", "mail"])
    assert ran.err == "warning: no queue has a property 'durabel'; did you mean 'durable'?\n"
    ran = run("qpid-config", "list", "binding", "--show-property", "nosuch", "-b", broker.name, "--format", "json")
    assert json.loads(ran.out) == [{}, {}]
    assert ran.err == "warning: no binding has a property 'nosuch'; there are: exchange, queue, key, arguments\n"


@pytest.mark.parametrize(
    "type, said",
    [
        ("acl", "no ACL file is in force: every user may do everything (qpidd --acl-file FILE)"),
        ("route", "there is no route"),
        ("QueuePolicy", "there is no policy for queues"),
    ],
)
def test_an_empty_list_is_told_to_people_and_is_a_list_for_programs(peers: Any, type: str, said: str) -> None:
    broker = peers(items={type: []})
    ran = run("qpid-config", "list", type, "--show-property", "name", "-b", broker.name)
    assert (ran.status, ran.out, ran.err) == (0, f"{said}\n", "")
    ran = run("qpid-config", "list", type, "-b", broker.name, "--format", "json")
    assert (ran.out, ran.err) == ("[]\n", "")


# ---- an ACL file


@pytest.fixture
def acl(tmp_path: Path) -> str:
    file = tmp_path / "broker.acl"
    file.write_text(
        "group staff ann bob\n"
        "acl allow bob delete broker\n"
        "acl deny bob create queue name=secret*\n"
        "acl allow staff create queue queuemaxsizeupperlimit=1000\n"
        "acl allow-log ann access method\n"
        "acl deny all create connection host=10.0.0.0,10.0.0.255\n"
    )
    return str(file)


def test_acl_check_says_what_a_file_comes_to(acl: str) -> None:
    ran = run("qpid-config", "acl-check", acl)
    assert (ran.status, ran.out) == (0, "5 rules; an action without a matching rule is denied\n")
    assert ran.err == f"warning: {acl}:2: this broker never checks `delete broker`: the rule is never used\n"
    assert json.loads(run("qpid-config", "--format", "json", "acl-check", acl).out) == {"rules": 5, "warnings": 1}


@pytest.mark.parametrize(
    "question, status, said",
    [
        ("bob create queue name=work queuemaxsize=1000", 0, "allowed: {file}:4"),
        ("bob create queue name=work queuemaxsize=1001", 1, "denied: {file}:4"),
        ("bob create queue name=secrets", 1, "denied: {file}:3"),
        ("eve create queue name=work", 1, "denied: no rule decides, and this is the default"),
        ("eve create connection host=10.0.0.7", 1, "denied: {file}:6"),
        ("eve create connection host=10.0.1.7", 0, "allowed: no rule decides, and this is the default"),
        ("eve access method name=promote schemaclass=ha", 1, "denied: no rule decides, and this is the default"),
    ],
)
def test_acl_check_answers_as_a_broker_would_with_the_line_of_the_rule(acl: str, question: str, status: int, said: str) -> None:
    ran = run("qpid-config", "acl-check", acl, *question.split())
    assert (ran.status, ran.out) == (status, said.format(file=acl) + "\n")


def test_acl_check_tells_of_a_user_without_a_realm(acl: str) -> None:
    """Breaks when a rule of bob@QPID is tried with bob, who is somebody else."""
    ran = run("qpid-config", "acl-check", acl, "bob", "create", "queue", "name=secrets")
    assert ran.err == "warning: 'bob' has no realm: a user who has logged in is called NAME@REALM, as in bob@QPID\n"
    for user in ("bob@QPID", "anonymous"):
        assert run("qpid-config", "acl-check", acl, user, "create", "queue", "name=secrets").err == ""


def test_acl_check_for_a_program(acl: str) -> None:
    ran = run("qpid-config", "--format", "json", "acl-check", acl, "ann", "access", "method", "name=promote")
    assert (ran.status, json.loads(ran.out)) == (0, {"allowed": True, "logged": True, "line": 5})


@pytest.mark.parametrize(
    "words, status, said",
    [
        ([], 2, "acl-check takes FILE"),
        (["{file}", "bob", "create"], 2, "acl-check takes FILE"),
        (["{file}", "bob", "redirect", "queue"], 2, "a broker never checks `redirect queue`; use one of: access exchange,"),
        (["{file}", "bob", "create", "queue", "size=3"], 2, "'size=3': `create queue` is checked with alternate, autodelete,"),
        (["{file}", "bob", "create", "link", "name=x"], 2, "'name=x': `create link` is checked with no properties"),
        (["{file}", "bob", "create", "queue", "queuemaxsize=1k"], 2, "'queuemaxsize=1k': queuemaxsize must be a whole number"),
        (["/nowhere/broker.acl"], 1, "cannot read /nowhere/broker.acl: No such file or directory"),
    ],
)
def test_acl_check_refuses_what_makes_no_sense(acl: str, words: list[str], status: int, said: str) -> None:
    ran = run("qpid-config", "acl-check", *(word.format(file=acl) for word in words))
    assert (ran.status, ran.out) == (status, "")
    assert ran.err.startswith(f"qpid-config: {said}")


def test_acl_check_names_the_line_of_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "broken.acl"
    file.write_bytes(b"acl allow bob all\nacl allow b\xff all\n")
    ran = run("qpid-config", "acl-check", str(file))
    assert (ran.status, ran.err) == (1, f"qpid-config: {file}:2: only ASCII characters may stand in an ACL file\n")


def test_reload_acl_says_what_is_in_force_then_and_a_broken_file_is_the_broker_s_refusal(peers: Any) -> None:
    item = {"file": "/etc/a.acl", "rules": 3, "mode": "deny", "unused": 1, "checksum": "c0ffee"}
    wrong = "/etc/a.acl:2: no; the old rules stay in force"
    ran = run("qpid-config", "reload-acl", "-b", peers(answers={"RELOAD acl": [200, "OK", item]}).name)
    assert (ran.status, ran.out) == (0, "3 rules of /etc/a.acl are in force, the rest is denied; checksum c0ffee\n")
    assert ran.err == "warning: 1 of them are never used: qpid-config acl-check /etc/a.acl names them\n"
    ran = run("qpid-config", "reload-acl", "-b", peers(answers={"RELOAD acl": [409, wrong, {}]}).name)
    assert (ran.status, ran.out, ran.err) == (1, "", f"qpid-config: {wrong}\n")


def test_what_is_given_of_a_queue_is_changed_and_nothing_else(asked: Any) -> None:
    body = {"arguments": {"qpid.max_count": 5, "note": "a"}, "alternateExchange": ""}
    words = ("update", "queue", "jobs", "--max-queue-count", "5", "--argument", "note=a", "--alternate-exchange", "")
    assert asked(*words) == ("UPDATE queue", "jobs", body)


@pytest.mark.parametrize(
    "words, operation, body",
    [
        ("purge jobs", "PURGE", {}),
        ("move jobs mail --filter a=1", "MOVE", {"to": "mail", "filter": "a=1"}),
        ("reroute jobs", "REROUTE", {}),
        ("reroute jobs news", "REROUTE", {"exchange": "news"}),
    ],
)
def test_messages_are_taken_from_where_the_broker_has_got_to(
    peers: Any, tmp_path: Path, words: str, operation: str, body: dict[str, Any]
) -> None:
    answer = [200, "4 messages", {"count": 4, "left": 1, "next": [7, 0, 9]}]
    peer = peers(answers={f"{operation} queue": answer}, record=str(tmp_path / "requests"))
    ran = run("qpid-config", *words.split(), "--count", 8, "-b", peer.name)
    assert (ran.status, ran.out) == (0, f"8 messages were {operation.lower().removesuffix('e')}ed\n")
    why = "consumers hold them" if operation == "PURGE" else "consumers hold them, or no queue here takes them"
    assert ran.err == f"warning: 2 were left: {why}\n"
    asked = list(map(json.loads, (tmp_path / "requests").read_text().splitlines()))
    assert [(one["what"], one["name"]) for one in asked] == [(f"{operation} queue", "jobs")] * 2
    assert [one["body"] for one in asked] == [body | {"count": 8}, body | {"count": 4, "after": [7, 0, 9]}]


@pytest.mark.parametrize("left", [2, 3])
def test_duplicates_that_a_move_has_left_are_told_as_what_they_are(peers: Any, left: int) -> None:
    """Breaks when an operator looks for a consumer that holds them."""
    peer = peers(answers={"MOVE queue": [200, "4 messages", {"count": 4, "left": left, "repeated": 2}]})
    ran = run("qpid-config", "move", "jobs", "mail", "-b", peer.name)
    others = "warning: 1 were left: consumers hold them, or no queue here takes them\n" if left > 2 else ""
    assert ran.err == f"warning: 2 were left: their queue has had them within its x-duplicate-window\n{others}"


@pytest.mark.parametrize(
    "words, said",
    [
        ("purge jobs", "--filter is empty: leave it out to process all messages"),
        ("move jobs mail", "--filter is empty: leave it out to process all messages"),
        ("reroute jobs", "--filter is empty: leave it out to process all messages"),
        ("del queue jobs", "--filter is for purge, move and reroute"),
    ],
)
@pytest.mark.parametrize("selector", ["", " \t"])
def test_an_empty_filter_is_refused_before_a_broker_is_asked(words: str, said: str, selector: str) -> None:
    """Breaks when a script that has forgotten to set its variable purges the whole queue."""
    ran = run("qpid-config", *words.split(), "--filter", selector, "-b", "127.0.0.1:1")
    assert (ran.status, ran.out, ran.err) == (2, "", f"qpid-config: {said} (see qpid-config --help)\n")


@pytest.mark.parametrize("words", ["del queue jobs", "", "queues", "acl-check file", "update queue jobs --max-queue-count 5"])
def test_a_selection_of_messages_is_refused_where_none_are_selected(words: str) -> None:
    """Breaks when `del queue jobs --count 1` deletes the queue."""
    for option in (["--count", "1"], ["--filter", "a=1"]):
        ran = run("qpid-config", *words.split(), *option, "-b", "127.0.0.1:1")
        said = f"qpid-config: {option[0]} is for purge, move and reroute (see qpid-config --help)\n"
        assert (ran.status, ran.out, ran.err) == (2, "", said)


def test_the_level_of_a_broker_s_log_is_printed_and_set_and_a_broker_is_stopped(peers: Any, tmp_path: Path) -> None:
    record = tmp_path / "requests"
    answers = {"SET log": [200, "OK", {"level": "debug+"}], "STOP ha": [202, "the broker stops", {}]}
    peer = peers(items={"log": [{"level": "notice+"}]}, answers=answers, record=str(record))
    for words, out in ((["log"], "notice+\n"), (["log", "debug+"], "debug+\n"), (["shutdown", "--force"], "@ shuts down\n")):
        ran = run("qpid-config", *words, "-b", peer.name)
        assert (ran.status, ran.out, ran.err) == (0, out.replace("@", peer.name), "")
    ran = run("qpid-config", "shutdown", "--force", "-b", peer.name, "--format", "json")
    assert json.loads(ran.out) == {"broker": peer.name, "done": True}
    asked = [(one["what"], one["body"]) for one in map(json.loads, record.read_text().splitlines())]
    assert asked[1:] == [("SET log", {"level": "debug+"}), *[("STOP ha", {"force": True})] * 2]


@pytest.mark.parametrize(
    "words, said",
    [
        ("add domain d --argument url=x", "cannot add anything of type 'domain'"),
        ("del link l", "cannot del anything of type 'link'"),
        ("add queue q --start-replica h:1", "use qpid-route queue add"),
    ],
)
def test_what_the_original_has_and_this_does_not_is_refused_with_the_way_to_go(words: str, said: str) -> None:
    ran = run("qpid-config", *words.split())
    assert (ran.status, said in ran.err) == (2, True)
    assert run("qpid-ha", "replicate", "q", "h:1").status == 2
