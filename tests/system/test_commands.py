"""All our commands with a real cluster of three, run as by an operator or a script: their output, and their exit codes.

One cluster runs for the whole module; each test uses its own names. `run` checks for each call that an error is one line and
that there is no traceback. Exit codes: 0 done, 1 refused or not so, 2 usage, 3 no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message
from proton.utils import BlockingConnection

from cli.programs import MODULES
from tests.cli.running import ROOT, Ran, environment, run
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, cluster, eventually, free_ports, spawn, standalone

DONE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("commands"), 3, "--ha-replicate", "all") as brokers:
        yield brokers


@pytest.fixture(scope="module")
def url(three: Cluster) -> str:
    """All brokers, a backup first, so that who takes the first of them fails."""
    return "amqp:" + ",".join(reversed(three.addresses))


def ok(command: str, *words: object) -> str:
    """What a command that succeeds prints; nothing on stderr."""
    ran = run(command, *words)
    assert (ran.status, ran.err) == (DONE, ""), f"{ran.status}: {ran.err}"
    return ran.out


def json_of(command: str, *words: object) -> Any:
    """The JSON that a command prints."""
    return json.loads(ok(command, *words, "--format", "json"))


def columns(out: str, line: int) -> list[str]:
    """The words of a line."""
    return out.splitlines()[line].split()


def backup_of(three: Cluster) -> BrokerProcess:
    primary = three.primary()
    return next(broker for broker in three.brokers if broker is not primary)


# ---- qpid-ha


def test_ping_and_status_speak_to_the_one_broker_that_is_named(three: Cluster) -> None:
    primary, backup = three.primary(), backup_of(three)
    assert ok("qpid-ha", "ping", "-b", primary.address) == ""
    assert json_of("qpid-ha", "ping", "-b", backup.address)["alive"] is True
    assert ok("qpid-ha", "status", "-b", primary.address) == "active\n"
    assert json_of("qpid-ha", "status", "-b", backup.address) == {"status": "ready"}
    assert ok("qpid-ha", "status", "-b", primary.address, "--is-primary") == ""
    assert ok("qpid-ha", "status", "-b", backup.address, "--expect", "ready") == "ready\n"
    assert run("qpid-ha", "status", "-b", backup.address, "--expect", "active").status == REFUSED
    assert run("qpid-ha", "status", "-b", backup.address, "--is-primary").err == "qpid-ha: the broker is ready, not the primary\n"


def test_all_asks_every_member_and_says_when_one_is_missing(three: Cluster) -> None:
    primary, backup = three.primary(), backup_of(three)
    out = ok("qpid-ha", "status", "--all", "-b", backup.address)
    assert dict(line.split() for line in out.splitlines())[primary.address] == "active"
    views = json_of("qpid-ha", "query", "--all", "-b", primary.address)
    assert [view["broker"] for view in views] == three.addresses
    backup.kill()
    try:
        ran = run("qpid-ha", "status", "--all", "-b", primary.address, "-t", "3")
        assert ran.status == UNREACHABLE
        assert re.search(rf"^{backup.address} .*refused", ran.out, re.MULTILINE), ran.out
    finally:
        backup.start()
        backup.wait_for("ready")


def test_query_shows_the_lag_of_each_member(three: Cluster) -> None:
    primary = three.primary()
    out = ok("qpid-ha", "query", "-b", primary.address)
    assert re.search(rf"^Status: +active$.*^Primary: +{primary.address}$.*^Lag:$", out, re.MULTILINE | re.DOTALL)
    assert all(address in out for address in three.addresses)
    view = json_of("qpid-ha", "query", "-b", primary.address)
    assert view["clusterId"]
    assert sorted(member["address"] for member in view["members"]) == sorted(three.addresses)


def test_promote_and_switchover_hand_over_and_are_in_the_history(three: Cluster) -> None:
    backup, epoch = backup_of(three), three.primary().status()["epoch"]
    out = ok("qpid-ha", "promote", "-b", backup.address)
    assert re.fullmatch(rf"{backup.address} is active in epoch {epoch + 1} in \d+ ms\n", out)
    assert ok("qpid-ha", "promote", "--cluster-manager", "-b", backup.address).startswith(f"{backup.address} is active in epoch")
    candidate = backup_of(three)
    candidate.wait_for("ready")
    answer = json_of("qpid-ha", "switchover", "--candidate", candidate.address, "-b", backup.address)
    assert (answer["broker"], answer["status"]) == (candidate.address, "active")
    ran = run("qpid-ha", "switchover", "--candidate", candidate.address, "-b", candidate.address)
    assert (ran.status, ran.err) == (REFUSED, f"qpid-ha: {candidate.address} is already the primary\n")
    assert history(candidate, [backup, candidate])[-1]["reason"] == "planned switchover"
    assert f" {backup.address} " in ok("qpid-ha", "history", "-b", candidate.address)
    for broker in three.brokers:
        broker.wait_for("ready", "active")


def test_switchover_needs_no_candidate(three: Cluster) -> None:
    was = three.primary()
    out = ok("qpid-ha", "switchover", "-b", was.address)
    assert out.split()[0] in three.addresses
    assert not out.startswith(was.address)
    for broker in three.brokers:
        broker.wait_for("ready", "active")


def test_members_are_added_and_removed(three: Cluster, tmp_path: Path) -> None:
    port, probed = free_ports(2)
    options = ["--ha-cluster", "yes", "--ha-brokers-url", f"{three.url},127.0.0.1:{port}", "--admin-port", str(probed)]
    newcomer = BrokerProcess(tmp_path, port, options)
    newcomer.start()

    def probe() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{probed}/startedz", timeout=30) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode().strip()

    try:
        primary = three.primary()
        newcomer.wait_for("joining")
        assert probe() == (503, "joining")
        assert ok("qpid-ha", "add-broker", newcomer.address, "-b", primary.address) == ""
        newcomer.wait_for("ready")
        members = json_of("qpid-ha", "query", "-b", primary.address)["members"]
        assert [member["role"] for member in members if member["address"] == newcomer.address] == ["voter"]
        assert newcomer.address in ok("qpid-ha", "status", "--all", "-b", primary.address)
        client = BlockingConnection(primary.address, timeout=30)
        connection: Any = client.conn
        told = [each["port"] for each in connection.remote_properties["failover-server-list"]]
        client.close()
        assert told == [*(int(each.rpartition(":")[2]) for each in three.addresses), port], "as they were given, then the others"
        assert json_of("qpid-ha", "remove-broker", newcomer.address, "-b", primary.address)["done"] is True
        members = json_of("qpid-ha", "query", "-b", primary.address)["members"]
        assert newcomer.address not in [member["address"] for member in members]
        assert newcomer.address not in ok("qpid-ha", "query", "-b", primary.address)
        newcomer.wait_for("removed")
        assert probe() == (503, "removed")
        backup = backup_of(three)
        refused = run("qpid-ha", "add-broker", "127.0.0.1:1", "-b", backup.address)
        assert (refused.status, "127.0.0.1:1 cannot be reached" in refused.err) == (REFUSED, True)
        assert run("qpid-ha", "remove-broker", backup.address, "-b", primary.address).status == REFUSED, "two would be left"
    finally:
        newcomer.kill()
    newcomer.check_log()


def test_store_info_reads_a_broker_and_a_folder_alike(three: Cluster) -> None:
    primary = three.primary()
    asked = json_of("qpid-ha", "store-info", "-b", primary.address)
    found = json_of("qpid-ha", "store-info", "--data-dir", primary.store)
    assert found["store_id"] == asked["brokerId"]
    assert found["cluster_id"] == asked["clusterId"]
    logs = {log["name"]: log for log in found["logs"]}
    assert logs["cluster"]["last_epoch"] == asked["lastEpoch"]
    assert "cluster" in ok("qpid-ha", "store-info", "--data-dir", primary.store)
    ran = run("qpid-ha", "store-info", "--data-dir", primary.store / "nothing")
    assert ran.status == REFUSED
    assert "there is no store in" in ran.err


def test_help_needs_no_broker() -> None:
    assert "promote" in ok("qpid-ha", "help")
    assert "--candidate" in ok("qpid-ha", "help", "switchover")
    assert "add-broker" in ok("qpid-ha", "help-all")
    assert run("qpid-ha", "help", "demote").status == USAGE


# ---- qpid-config, with the URL of the whole cluster


def test_queues_exchanges_and_bindings_are_made_listed_and_removed(url: str, three: Cluster) -> None:
    assert ok("qpid-config", "-b", url, "add", "queue", "orders", "--max-queue-count", "5", "--durable") == ""
    assert ok("qpid-config", "-b", url, "add", "exchange", "topic", "news", "--replicate", "all") == ""
    assert ok("qpid-config", "-b", url, "bind", "news", "orders", "de.#") == ""
    assert re.search(
        r"^orders +.*--durable.*--replicate=all.*--max-queue-count=5", ok("qpid-config", "-b", url, "queues"), re.MULTILINE
    )
    assert "bind [de.#] => news" in ok("qpid-config", "-b", url, "queues", "ord*", "-r")
    assert "bind [de.#] => orders" in ok("qpid-config", "-b", url, "exchanges", "news", "-r")
    assert re.search(r"^topic +news", ok("qpid-config", "-b", url, "exchanges"), re.MULTILINE)
    (listed,) = json_of("qpid-config", "-b", url, "queues", "orders")
    assert listed["arguments"] == {"qpid.max_count": 5}
    overview = json_of("qpid-config", "-b", url)
    assert overview["totalQueues"] >= 1
    assert "Total Queues:" in ok("qpid-config", "-b", url)
    assert "orders" in ok("qpid-config", "-b", url, "list", "queue", "--show-property", "name")
    backup = backup_of(three)
    eventually(lambda: backup.queue("orders")["replicate"], lambda level: level == "all", "the queue on a backup")
    assert ok("qpid-config", "-b", url, "unbind", "news", "orders", "de.#") == ""
    assert ok("qpid-config", "-b", url, "del", "exchange", "news") == ""
    assert ok("qpid-config", "-b", url, "del", "queue", "orders") == ""
    ran = run("qpid-config", "-b", url, "queues", "orders", "--format", "json")
    assert (ran.status, json.loads(ran.out)) == (REFUSED, [])


def test_a_policy_for_names_counts_on_the_next_primary_too(url: str, three: Cluster) -> None:
    config = ("qpid-config", "-b", url)
    assert ok(*config, "add", "QueuePolicy", "ruled.", "--made-only", "--max-queue-count", "7") == ""
    assert ok(*config, "update", "QueuePolicy", "ruled.", "--argument", "x-delivery-limit=3") == ""
    (told,) = json_of(*config, "list", "QueuePolicy")
    rule = {"qpid.max_count": 7, "x-delivery-limit": 3}
    assert (told["name"], told["byUse"], told["arguments"]) == ("ruled.", False, rule)
    ok("qpid-ha", "promote", "-b", backup_of(three).address)
    ok(*config, "add", "queue", "ruled.one", "--replicate", "all")
    (made,) = json_of(*config, "queues", "ruled.one")
    assert made["arguments"] == rule
    assert ok(*config, "del", "QueuePolicy", "ruled.") == ""
    ok(*config, "del", "queue", "ruled.one")


@pytest.mark.parametrize("kind", ["broker", "queue", "exchange", "binding", "connection", "subscription", "ha", "history"])
def test_everything_of_a_type_can_be_listed(url: str, kind: str) -> None:
    items = json_of("qpid-config", "-b", url, "list", kind)
    assert isinstance(items, list)
    out = ok("qpid-config", "-b", url, "list", kind)
    assert all(field in out for item in items for field in item)


def test_a_queue_with_messages_is_only_removed_by_force(url: str, three: Cluster) -> None:
    ok("qpid-config", "-b", url, "add", "queue", "full")
    connection = BlockingConnection(three.primary().address, timeout=30)
    connection.create_sender("full").send(Message(body="x", durable=True))
    ran = run("qpid-config", "-b", url, "del", "queue", "full")
    assert ran.status == REFUSED
    assert re.fullmatch(r"qpid-config: .*'full'.*message.*\n", ran.err), ran.err
    assert ok("qpid-config", "-b", url, "del", "queue", "full", "--force-if-not-empty") == ""
    connection.close()


def test_a_binding_that_a_failover_would_lose_is_warned_of(url: str) -> None:
    ok("qpid-config", "-b", url, "add", "exchange", "fanout", "here-only", "--replicate", "none")
    ok("qpid-config", "-b", url, "add", "queue", "everywhere")
    ran = run("qpid-config", "-b", url, "bind", "here-only", "everywhere")
    assert ran.status == DONE
    assert ran.err.startswith("warning: queue 'everywhere' is replicated, but exchange 'here-only' is not")


@pytest.mark.parametrize(
    "words, said",
    [
        (("add", "queue", "amq.direct/x", "--replicate", "some"), "some"),
        (("add", "queue", "q1", "--argument", "qpid.paging=1"), "qpid.paging"),
        (("del", "queue", "nothing"), "nothing"),
        (("bind", "nothing", "nothing"), "nothing"),
        (("del", "exchange", "amq.direct"), "amq.direct"),
    ],
)
def test_what_the_broker_refuses_is_one_line_with_its_reason(url: str, words: tuple[str, ...], said: str) -> None:
    ran = run("qpid-config", "-b", url, *words)
    assert (ran.status, ran.out) == (REFUSED, "")
    assert ran.err.startswith("qpid-config: ")
    assert said in ran.err


def test_messages_are_moved_and_purged_by_commands_and_a_backup_has_them_where_the_primary_does(three: Cluster, url: str) -> None:
    for queue in ("from", "into"):
        three.primary().create("queue", queue)
    ok("qpid-config", "-b", url, "update", "queue", "into", "--max-queue-count", 30)
    connection = BlockingConnection(three.primary().address, timeout=30)
    sender = connection.create_sender("from")
    for number in range(40):
        sender.send(Message(body="x", properties={"n": number}))
    connection.close()
    assert ok("qpid-config", "-b", url, "purge", "from", "--filter", "n >= 35") == "5 messages were purged\n"
    ran = run("qpid-config", "-b", url, "move", "from", "into")
    assert (ran.status, ran.out) == (REFUSED, "")
    assert ran.err.endswith("would pass its limit of 30 messages; 30 messages were processed before that\n")
    backup = backup_of(three)
    backup.wait_for("ready")
    wanted = {"from": (5, {}), "into": (30, {"qpid.max_count": 30})}

    def of_backup() -> dict[str, Any]:
        items = json_of("qpid-stat", "-b", backup.address, "--ha-admin", "-q")
        return {each["name"]: (each["messages"], each["arguments"]) for each in items if each["name"] in wanted}

    eventually(of_backup, lambda found: found == wanted, "the backup has its messages where the primary has them")
    for queue in wanted:
        ok("qpid-config", "-b", url, "del", "queue", queue, "--force")


def test_a_manager_that_has_looked_before_the_last_election_promotes_nobody(three: Cluster) -> None:
    """Breaks when a daemon that was slow to ask moves a primary that another daemon's request has just made."""
    backup = backup_of(three)
    backup.wait_for("ready")
    epoch = backup.status()["epoch"]
    with pytest.raises(Refused, match=f"was elected in epoch {epoch}, after the epoch {epoch - 1} that the asker knows of"):
        ask(backup.address, "PROMOTE", "ha", body={"insist": False, "manager": "builtin", "epoch": epoch - 1})
    assert backup.state() == "ready"


