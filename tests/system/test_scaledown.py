"""`qpid-scaledown` with real stores and brokers: stores that are left over are drained, and a store that is wanted again is
given back."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.core import users
from tests.certificates import Authority, authority
from tests.cli.running import Ran, run
from tests.system.harness import BrokerProcess, ask, eventually, free_ports, spawn
from tests.system.test_drain import came, message
from tests.system.traffic import send, take

pytestmark = pytest.mark.system
MESSAGES = 300


class Site:
    """Three brokers with stores in one folder. Their ordinals are as far apart as their ports, so there are gaps."""

    def __init__(self, folder: Path) -> None:
        self.stores, self.replicas = folder / "stores", folder / "replicas"
        self.stores.mkdir()
        ports = sorted(free_ports(3))
        self.base = ports[0]
        self.brokers = [BrokerProcess(folder / str(port), port, []) for port in ports]
        for broker in self.brokers:
            broker.store = self.stores / f"queues-{broker.port - self.base}"

    def want(self, first_that_goes: BrokerProcess | None, more: int = 0) -> None:
        """Say how many brokers are wanted: those before this one; None: none at all."""
        self.replicas.write_text(str(0 if first_that_goes is None else first_that_goes.port - self.base + more))

    @property
    def words(self) -> tuple[str, ...]:
        brokers = f"127.0.0.1:{{{self.base}+ordinal}}"
        files = ("--stores", str(self.stores), "--replicas-file", str(self.replicas))
        how = ("--format", "json", "--poll", "0.1", "--timeout", "1")
        return (*files, *how, "--brokers", brokers, "--to", self.brokers[0].address)

    def once(self, *words: str) -> tuple[Ran, list[dict[str, Any]]]:
        found = run("qpid-scaledown", *self.words, "--once", *words)
        return found, [json.loads(line) for line in found.out.splitlines()]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    made = Site(folder)
    try:
        for broker in made.brokers:
            broker.start()
        for number, broker in enumerate(made.brokers):
            broker.wait_for("standalone")
            broker.create("queue", "orders")
            if number:
                assert send(broker.address, "orders", numbered(number)) == MESSAGES
        yield made
    finally:
        for broker in made.brokers:
            broker.kill()


@contextmanager
def deaf() -> Iterator[int]:
    """The port of a broker that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def numbered(broker: int) -> list[bytes]:
    """The messages that this broker has at first."""
    return [message("orders", broker * MESSAGES + number) for number in range(MESSAGES)]


def test_an_orphaned_store_is_drained_and_a_restart_a_running_broker_and_zero_replicas_drain_nothing(tmp_path: Path) -> None:
    with site(tmp_path) as s:
        target, middle, last = s.brokers
        last.stop()
        s.want(last, more=1)
        found, events = s.once()
        assert (found.status, [each["event"] for each in events]) == (0, ["wanted"]), "a restart is not a scale-down"
        s.want(None)
        assert (s.once()[0].status, came(target.address, "orders")) == (1, 0), "nobody could take it, and the stores have it"
        s.want(middle)
        found, events = s.once()
        assert found.status == 1, str(found)
        why = {each["store"]: each["why"] for each in events if each["event"] == "failed"}
        assert list(why) == [middle.store.name]
        assert "is in use by process" in why[middle.store.name], "its broker runs still"
        assert [each["store"] for each in events if each["event"] == "drain"] == [last.store.name, middle.store.name]
        assert (last.store / "released.json").exists()
        middle.stop()
        with deaf() as port:  # each look waits for an answer, and drains end meanwhile
            found, events = s.once("--delete-released", "--brokers", f"127.0.0.1:{{{port}+ordinal}}", "--timeout", "2")
        assert found.status == 0, found.out + found.err
        assert [each["store"] for each in events if each["event"] == "drain"] == [last.store.name, middle.store.name], "once each"
        assert [path.name for path in s.stores.iterdir() if path.is_dir()] == [target.store.name]
        assert take(target.address, "orders", 2 * MESSAGES) == numbered(2) + numbered(1), "the PVC of the highest ordinal first"
        assert ask(target.address, "QUERY", "queue", "orders")["items"][0]["messages"] == 0


