"""`qpid-drain`: what can be said to it, and what cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.client import ManagementError
from cli import endings
from cli.commands.qpid_drain import _teller
from cli.drain.call_off import CallOff
from cli.options import target
from tests.cli.running import run

SEEN = (
    "other users of this machine can see a password on a command line: write it into a file, and name that with --password-file"
)


@pytest.mark.parametrize(
    "words,why",
    [
        (["--to", "a:1"], "give --from URL, or --store DIR"),
        (["--from", "a:1", "--store", "d", "--to", "b:1"], "give --from URL, or --store DIR"),
        (["status", "--store", "d"], "give --from URL, or --store DIR"),
        (["--from", "a:1"], "--to says which broker takes the messages"),
        (["--from", "a:1", "--to", "b:1", "--delete-released"], "--delete-released is for --store"),
        (["--from", "a:1,b:1", "--to", "b:1,c:1"], "b:1 is both the source and the target"),
        (["--from", "a:1", "--cancel", "--check"], "--cancel goes with --from or --store"),
        (["leave", "--from", "a:1", "--to", "b:1"], "'leave' is not a command; there is: status"),
        (["--from", "", "--to", "b:1"], '--from: there is no host in the address ""'),
        (["--from", "a:1", "--to", ""], '--to: there is no host in the address ""'),
        (["stauts", "--from", "a:1"], "'stauts' is not a command; there is: status; did you mean 'status'?"),
        (["--from", "a:1", "--to", "b:x"], "b:x"),
        (["status", "--from", "a:1", "--cancel"], "status takes no --cancel"),
        (["status", "--from", "a:1", "--check"], "status takes no --check"),
        (["status", "--from", "a:1", "--to", "b:1"], "status takes no --to"),
        (["status", "--from", "a:1", "--end-file", "f"], "status takes no --end-file"),
        (["--from", "ann/pw@a:1", "--to", "b:1"], f"--from: {SEEN}"),
        (["--from", "a:1", "--to", "ann/pw@b:1"], f"--to: {SEEN}"),
        (["--from", "a:1", "--to", "ssl:ann@b:1"], f"--to: {SEEN}; for the transport ssl, write ssl: before the host"),
        (["--from", "a:1", "--to", "b:1", "--deadline", "nan"], "'nan' is not a number"),
        (["--from", "a:1", "--to", "b:1", "--deadline", "inf"], "'inf' is not a number"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_broker_is_asked(words: list[str], why: str) -> None:
    found = run("qpid-drain", *words)
    assert found.status == 2
    assert why in found.err


def test_a_password_needs_a_user_in_one_of_the_urls(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    login = ["--password-file", tmp_path / "password"]
    for words, names in (
        (["--from", "a:1", "--to", "b:1"], "--from or --to"),
        (["--from", "a:1", "--cancel"], "--from"),
        (["status", "--from", "a:1"], "--from"),
        (["--store", tmp_path, "--to", "b:1", "--to", "c:1"], "--to"),
    ):
        found = run("qpid-drain", *words, *login)
        said = f"qpid-drain: --password-file needs a user in {names}, as in ann@host (see qpid-drain --help)\n"
        assert (found.status, found.err) == (2, said)


def test_a_login_of_another_broker_alone_is_tried_at_none_of_them(tmp_path: Path) -> None:
    """As in a drain of a store into a broker without logins, for a controller that logs in at others."""
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    login = ["--password-file", tmp_path / "password", "--login-for", "ann@c:1"]
    found = run("qpid-drain", "--store", tmp_path / "none", "--to", "a:1", *login)
    assert (found.status, found.err) == (1, f"qpid-drain: there is no store in {tmp_path / 'none'}\n")


@pytest.mark.parametrize(
    "mechanism,broker,used",
    [
        ("EXTERNAL", "ssl:b:1", "EXTERNAL"),
        ("EXTERNAL", "b:1", ""),
        ("PLAIN", "ssl:b:1", ""),
        ("EXTERNAL", "ssl:b:1,b:2", ""),
        ("EXTERNAL", "ann@ssl:b:1", "EXTERNAL"),
        ("EXTERNAL", "ann@b:1", ""),
        ("PLAIN", "ann@b:1", "PLAIN"),
    ],
)
def test_a_certificate_is_the_login_over_tls_beside_a_url_with_a_user(mechanism: str, broker: str, used: str) -> None:
    """Breaks when one annotation with a user makes a controller a nobody at all brokers of the set."""
    given = {"broker": broker, "sasl_mechanism": mechanism}
    assert target(given, admin=True, name="brokers", beside={"to": ["ann@c:1"]}).mechanism == used


def test_a_folder_without_a_store_is_refused_and_nothing_is_made_there(tmp_path: Path) -> None:
    found = run("qpid-drain", "--store", tmp_path / "none", "--to", "a:1", "--delete-released")
    assert (found.status, found.err) == (1, f"qpid-drain: there is no store in {tmp_path / 'none'}\n")
    assert not (tmp_path / "none").exists()


def test_a_time_that_is_over_before_the_brokers_have_answered_is_told_with_its_own_exit_code() -> None:
    words = ["--from", "127.0.0.1:1,127.0.0.1:2", "--to", "127.0.0.1:3", "--check", "--deadline", "0.3", "--timeout", "5"]
    found = run("qpid-drain", *words)
    assert (found.status, found.err) == (75, "qpid-drain: the time is over, and no message was moved\n")


ITEM: dict[str, Any] = {"leaving": True, "released": False, "empty": False, "since": "2026-01-01", "to": ["b:1"]}
LEFT = {"messages": 7, "bytes": 900, "unsettled": 2, "clients": 1}


@pytest.mark.parametrize(
    "item,text",
    [
        (ITEM | LEFT, "leaving since 2026-01-01, to b:1; left: 7 messages (900 bytes), 2 unsettled, 1 clients\n"),
        (ITEM | LEFT | {"empty": True, "messages": 0}, "empty since 2026-01-01, to b:1; left: 0 messages"),
        (ITEM | LEFT | {"released": True}, "released since 2026-01-01, to b:1; left"),
        (ITEM | LEFT | {"leaving": False}, "it does not leave; 7 messages, 1 clients\n"),
    ],
)
def test_the_status_says_whether_a_broker_leaves_and_what_is_left(peers: Any, item: dict[str, Any], text: str) -> None:
    broker = peers(items={"drain": [item]})
    assert run("qpid-drain", "status", "--from", broker.name).out.startswith(text)


def test_a_look_tells_that_a_target_has_no_room_for_what_comes(peers: Any) -> None:
    def broker(name: str, free: int, *queues: dict[str, Any]) -> Any:
        drain = {"store": name, "leaving": False, "maxMessageBytes": 1 << 20, "freeBytes": free, "traits": True}
        same: dict[str, Any] = {"broker": [{"cluster": ""}], "exchange": [], "binding": []}
        return peers(ha={"brokerId": name}, items=same | {"drain": [drain], "queue": list(queues)}, answers=LARGER)

    queue = {"durable": False, "autoDelete": False, "exclusive": False, "replicate": "none", "arguments": {}}
    queue |= {"name": "q", "uuid": "u", "messages": 3, "bytes": 5000, "alternateExchange": ""}
    source = broker("old", 1, queue)
    for free, told in ((4999, "5000 bytes of messages go there, and its disk has room for 4999"), (5000, "all of it will fit")):
        found = run("qpid-drain", "--from", source.name, "--to", broker("new", free).name, "--check")
        assert told in found.out
        assert found.status == (1 if free < 5000 else 0)


@pytest.mark.parametrize("kind", ["queue", "binding"])
def test_what_a_target_does_not_make_ends_the_drain_with_its_reason_unless_it_is_there(peers: Any, kind: str) -> None:
    """Breaks when every refusal counts as "it exists already": the source would be released, and a binding be missing."""
    plain = {"durable": False, "alternateExchange": "", "arguments": {}, "replicate": "none"}
    queue = plain | {"name": "q", "uuid": "u", "autoDelete": False, "exclusive": False, "messages": 0, "bytes": 0}
    exchange = plain | {"name": "e", "exchangeType": "topic"}
    binding = {"exchange": "e", "queue": "q", "key": "k", "arguments": {}}
    status = ITEM | {"drain": "d", "leaving": False, "target": "", "index": 1, "empty": True, "messages": 0, "clients": 0}
    status |= {"unsettled": 0}
    answer = {"drain": "d", "store": "old", "to": [], "queues": {}, "released": False, "held": 0, "stores": [], "messages": 0}
    known = {f"{what} drain": [200, "OK", answer] for what in ("LEAVE", "REPORT", "RELEASE", "RELEASED", "FORGET")}
    known["ORIGINS drain"] = [200, "OK", answer | {"queues": []}]
    refused = known | {f"CREATE {kind}": [409, "that is the limit", {}]}

    def items(name: str, queues: list[Any], bindings: list[Any]) -> dict[str, Any]:
        has = {"queue": queues, "exchange": [exchange], "binding": bindings}
        return has | {"drain": [status | {"store": name}], "broker": [{"cluster": ""}]}

    source = peers(ha={"brokerId": "old"}, items=items("old", [queue], [binding]), answers=known)
    before = items("new", [queue] if kind == "binding" else [], [])
    full = peers(ha={"brokerId": "new"}, items=before, answers=refused)
    found = run("qpid-drain", "--from", source.name, "--to", full.name, "--spread", "0")
    assert (found.status, found.err) == (1, "qpid-drain: that is the limit\n")
    after = {"items": items("new", [queue], [binding]), "answers": refused}
    answers_late = peers(ha={"brokerId": "new"}, items=before, answers=known, lost_once={f"CREATE {kind}": after})
    found = run("qpid-drain", "--from", source.name, "--to", answers_late.name, "--spread", "0")
    assert (found.status, found.err) == (0, "")


def test_a_cancellation_that_is_refused_again_and_again_ends_with_the_reason() -> None:
    """Breaks when it blames another qpid-drain: it may as well have asked a backup."""

    class Backup:
        async def ask(self, operation: str, *words: Any) -> dict[str, Any]:
            if operation == "QUERY":
                return {"items": [{"leaving": True, "drain": "d", "target": "t", "to": [], "brokerId": "t"}]}
            raise ManagementError(409, "this broker is ready: ask the primary, a:1")

    class Clock:
        async def pause(self, seconds: float) -> None:
            """No time passes."""

    backup: Any = Backup()
    clock: Any = Clock()
    told: list[str] = []
    cancelling = CallOff(clock, backup, [backup], lambda event, facts: told.append(facts["why"])).run()
    with pytest.raises(endings.Refused, match="cannot be cancelled: this broker is ready: ask the primary, a:1; "):
        cancelling.send(None)
    assert told == ["this broker is ready: ask the primary, a:1"]


def test_a_drain_asks_no_broker_for_its_end_that_is_not_the_primary_any_more(peers: Any) -> None:
    """Breaks when the drain waits for ever for a backup to be empty."""
    status = ITEM | {"drain": "d", "leaving": False, "target": "", "index": 1, "messages": 0, "clients": 0, "unsettled": 0}
    answer = {"drain": "d", "store": "old", "to": [], "queues": {}, "released": False, "held": 0, "stores": [], "messages": 0}
    known = {f"{what} drain": [200, "OK", answer] for what in ("LEAVE", "REPORT")}
    refuses = known | {"ORIGINS drain": [409, "this broker is ready: ask the primary, b:1", {}]}
    none: dict[str, Any] = {"queue": [], "exchange": [], "binding": [], "broker": [{"cluster": ""}]}
    source = peers(ha={"brokerId": "old"}, items=none | {"drain": [status | {"store": "old"}]}, answers=refuses)
    target = peers(ha={"brokerId": "new"}, items=none | {"drain": [status | {"store": "new"}]}, answers=known)
    found = run("qpid-drain", "--from", source.name, "--to", target.name, "--spread", "0")
    assert (found.status, found.err) == (1, "qpid-drain: this broker is ready: ask the primary, b:1\n")


def test_events_and_plans_show_names_without_their_control_characters(peers: Any, capsys: Any) -> None:
    _teller("text")("elsewhere", {"queue": "a\x1b[2J\nempty: ", "to": ["b:1\u202e"]})
    assert capsys.readouterr().out == "elsewhere: queue a\\x1b[2J\\nempty: , to b:1\\u202e\n"
    broker = peers(items={"drain": [ITEM | LEFT | {"since": "2026\x9b2J"}]})
    assert run("qpid-drain", "status", "--from", broker.name).out.startswith("leaving since 2026\\x9b2J, to b:1")


LARGER = {"LARGER drain": [200, "OK", {"count": 0, "first": 0, "largest": 0}]}