def test_on_a_backup_only_an_administrator_reads_and_nobody_changes(three: Cluster) -> None:
    backup = backup_of(three)
    backup.wait_for("ready")
    ran = run("qpid-config", "-b", backup.address, "queues")
    assert ran.status == UNREACHABLE
    assert ran.err.startswith("qpid-config: ")
    assert "Queue Name" in ok("qpid-config", "-b", backup.address, "--ha-admin", "queues")
    assert json_of("qpid-stat", "-b", backup.address, "--ha-admin", "-g")[0]["cluster"] == "ready"
    for level in ("all", "none"):
        ran = run("qpid-config", "-b", backup.address, "--ha-admin", "add", "queue", "q2", "--replicate", level)
        assert ran.status == REFUSED, "whatever the level, no client could use it there"
        assert "only the primary can create objects, because only there clients can use them; send it to the primary" in ran.err
        assert ran.err.endswith(f"{three.primary().address}\n")


# ---- qpid-stat


@pytest.fixture(scope="module")
def busy(three: Cluster) -> Iterator[str]:
    """A queue with a message on its way and one that waits."""
    three.primary().create("queue", "busy")
    connection = BlockingConnection(three.primary().address, timeout=30)
    sender = connection.create_sender("busy")
    for number in range(2):
        sender.send(Message(body=str(number), durable=True))
    receiver = connection.create_receiver("busy", credit=1)
    receiver.receive(30)
    yield "busy"
    connection.close()