def test_a_controller_is_killed_and_scaling_up_in_the_middle_gives_back_what_has_not_moved(tmp_path: Path) -> None:
    with site(tmp_path) as s:
        target, _, last = s.brokers
        last.kill()
        s.want(last)
        first = spawn(tmp_path / "first.log", "qpid-scaledown", *s.words)
        eventually(lambda: came(target.address, "orders"), bool, "a message having been moved")
        target.freeze()
        waits = spawn(tmp_path / "second.log", "qpid-scaledown", *s.words)
        eventually((tmp_path / "second.log").read_text, lambda text: '"waiting"' in text, "the second one waiting for the first")
        assert s.once()[0].status == 1
        s.want(last, more=1)
        first.send_signal(9)
        eventually((tmp_path / "second.log").read_text, lambda text: '"wanted"' in text, "the second one acting")
        last.start()  # its store is free: the drain has ended with its controller
        last.wait_for("standalone")
        target.signal(18)
        eventually(lambda: ask(last.address, "QUERY", "drain")["items"][0]["leaving"], lambda leaves: not leaves, "it serves")
        moved, back = (ask(each.address, "QUERY", "queue", "orders")["items"][0]["messages"] for each in (target, last))
        assert moved + back == MESSAGES
        found = [
            each for broker, count in ((target, moved), (last, back)) if count for each in take(broker.address, "orders", count)
        ]
        assert found == numbered(2), "each once, in its order"
        waits.send_signal(9)


def _guarded(folder: Path, ports: list[int]) -> list[str]:
    """The options of a broker that has the users ann and bob, of whom bob may not ask for drains, and a port for TLS."""
    keys = {mechanism: users.derive(mechanism, "pencil", b"salt" * 4) for mechanism in users.HASHES}
    (folder / "users").write_text("".join(f"{users.line_of(name, keys)}\n" for name in ("ann", "bob")))
    (folder / "rules.acl").write_text(
        "acl deny bob@QPID access query schemaclass=drain\nacl allow anonymous all\nacl allow all all\n"
    )
    certificate, key = authority().issue("broker", "127.0.0.1").write(folder, "broker")
    mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,ANONYMOUS"
    options = ["--users", folder / "users", "--sasl-mechanisms", mechanisms, "--acl-file", folder / "rules.acl"]
    options += ["--ssl-port", ports[1], "--ssl-certificate", certificate, "--ssl-key", key]
    return list(map(str, options))


@pytest.mark.parametrize("of_target", [True, False], ids=["the target has logins", "the brokers have logins"])
def test_stores_are_drained_and_given_back_between_brokers_with_logins_and_brokers_without(
    tmp_path: Path, of_target: bool
) -> None:
    """Breaks when the password is wanted by the ones and refused for the others."""
    stores, replicas, ports = tmp_path / "stores", tmp_path / "replicas", free_ports(2)
    stores.mkdir()
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    keys = {mechanism: users.derive(mechanism, "pencil", b"salt" * 4) for mechanism in users.HASHES}
    (tmp_path / "users").write_text(f"{users.line_of('ann', keys)}\n")
    secured = ["--users", str(tmp_path / "users")]
    target = BrokerProcess(tmp_path / "target", ports[1], secured if of_target else [])
    last = BrokerProcess(tmp_path / "last", ports[0], [] if of_target else secured)
    last.store = stores / "queues-1"
    password = ("--password-file", str(tmp_path / "password"))
    open_one, guarded = (last, target) if of_target else (target, last)
    files = ("--stores", str(stores), "--replicas-file", str(replicas), "--format", "json", "--poll", "0.1")
    brokers, to = f"127.0.0.1:{{{ports[0] - 1}+ordinal}}", target.address
    where = ("--brokers", brokers, "--to", f"ann@{to}") if of_target else ("--brokers", f"ann@{brokers}", "--to", to)

    def once(wanted: int) -> list[str]:
        """The events but the first."""
        replicas.write_text(str(wanted))
        found = run("qpid-scaledown", *files, *where, *password, "--once")
        events = [json.loads(line) for line in found.out.splitlines()]
        assert found.status == 0, found
        return [each["event"] for each in events if each["event"] in ("drain", "call off", "done", "failed", "denied")]

    def has_login(broker: BrokerProcess) -> bool:
        return run("qpid-stat", "-g", "-b", f"ann@{broker.address}", *password).status == 0

    try:
        for broker in (target, last):
            broker.start()
        open_one.wait_for("standalone")
        eventually(lambda: has_login(guarded), bool, "a login")
        assert once(2) == [], "it serves, as it said itself"
        last.stop()
        assert once(1) == ["drain", "done"]
        last.start()
        eventually(lambda: once(2), lambda events: events == ["call off", "done"], "the broker serving again")
        assert once(2) == []
    finally:
        for broker in (target, last):
            broker.kill()


