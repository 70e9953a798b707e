"""The ACL file of a broker: at the start, when it is read again, and when it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker import acl_file
from broker.acl_file import AclFile
from broker.core.acl.grammar import MAX_FILE, BadAcl
from tests.broker.clients import Bench, Client, condition, request
from tests.broker.users import as_user, bench

RULES = "acl allow ops all\nacl allow ann all queue\n"


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == "broker.acl_file":
            lines.append(f"{event['log_level'].name} {eventAsText(event, includeTimestamp=False, includeSystem=False)}")

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "broker.acl"
    found.write_text(RULES)
    return found


def attached(b: Bench, path: Path | None, **options: Any) -> AclFile:
    found = AclFile(path, lambda: 1_800_000_000.25, **options)
    found.load()
    found.attach_to(b.broker)
    return found


def test_a_broker_with_a_file_is_under_its_rules_from_the_start_and_says_which(path: Path, log: list[str]) -> None:
    with bench() as b:
        b.queue("q")
        attached(b, path)
        assert condition(as_user(b, "eve").sender("q")) == "amqp:unauthorized-access"
        (item,) = as_user(b, "ops").request("QUERY", "acl")[2]["items"]
        assert item == {
            "file": str(path),
            "checksum": item["checksum"],
            "rules": 2,
            "mode": "deny",
            "unused": 0,
            "loaded": "2027-01-15T08:00:00.250Z",
            "refused": "",
            "denied": 1,
        }
        assert log == [f"info 2 rules of {path} are in force, the rest is denied; checksum {item['checksum']}"]
        assert as_user(b, "eve").request("QUERY", "acl")[0] == 403


def test_two_files_have_one_checksum_only_if_they_are_alike(path: Path, tmp_path: Path) -> None:
    with bench() as b, bench() as c, bench() as d:
        (tmp_path / "same").write_text(RULES)
        (tmp_path / "other").write_text(RULES + "# more\n")
        items = [attached(each, tmp_path / name).items()[0] for each, name in ((b, "broker.acl"), (c, "same"), (d, "other"))]
        assert items[0]["checksum"] == items[1]["checksum"] != items[2]["checksum"]


def test_rules_that_are_read_again_are_in_force_at_once_for_what_is_there_too(path: Path) -> None:
    with bench() as b:
        b.queue("q")
        attached(b, path)
        ann, ops = as_user(b, "ann"), as_user(b, "ops")
        receiver = ann.receiver("q")
        path.write_text("acl allow ops all\nacl allow all all\n")
        status, text, body = ops.request("RELOAD", "acl")
        assert (status, body["mode"], body["rules"]) == (200, "allow", 1)
        assert text == f"1 rules of {path} are in force, the rest is allowed; checksum {body['checksum']}"
        assert condition(receiver) == ""
        path.write_text("acl allow ops all\n")
        assert ops.request("RELOAD", "acl")[0] == 200
        assert condition(receiver) == "amqp:unauthorized-access"
        assert ann.request("RELOAD", "acl")[:2] == (403, "ann may not: access method name=reload schemaclass=acl")


@pytest.mark.parametrize("wrong", ["acl allow ann all\nacl alow eve all\n", None], ids=["a wrong line", "no file"])
def test_a_file_that_cannot_be_used_leaves_the_rules_that_were_and_the_answer_and_the_log_say_why(
    wrong: str | None, path: Path, log: list[str]
) -> None:
    with bench() as b:
        b.queue("q")
        attached(b, path)
        before = b.broker.guard.acl
        if wrong is None:
            path.unlink()
            why = f"cannot read the ACL file {path}: No such file or directory"
        else:
            path.write_text(wrong)
            why = f"{path}:2: 'alow' is not a permission: one of allow, allow-log, deny, deny-log"
        ops = as_user(b, "ops")
        said = f"{why}; the old rules stay in force"
        assert ops.request("RELOAD", "acl")[:2] == (409, said)
        assert log[-1] == f"error {said}"
        assert b.broker.guard.acl is before
        (item,) = ops.request("QUERY", "acl")[2]["items"]
        assert (item["refused"], item["rules"]) == (why, 2)
        path.write_text(RULES)
        assert ops.request("RELOAD", "acl")[0] == 200
        assert ops.request("QUERY", "acl")[2]["items"][0]["refused"] == ""


def test_a_file_that_is_wrong_at_the_start_is_an_error_with_the_line(path: Path) -> None:
    path.write_text("acl allow ann all\nquota queues many all\n")
    with pytest.raises(BadAcl, match=r"broker\.acl:2: 'many' is not a quota"):
        AclFile(path, lambda: 0.0).load()
    path.write_text("#" * (MAX_FILE + 5))
    with pytest.raises(BadAcl, match=f"has {MAX_FILE + 1} characters"):
        AclFile(path, lambda: 0.0).load()
    path.write_bytes(b"acl allow \xff all\n")
    with pytest.raises(BadAcl, match=r"broker\.acl:1: only ASCII"):
        AclFile(path, lambda: 0.0).load()


def test_a_broker_without_a_file_has_no_rules_to_read_again() -> None:
    with bench() as b:
        attached(b, None)
        ops = as_user(b, "ops")
        assert ops.request("RELOAD", "acl")[:2] == (
            409,
            "this broker was started without --acl-file: it has no rules to reload",
        )
        assert ops.request("QUERY", "acl")[2] == {"items": []}
        assert ops.request("JUGGLE", "acl")[0] == 501


def test_rules_that_are_never_used_are_named_in_the_log_some_of_them(path: Path, log: list[str]) -> None:
    path.write_text("acl allow ann redirect queue\n" * 30)
    AclFile(path, lambda: 0.0).load()
    warnings = [line for line in log if line.startswith("warn")]
    assert len(warnings) == acl_file._MAX_WARNINGS
    assert warnings[0] == f"warn {path}:1: this broker never checks `redirect queue`: the rule is never used"


def test_quotas_of_the_command_line_are_those_of_whom_the_file_names_none(path: Path) -> None:
    path.write_text("acl allow all all\nquota queues 2 ann\n")
    with bench() as b:
        attached(b, path, quotas=(1, 1))
        ann = as_user(b, "ann")
        assert [ann.request("CREATE", "queue", name)[0] for name in "abc"] == [201, 201, 403]
        assert condition(as_user(b, "ann").connection) == "amqp:resource-limit-exceeded"
        eve = as_user(b, "eve")
        assert [eve.request("CREATE", "queue", name)[0] for name in "de"] == [201, 403]


def output(client: Client) -> bytes:
    """What the client would write now."""
    found: bytes = client.transport.peek(client.transport.pending())
    client.transport.pop(len(found))
    return found


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_done_for_what_comes_with_the_request_that_ends_its_own_connection(full: bool, path: Path) -> None:
    """`full`: the socket takes nothing, so that the connection cannot end at once."""
    with bench() as b:
        b.queue("q")
        attached(b, path)
        ops = as_user(b, "ops")
        management, messages = ops.sender("$management"), ops.sender("q")
        path.write_text("acl deny ops create connection host=all\nacl allow ops all\n")
        ops.send_encoded(management, request("RELOAD", "acl", "", "$nowhere"), settle=False)
        ops.send(messages, "late", settle=False)
        flight = output(ops)
        late = ops.session.receiver("late")
        late.source.address = "q"
        late.open()
        if full:
            ops.server.pauseProducing()
        ops.server.dataReceived(flight + output(ops))
        node = b.broker.nodes.queues["q"]
        assert b.broker.queues.users(node) == 0
        ops.server.resumeProducing()
        b.settle()
        assert (condition(ops.connection), b.depth("q")) == ("amqp:unauthorized-access", 0)