@pytest.mark.parametrize(
    "option, headings",
    [
        ("-g", "uptime cluster connections sessions exchanges queues"),
        ("-c", "connection cproc cpid mech auth connected idle msgIn msgOut unread"),
        ("-e", "exchange type dur bind msgIn msgOut msgDrop"),
        ("-q", "queue dur autoDel excl msg msgIn msgOut bytes bytesIn bytesOut cons bind"),
        ("-u", "subscr queue conn procName procId browse acked excl creditMode delivered sessUnacked still"),
    ],
)
def test_each_table_has_qpid_s_columns_and_its_json_the_broker_s_figures(url: str, busy: str, option: str, headings: str) -> None:
    out = ok("qpid-stat", "-b", url, option)
    assert columns(out, 1) == headings.split()
    assert set(columns(out, 2)) == {"=" * len(out.splitlines()[2].strip())}
    assert len(out.splitlines()) > 3
    assert len(json_of("qpid-stat", "-b", url, option)) == len(out.splitlines()) - 3


def test_one_queue_is_told_in_full(url: str, busy: str) -> None:
    out = ok("qpid-stat", "-b", url, "-q", busy)
    assert re.search(r"queue-depth +2 .*total-enqueues +2 .*total-dequeues +0 ", out, re.DOTALL), out
    (item,) = json_of("qpid-stat", "-b", url, "-q", busy)
    assert (item["messages"], item["consumers"]) == (2, 1)
    ran = run("qpid-stat", "-b", url, "-q", "nothing")
    assert (ran.status, ran.err.count("\n")) == (REFUSED, 1)