def test_a_broker_that_does_not_let_the_controller_in_is_not_taken_for_one_that_is_down(tmp_path: Path) -> None:
    """Breaks when the drain of a wanted broker is never cancelled because of a wrong password, and nobody is told."""
    stores, replicas, ports = tmp_path / "stores", tmp_path / "replicas", free_ports(3)
    stores.mkdir()
    (tmp_path / "right").write_text("pencil\n")
    (tmp_path / "wrong").write_text("pen\n")
    for name in ("right", "wrong"):
        (tmp_path / name).chmod(0o600)
    own_ca = authority().write(tmp_path)
    (tmp_path / "other").mkdir()
    trusted = Authority("Another one").write(tmp_path / "other")
    target = BrokerProcess(tmp_path / "target", ports[2], [])
    wanted = BrokerProcess(tmp_path / "wanted", ports[0], _guarded(tmp_path, ports))
    wanted.store = stores / "queues-1"
    replicas.write_text("2")

    def words(port: int, before: str) -> tuple[str, ...]:
        files = ("--stores", str(stores), "--replicas-file", str(replicas), "--format", "json")
        return (*files, "--brokers", f"{before}127.0.0.1:{{{port - 1}+ordinal}}", "--to", before + target.address)

    over_tls = (*words(ports[1], "ssl:"), "--ssl-ca-file", str(trusted))

    def once(*words: str) -> tuple[int, list[tuple[str, str]]]:
        """The exit code, and the events with their reasons."""
        found = run("qpid-scaledown", *words, "--once")
        events = [json.loads(line) for line in found.out.splitlines()]
        return found.status, [(each["event"], each.get("why", "")) for each in events if each["event"] != "wanted"]

    def by(user: str, password: str) -> tuple[int, list[tuple[str, str]]]:
        return once(*words(ports[0], user if "@" in user else f"{user}@"), "--password-file", str(tmp_path / password))

    def leaves() -> bool:
        return bool(ask(wanted.address, "QUERY", "drain")["items"][0]["leaving"])

    try:
        for broker in (target, wanted):
            broker.start()
            broker.wait_for("standalone")
        assert run("qpid-drain", "--from", wanted.address, "--to", target.address, "--spread", "0").status == 0
        for (status, events), reason in (
            (by("ann", "wrong"), "the broker does not let this login in"),
            (by("bob", "right"), "bob@QPID may not: access query schemaclass=drain"),
            (once(*over_tls), "certificate is not trusted"),
            (by("ann@127.0.0.1:1,", "wrong"), "the broker does not let this login in"),
            (once(*words(ports[0], "127.0.0.1:1,")), "standalone: it is in no cluster"),
        ):
            assert (status, [event for event, _ in events]) == (1, ["denied"]), reason
            assert reason in events[0][1]
            assert leaves()
        log = tmp_path / "controller.log"
        controller = spawn(log, "qpid-scaledown", *over_tls, "--poll", "0.1")
        eventually(log.read_text, lambda text: '"denied"' in text, "the controller saying that it cannot ask")
        own_ca.replace(trusted)
        eventually(log.read_text, lambda text: '"done"' in text, "the drain cancelled, with the certificates of now")
        assert log.read_text().count('"denied"') == 1, "told once"
        assert not leaves()
        controller.send_signal(9)
        controller.wait()
        wanted.kill()
        assert by("ann", "wrong") == (0, []), "a broker that is down is asked later"
    finally:
        for broker in (target, wanted):
            broker.kill()
