"""`qpid-stat`: tables that scripts read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import run

QUEUE: dict[str, Any] = {
    "name": "jobs",
    "durable": True,
    "autoDelete": False,
    "exclusive": False,
    "replicate": "all",
    "messages": 7,
    "messagesIn": 12_345,
    "messagesOut": 12_338,
    "bytes": 7_000,
    "bytesIn": 12_345_000,
    "bytesOut": 12_338_000,
    "consumers": 2,
    "bindings": 1,
    "arguments": {"qpid.max_count": 99},
    "alternateExchange": "dead",
    "levels": [4, 0, 3],
    "alerts": ["count", "size"],
    "expired": 21,
}
ITEMS: dict[str, list[dict[str, Any]]] = {
    "queue": [QUEUE, QUEUE | {"name": "mail", "messages": 900}, QUEUE | {"name": "zoo", "messages": 30}],
    "broker": [{"uptime_s": 3661, "cluster": "", "connections": 1, "sessions": 1, "exchanges": 8, "queues": 3}],
    "connection": [
        {"address": "127.0.0.1:999", "processName": "app", "processId": 41, "mechanism": "ANONYMOUS", "connected_s": 9}
    ],
    "memory": [{"name": "resident", "bytes": 4096}],
    "exchange": [{"name": "amq.topic", "exchangeType": "topic", "durable": True, "bindings": 2, "messagesDropped": 3}],
    "subscription": [{"id": "s1", "queue": "jobs", "connection": "c1", "creditMode": "CREDIT", "delivered": 5}],
}


@pytest.fixture(scope="module")
def broker(peers: Any) -> Any:
    return peers(items=ITEMS)


def rows(out: str) -> list[str]:
    """The names in the first column."""
    return [line.split()[0] for line in out.splitlines()[3:]]


@pytest.mark.parametrize(
    "kind, headings",
    [
        ("-g", "uptime cluster connections sessions exchanges queues"),
        ("-c", "connection cproc cpid mech auth connected idle msgIn msgOut unread"),
        ("-e", "exchange type dur bind msgIn msgOut msgDrop"),
        ("-q", "queue dur autoDel excl msg msgIn msgOut bytes bytesIn bytesOut cons bind"),
        ("-m", "statistic bytes"),
        ("-u", "subscr queue conn procName procId browse acked excl creditMode delivered sessUnacked still"),
    ],
)
def test_each_table_has_the_columns_of_the_original(broker: Any, kind: str, headings: str) -> None:
    ran = run("qpid-stat", kind, "-b", broker.name)
    assert (ran.status, ran.out.splitlines()[1].split()) == (0, headings.split())


def test_the_rules_in_force_are_a_table_too_and_a_broker_without_a_file_has_none(peers: Any) -> None:
    item = {"file": "/etc/a.acl", "checksum": "c0ffee", "rules": 1200, "mode": "deny", "unused": 0, "denied": 7}
    ran = run("qpid-stat", "--acl", "-b", peers(items={"acl": [item | {"loaded": "2027-01-15T08:00:00.250Z"}]}).name)
    heading, _, row = ran.out.splitlines()[1:]
    assert heading.split() == ["file", "checksum", "rules", "mode", "unused", "denied", "lastLoad"]
    assert row.split() == ["/etc/a.acl", "c0ffee", "1.20k", "deny", "0", "7", "2027-01-15T08:00:00.250Z"]
    ran = run("qpid-stat", "--acl", "-b", peers(items={"acl": []}).name)
    assert (ran.status, ran.out.splitlines()[3:]) == (0, [])
    assert ran.err == "no ACL file is in force: every user may do everything (qpidd --acl-file FILE)\n"


def test_a_row_is_written_as_the_original_writes_it(broker: Any) -> None:
    row = run("qpid-stat", "-q", "-b", broker.name).out.splitlines()[3]
    assert row.split() == ["jobs", "Y", "7", "12.3k", "12.3k", "7.00k", "12.3m", "12.3m", "2", "1"]


def test_a_broker_by_itself_says_so(broker: Any) -> None:
    assert "1h 1m 1s  <standalone>" in run("qpid-stat", "-g", "-b", broker.name).out


def test_rows_are_sorted_limited_and_turned_round(broker: Any) -> None:
    """Breaks when numbers are sorted as texts: 900 before 30 before 7 is right, "900" "7" "30" is not."""
    assert rows(run("qpid-stat", "-q", "-b", broker.name, "-S", "msg").out) == ["mail", "zoo", "jobs"]
    assert rows(run("qpid-stat", "-q", "-b", broker.name, "-S", "msg", "-I", "-L", "2").out) == ["jobs", "zoo"]


def test_texts_that_are_empty_are_a_dash_where_the_original_has_one(peers: Any) -> None:
    """Breaks when a script that counts columns takes the time of a connection for its user."""
    connection = {"address": "127.0.0.1:9", "processName": "", "processId": 0, "mechanism": "ANONYMOUS", "user": ""}
    subscription = {"id": "s1", "queue": "jobs", "connection": "c1", "processName": "", "creditMode": "", "delivered": 5}
    broker = peers(items={"connection": [connection], "subscription": [subscription]}).name
    row = run("qpid-stat", "-c", "-b", broker).out.splitlines()[3]
    assert row.split() == ["127.0.0.1:9", "-", "0", "ANONYMOUS", "-", "0s", "0s", "0", "0", "0s"]
    row = run("qpid-stat", "-u", "-b", broker).out.splitlines()[3]
    assert row.split() == ["s1", "jobs", "c1", "-", "-", "-", "5", "0", "0s"]


def test_a_time_of_0_waits_without_a_limit(peers: Any) -> None:
    broker = peers(items=ITEMS)
    assert run("qpid-stat", "-q", "-b", broker.name, "--timeout", "0").status == 0
    ran = run("qpid-stat", "-q", "-b", broker.name, "--timeout", "0.01")
    assert (ran.status, "'0.01' is not a number of seconds from 0.1 to 3600, nor 0 for no limit" in ran.err) == (2, True)


def test_rows_that_are_left_out_are_told_and_json_has_all(peers: Any) -> None:
    """Breaks when a script misses queues, and a person does not learn that there are more."""
    queues = [QUEUE | {"name": f"q{number}"} for number in range(67)]
    many = peers(items={"queue": queues})
    ran = run("qpid-stat", "-q", "-b", many.name)
    assert (len(rows(ran.out)), ran.err) == (50, "50 of 67 rows are shown; -L 0 shows all\n")
    for words, number in ((["-L", "0"], 67), (["-L", "67"], 67), (["--format", "json"], 67)):
        ran = run("qpid-stat", "-q", *words, "-b", many.name)
        shown = len(json.loads(ran.out)) if "json" in words else len(rows(ran.out))
        assert (shown, ran.err) == (number, "")
    ran = run("qpid-stat", "-q", "-L", "3", "--format", "json", "-b", many.name)
    assert (json.loads(ran.out), ran.err) == (queues[:3], "3 of 67 rows are shown; -L 0 shows all\n")


def test_one_queue_is_shown_in_full(broker: Any) -> None:
    out = run("qpid-stat", "-q", "jobs", "-b", broker.name).out
    for expected in (
        "Properties:",
        "Optional Properties:",
        "qpid.max_count",
        "alternate-exchange",
        "Statistics:",
        "total-enqueues",
        "count,size",
        "discards-ttl-expired",
    ):
        assert expected in out
    levels = [line.split() for line in out.partition("Levels:")[2].splitlines()[3:]]
    assert levels == [["2", "3"], ["1", "0"], ["0", "4"]]


def test_what_a_client_says_of_itself_neither_forges_a_row_nor_reaches_the_terminal(peers: Any) -> None:
    evil = "app\x1b]0;owned\x07\x1b[2J\n127.0.0.1:1  forged  1  PLAIN  root@QPID"
    connection = ITEMS["connection"][0] | {"processName": evil}
    hostile = peers(items={"connection": [connection]}, answers={"QUERY queue": [404, "no queue \x1b[2J\x9b\u202e", None]})
    ran = run("qpid-stat", "-c", "-b", hostile.name)
    assert (ran.out.replace("\n", "").isprintable(), len(ran.out.splitlines())) == (True, 4)
    assert "app\\x1b]0;owned\\x07\\x1b[2J\\n127.0.0.1:1  forged" in ran.out
    assert json.loads(run("qpid-stat", "-c", "-b", hostile.name, "--format", "json").out) == [connection]
    assert run("qpid-stat", "-q", "-b", hostile.name).err == "qpid-stat: no queue \\x1b[2J\\x9b\\u202e\n"


def test_a_long_name_of_a_process_makes_no_column_wider_than_64_and_json_has_all_of_it(peers: Any) -> None:
    connection = ITEMS["connection"][0] | {"processName": "\n" + "x" * 500}
    subscription = ITEMS["subscription"][0] | {"processName": "y" * 65}
    long = peers(items={"connection": [connection], "subscription": [subscription]})
    cut = ("-c", "\\n" + "x" * 59 + "...", connection), ("-u", "y" * 61 + "...", subscription)
    for kind, name, item in cut:
        ran = run("qpid-stat", kind, "-b", long.name)
        assert (name in ran.out.splitlines()[3].split(), max(map(len, ran.out.splitlines())) < 200) == (True, True), ran.out
        assert json.loads(run("qpid-stat", kind, "-b", long.name, "--format", "json").out) == [item]
    whole = peers(items={"subscription": [subscription | {"processName": "y" * 64}]})
    assert "y" * 64 in run("qpid-stat", "-u", "-b", whole.name).out


def test_a_long_name_of_a_link_makes_no_column_wider_than_128_and_json_has_all_of_it(peers: Any) -> None:
    usual = "qpid-jms:receiver:ID:6c3bd4d0-7e5a-4c8f-9d55-0d8a7b1f2e3c:1:1:1:orders"
    items = [ITEMS["subscription"][0] | {"id": name} for name in (usual, "y" * 129)]
    long = peers(items={"subscription": items})
    lines = run("qpid-stat", "-u", "-b", long.name).out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == [usual, "y" * 125 + "..."]
    assert json.loads(run("qpid-stat", "-u", "-b", long.name, "--format", "json").out) == items


def test_json_is_what_the_broker_said(broker: Any) -> None:
    assert json.loads(run("qpid-stat", "-q", "-b", broker.name, "--format", "json").out) == ITEMS["queue"]


def test_a_queue_that_is_not_there_is_refused(peers: Any) -> None:
    absent = peers(answers={"QUERY queue": [404, "there is no queue named 'x'", None]})
    ran = run("qpid-stat", "-q", "x", "-b", absent.name)
    assert (ran.status, ran.err) == (1, "qpid-stat: there is no queue named 'x'\n")


def test_a_backup_is_looked_at_with_ha_admin_alone(peers: Any) -> None:
    backup = peers(items=ITEMS, refuse=True)
    ran = run("qpid-stat", "-q", "-b", backup.name)
    assert (ran.status, "--ha-admin" in ran.err) == (3, True)
    assert run("qpid-stat", "-q", "-b", backup.name, "--ha-admin").status == 0


@pytest.mark.parametrize("words", [[], ["-q", "-c"], ["-g", "jobs"], ["-q", "-S", "colour"], ["-q", "-L", "-1"], ["-q", ""]])
def test_wrong_usage_ends_with_2(words: list[str]) -> None:
    assert run("qpid-stat", *words).status == 2