def test_rows_are_sorted_and_limited(url: str, busy: str) -> None:
    ok("qpid-config", "-b", url, "add", "queue", "idle")
    ran = run("qpid-stat", "-b", url, "-q", "-S", "msg", "-L", "1")
    ok("qpid-config", "-b", url, "del", "queue", "idle")
    assert (ran.status, len(ran.out.splitlines())) == (DONE, 4)
    assert re.fullmatch(r"1 of [0-9]+ rows are shown; -L 0 shows all\n", ran.err)
    assert columns(ran.out, 3)[0] == busy
    assert run("qpid-stat", "-b", url, "-q", "-S", "nothing").status == USAGE


def in_a_terminal(width: int, command: str, *words: str) -> str:
    """What a command prints in a terminal window of this width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", MODULES[command], *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment() | {"COLUMNS": str(width)},
    )
    os.close(theirs)
    out, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                out += os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert process.wait(60) == DONE, out
    return out.decode().replace("\r\n", "\n")


def test_a_table_too_wide_for_the_window_becomes_blocks_of_lines_that_fit(url: str, busy: str) -> None:
    narrow = in_a_terminal(60, "qpid-stat", "-b", url, "-q")
    assert re.search(rf"^  queue: +{busy}$\n^  dur:", narrow, re.MULTILINE), narrow
    assert max(map(len, narrow.splitlines())) <= 60
    wide = in_a_terminal(200, "qpid-stat", "-b", url, "-q")
    assert columns(wide, 1)[0] == "queue"


# ---- what all have in common

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "command, words",
    [("qpid-ha", ["status"]), ("qpid-ha", ["ping"]), ("qpid-config", ["queues"]), ("qpid-stat", ["-q"])],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_exit_codes_tell_usage_absence_and_refusal_apart(command: str, words: list[str]) -> None:
    nobody = run(command, *words, "-b", NOBODY)
    assert (nobody.status, nobody.out) == (UNREACHABLE, "")
    assert NOBODY in nobody.err
    assert run(command, *words, "-b", f"{NOBODY},127.0.0.1:2").status == UNREACHABLE
    assert run(command, *words, "-b", "amqp:a:b").status == USAGE
    assert run(command, *words, "--nonsense").status == USAGE
    assert run(command, *words, "-t", "never").status == USAGE


def test_a_cluster_without_a_primary_is_told_broker_by_broker(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, promote=False) as two:
        url = ",".join(two.addresses)
        ran = run("qpid-config", "-b", url, "queues", "-t", "2")
        assert ran.status == UNREACHABLE
        assert all(f"{address}" in ran.err for address in two.addresses)
        assert "joining" in ran.err


def test_a_standalone_broker_has_no_cluster_to_lead(tmp_path: Path) -> None:
    with standalone(tmp_path) as broker:
        assert ok("qpid-ha", "status", "-b", broker.address) == "standalone\n"
        ran = run("qpid-ha", "promote", "-b", broker.address)
        assert (ran.status, ran.err) == (REFUSED, "qpid-ha: this broker is standalone: it was started without --ha-cluster yes\n")
        assert "<standalone>" in ok("qpid-stat", "-g", "-b", broker.address)


# ---- qpid-resource-manager


def the_primary(three: Cluster) -> BrokerProcess:
    """The primary, when there is one."""

    def found() -> BrokerProcess | None:
        with contextlib.suppress(AssertionError):
            return three.primary()
        return None

    primary = eventually(found, lambda broker: broker is not None, "a broker becoming primary")
    assert primary is not None
    return primary


def history(broker: BrokerProcess, primaries: list[BrokerProcess]) -> list[dict[str, Any]]:
    """What `qpid-ha history` says when its last terms are those of `primaries`: a term's record comes a moment after it began."""
    addresses = [each.address for each in primaries]
    return eventually(
        lambda: json_of("qpid-ha", "history", "-b", broker.address),
        lambda terms: [term["primary"] for term in terms[-len(addresses) :]] == addresses,
        "the record of the term",
    )


def test_the_resource_manager_promotes_at_the_start_and_after_a_kill_and_ends_in_order(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, promote=False) as three:
        log = tmp_path / "manager.log"
        manager = spawn(log, "qpid-resource-manager", "--brokers", three.url, "--detection-time", "0.5", "--start-grace", "1")
        try:
            first = the_primary(three)
            history(first, [first])
            first.kill()
            second = the_primary(three)
            assert all(term["reason"] for term in history(second, [first, second]))
        finally:
            manager.terminate()
            assert manager.wait(30) == DONE
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "--brokers"),
        (["--brokers", "amqp:a:b"], "--brokers: "),
        (["--brokers", "amqp:a:1", "--arbiter", "dice"], "--arbiter: there is no arbiter 'dice'; there are: builtin"),
        (["--brokers", "amqp:a:1", "--priority", "b:1=5"], "--priority"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_resource_manager_told_nonsense_ends_at_once(words: list[str], said: str) -> None:
    ran: Ran = run("qpid-resource-manager", *words)
    assert ran.status == USAGE
    assert said in ran.err
