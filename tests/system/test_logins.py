"""Clients by other authors log in by all their mechanisms: Proton in Python and C++, rhea, Azure's AMQP. Our own clients do
too.

One broker offers all mechanisms. The user of a client is read from the broker's own list of connections. C++, rhea and
Azure's library need a compiler, libraries, Node and registries, which not every machine has: there a warning says why they
were not run.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest
from proton import ProtonException, symbol
from proton.utils import BlockingConnection

from broker import users_file
from broker.core import limits, users
from tests.certificates import CLIENT, authority
from tests.cli.running import ROOT, Ran, environment, run
from tests.system.harness import BrokerProcess, Place, ask, cluster, eventually, free_ports, spawn, standalone
from tests.system.programs import AZURE, HERE, answer, compiled, from_pypi, tried, with_rhea
from tests.tokens import AUDIENCE, ISSUER, key_set, token

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
"""Those by which our commands log in without a certificate."""
PASSWORD = "pencil"
Program = list[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("logins")
    keys = {mechanism: users.derive(mechanism, PASSWORD, b"salt" * 4) for mechanism in users.HASHES}
    users_file.change(folder / "users", lambda text: users.with_line(text, "ann", users.line_of("ann", keys)))
    options = ["--users", folder / "users", "--sasl-mechanisms", f"EXTERNAL,XOAUTH2,OAUTHBEARER,{','.join(MECHANISMS)}"]
    options += ["--plain-without-tls", "yes"]
    with standalone(folder, *map(str, options), *by_tokens(folder), "--ssl-port", "0") as found:
        yield found


def by_tokens(folder: Path) -> list[str]:
    """The options of a broker that takes tokens, and the files that they name."""
    (folder / "keys.json").write_text(key_set("RS256"))
    options = ["--token-keys", folder / "keys.json", "--token-issuer", ISSUER, "--token-audience", AUDIENCE]
    certificate, key = authority().issue("broker", "127.0.0.1").write(folder, "broker")
    options += ["--ssl-certificate", certificate, "--ssl-key", key, "--ssl-ca-file", authority().write(folder)]
    return list(map(str, options))


def tls_of(broker: BrokerProcess) -> str:
    """Where it listens for TLS."""
    port = re.search(r"SSL connections on TCP/TCP6 port ([0-9]+)", broker.log())
    assert port is not None
    return f"127.0.0.1:{port[1]}"


@pytest.fixture(scope="module")
def certified(broker: BrokerProcess) -> list[str]:
    """Where the broker listens for TLS; certificate and key of ann; and the authority's."""
    folder = broker.store.parent
    own = authority().issue("ann", purposes=CLIENT).write(folder, "ann")
    return [tls_of(broker), *map(str, own), str(folder / "ca.pem")]


def python(folder: Path) -> Program:
    return [sys.executable, str(HERE / "login.py")]


def cpp(folder: Path) -> Program:
    return [str(compiled(HERE / "login.cpp", folder))]


def rhea(folder: Path) -> Program:
    return with_rhea("login.js", folder)


def azure(folder: Path) -> Program:
    return from_pypi("login_azure.py", folder, AZURE)


TOKEN = "PLAIN with a token"
EVERY = ("PLAIN", TOKEN, "EXTERNAL", "ANONYMOUS")
CLIENTS: dict[str, tuple[Callable[[Path], Program], tuple[str, ...], tuple[str, ...]]] = {
    "python": (python, EVERY, ("SCRAM-SHA-256", "XOAUTH2", "OAUTHBEARER")),
    "cpp": (cpp, EVERY, ("SCRAM-SHA-256", "XOAUTH2", "OAUTHBEARER")),
    "rhea": (rhea, (*EVERY, "XOAUTH2"), ()),
    "azure": (azure, EVERY, ()),
}
"""Each client, the logins that it has as it is installed, and those that it can be told to use and has not: neither Debian's
Proton nor PyPI's is built with Cyrus SASL, so that SCRAM is tried by our own commands."""


@contextlib.contextmanager
def started(program: Program, log: Path) -> Iterator[subprocess.Popen[str]]:
    """The client, which logs in when it is told to; it goes with the context."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment()
        ) as process,
    ):
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


@contextlib.contextmanager
def logged_in(client: subprocess.Popen[str], address: str, mechanism: str, who: list[str]) -> Iterator[str]:
    """What the client says; when it is let in, it leaves with the context."""
    assert client.stdin is not None
    assert client.stdout is not None
    print(address, mechanism, *who, file=client.stdin, flush=True)
    said = client.stdout.readline().strip()
    yield said
    if said == "open":
        print(file=client.stdin, flush=True)


def present(broker: BrokerProcess) -> set[tuple[str, str]]:
    """Mechanism and user of every connection but the one that asks, which is nobody's."""
    found = [(item["mechanism"], item["user"]) for item in ask(broker.address, "QUERY", "connection")["items"]]
    found.remove(("ANONYMOUS", "anonymous"))
    return set(found)


def verify(*words: object) -> Ran:
    """To the broker that the first word is the URL of."""
    return run("qpid-verify", "-b", *words, "--seconds", "0.2", "--json")


@pytest.mark.parametrize("how", ["SCRAM-SHA-256 in the clear", "the best over TLS", "EXTERNAL over TLS"])
def test_the_clients_of_qpid_verify_log_in_by_what_proton_itself_has_not(
    broker: BrokerProcess, certified: list[str], how: str, tmp_path: Path
) -> None:
    """Nothing of theirs comes in by another name or mechanism meanwhile."""
    secure, certificate, key, trusted = certified
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    by_password = ["--password-file", password]
    words: tuple[object, ...] = {
        "SCRAM-SHA-256 in the clear": (f"ann@{broker.address}", *by_password, "--sasl-mechanism", "SCRAM-SHA-256"),
        "the best over TLS": (f"amqps:ann@{secure}", *by_password, "--ssl-ca-file", trusted),
        "EXTERNAL over TLS": (
            *(f"amqps:{secure}", "--sasl-mechanism", "EXTERNAL", "--ssl-ca-file", trusted),
            *("--ssl-certificate", certificate, "--ssl-key", key),
        ),
    }[how]
    seen: set[tuple[str, str]] = set()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: verify(*words))
        while not wait([running], 0.1).done:
            seen |= present(broker)
        ran = running.result()
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["accepted"] > 0
    mechanism = how.split(maxsplit=1)[0] if how[0] != "t" else "SCRAM-SHA-512"
    assert seen == {(mechanism, "ann@QPID")}


@pytest.mark.parametrize(
    "words, why",
    [
        (("amqps:ann@{secure}",), "the other side's certificate is not trusted: "),
        (("amqps:ann@localhost:{port}", "--ssl-ca-file", "{trusted}"), "the server's certificate is not for localhost: it names"),
        (("amqps:ann@{secure}", "--ssl-ca-file", "{trusted}"), "the broker does not let this login in"),
        (("amqps:{secure}", "--ssl-ca-file", "{trusted}", "--sasl-mechanism", "EXTERNAL"), "and this client wants EXTERNAL"),
    ],
)
def test_qpid_verify_says_why_it_is_not_let_in(
    broker: BrokerProcess, certified: list[str], words: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    password.chmod(0o600)
    known = {"secure": certified[0], "port": certified[0].rpartition(":")[2], "trusted": certified[3]}
    by_password = ["--password-file", password] if "@" in words[0] else []
    ran = verify(*(word.format(**known) for word in words), *by_password, "--timeout", "1")
    assert (ran.status, why in ran.err, "Traceback" in ran.err) == (3, True, False), ran.err


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_by_each_mechanism_that_it_has(
    broker: BrokerProcess, certified: list[str], client: str, programs: Path, tmp_path: Path
) -> None:
    """And by no other, where it can be told to: the table in docs/howto/users.md is made of this."""
    make, has, has_not = CLIENTS[client]
    if (program := tried(client, make, programs)) is None:
        return
    address, certificate, key, trusted = certified
    issued, log = token("RS256", exp=time.time() + 600), tmp_path / "log"
    with started(program, log) as running:
        for login in has:
            mechanism = "PLAIN" if login == TOKEN else login
            secret = issued if login in (TOKEN, "XOAUTH2") else PASSWORD
            with logged_in(running, address, mechanism, ["ann", secret, trusted, certificate, key]) as said:
                assert (login, said) == (login, "open"), log.read_text()
                user = "anonymous" if mechanism == "ANONYMOUS" else "ann@QPID"
                assert present(broker) == {(mechanism, user)}
            eventually(lambda: present(broker), lambda left: not left, "its leaving")
        for login in (*has_not, "PLAIN"):
            with logged_in(running, address, login, ["ann", "wrong", trusted, certificate, key]) as said:
                assert (login, said) == (login, "refused")
        assert not any(part in broker.log() for part in issued.split(".")), "nothing of a token is in a log"
        if client == "azure":
            puts_its_token(running, tmp_path, [trusted, certificate, key])


def puts_its_token(client: subprocess.Popen[str], folder: Path, files: list[str]) -> None:
    """It comes in as nobody, and shows the node `$cbs` who it is."""
    options = [*by_tokens(folder), "--token-put", "yes", "--ssl-port", "0"]
    broker = BrokerProcess(folder / "broker", free_ports(1)[0], options)
    broker.start()
    try:
        eventually(broker.log, lambda log: "Listening for SSL" in log, "a broker that lets nobody in without a login")
        for secret, outcome in ((token("RS256", exp=time.time() + 600), "open"), ("wrong", "refused")):
            with logged_in(client, tls_of(broker), "CBS", ["ann", secret, *files]) as said:
                assert said == outcome, (folder / "log").read_text()
        eventually(broker.log, lambda log: "was refused: SASL CBS: the token is not a JSON Web Token" in log, "the refusal")
    finally:
        broker.kill()


AZURE_HOST = "127.55.71.1"
"""Azure's client connects to port 5671, and to no other: the test has an address of its own for that."""


def test_azure_s_client_sends_batches_and_receives_and_settles(programs: Path, tmp_path: Path) -> None:
    """By its own API, over TLS, with a token that it puts to `$cbs`, and with URLs for addresses."""
    program = tried("azure", lambda folder: from_pypi("servicebus.py", folder, AZURE), programs)
    if program is None:
        return
    options = [*by_tokens(tmp_path), "--token-put", "yes", "--plain-without-tls", "yes", "--ssl-port", "5671"]
    certificate, key = authority().issue("azure", AZURE_HOST).write(tmp_path, "azure")
    options += ["--ssl-certificate", str(certificate), "--ssl-key", str(key)]
    broker = BrokerProcess(tmp_path / "broker", free_ports(1)[0], options, Place(AZURE_HOST))
    broker.start()
    try:
        eventually(broker.log, lambda log: "Listening for SSL" in log, "a broker on port 5671")
        issued = tmp_path / "token"
        issued.write_text(token("RS256", exp=time.time() + 600))
        issued.chmod(0o600)

        def config(*words: str) -> str:
            login = ["-b", f"ann@{broker.address}", "--password-file", issued, "--sasl-mechanism", "PLAIN"]
            ran = run("qpid-config", *words, *login)
            assert ran.status == 0, ran.err
            return ran.out

        config("add", "exchange", "fanout", "failures")
        config("add", "queue", "dead")
        config("bind", "failures", "dead")
        config("add", "queue", "orders", "--alternate-exchange", "failures")
        said = answer(*program, AZURE_HOST, issued.read_text(), str(tmp_path / "ca.pem"), "orders")
        batch = [f"in a batch {number}" for number in range(500)]
        assert said.pop("came") == ["single", "listed 0", "listed 1", "listed 2", *batch]
        assert said.pop("batch bytes") > 3 * limits.MAX_FRAME_BYTES, "it comes in several frames"
        assert said == {
            "kept": ["1", "2", True],
            "again": [["listed 0", 1]],
            "deleted": ["to be deleted"],
            "renewal": "ValueError",
            "schedule": "ServiceBusError",
            "session": "ServiceBusError",
        }
        left = {queue["name"]: queue["messages"] for queue in json.loads(config("list", "queue", "--format", "json"))}
        assert left == {"dead": 1, "orders": 0}
    finally:
        broker.kill()


def test_a_certificate_is_a_login(broker: BrokerProcess, certified: list[str], tmp_path: Path) -> None:
    address, certificate, key, trusted = certified
    files = ["--ssl-certificate", certificate, "--ssl-key", key, "--ssl-ca-file", trusted]
    ran = run("qpid-stat", "-c", "-b", f"amqps:{address}", "--sasl-mechanism", "EXTERNAL", *files)
    assert (ran.status, "EXTERNAL" in ran.out, "ann@QPID" in ran.out) == (0, True, True), ran.err


def test_the_users_are_read_again_at_a_hangup_unless_they_have_become_wrong(broker: BrokerProcess, tmp_path: Path) -> None:
    file, password = broker.store.parent / "users", tmp_path / "password"
    password.write_text("other\n")
    password.chmod(0o600)
    keys = {mechanism: users.derive(mechanism, "other", b"salt" * 4) for mechanism in users.HASHES}

    def hang_up_until(said: str) -> None:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        eventually(broker.log, lambda log: said in log, said)

    def status() -> int:
        return run("qpid-stat", "-g", "-b", f"bob@{broker.address}", "--password-file", password).status

    assert status() == 3
    users_file.change(file, lambda text: users.with_line(text, "bob", users.line_of("bob", keys)))
    hang_up_until(f"2 users read from {file}")
    assert status() == 0
    right = file.read_text()
    file.write_text("bob other\n")
    hang_up_until(f"{file}:1: bob has keys that cannot be read")
    assert status() == 0, "the old ones stay in force"
    file.write_text(right)
    staying = BlockingConnection(f"amqp://{broker.address}", user="bob", password="other", allowed_mechs="PLAIN")
    users_file.change(file, lambda text: users.with_line(text, "bob", None))
    hang_up_until(f"1 users read from {file}")
    with pytest.raises(ProtonException, match="bob@QPID is not a user of this broker any more"):
        staying.wait(lambda: False, timeout=30)


@pytest.mark.parametrize("mechanism", ["", *MECHANISMS])
def test_our_commands_log_in_by_each_mechanism(broker: BrokerProcess, mechanism: str, tmp_path: Path) -> None:
    """Without a mechanism named, by the best that there is."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    named = ["--sasl-mechanism", mechanism] if mechanism else []
    ran = run("qpid-stat", "-c", "-b", f"ann@{broker.address}", "--password-file", file, *named)
    assert ran.status == 0, ran.err
    used = mechanism or MECHANISMS[0]
    assert used in ran.out
    assert ("anonymous" if mechanism == "ANONYMOUS" else "ann@QPID") in ran.out
    file.write_text("wrong\n")
    file.chmod(0o600)
    ran = run("qpid-stat", "-c", "-b", f"ann@{broker.address}", "--password-file", file, *named)
    assert (ran.status, "the broker does not let this login in" in ran.err) == (
        (0, False) if mechanism == "ANONYMOUS" else (3, True)
    )


def test_our_commands_show_a_token_as_a_password(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "token"
    words = ["-b", f"ann@{broker.address}", "--password-file", file, "--sasl-mechanism", "PLAIN"]
    file.write_text(token("RS256", exp=time.time() + 600))
    file.chmod(0o600)
    ran = run("qpid-stat", "-c", *words)
    assert (ran.status, "ann@QPID" in ran.out) == (0, True), ran.err
    file.write_text(token("RS256", exp=time.time() - 600))
    assert run("qpid-stat", "-c", *words).status == 3
    assert "SASL PLAIN: the token has expired" in broker.log()


def test_a_cluster_s_brokers_log_in_to_each_other_and_nobody_else_replicates(tmp_path: Path) -> None:
    """Its resource manager logs in too, and promotes the next primary. The tests ask as nobody, which this cluster allows."""
    file, password = tmp_path / "users", tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    for name in ("brokers", "manager"):
        keys = {mechanism: users.derive(mechanism, PASSWORD, name.encode() * 4) for mechanism in users.HASHES}
        users_file.change(file, partial(users.with_line, name=name, line=users.line_of(name, keys)))
    options = ["--users", file, "--sasl-mechanisms", "SCRAM-SHA-256,ANONYMOUS"]
    options += ["--ha-username", "brokers", "--ha-password-file", password]
    with cluster(tmp_path, 3, *map(str, options), promote=False) as three:
        url = three.url.replace("amqp:", "manager@")
        daemon = spawn(tmp_path / "daemon.log", "qpid-resource-manager", "--brokers", url, "--password-file", str(password))
        try:
            first = eventually(three.primary, bool, "a first primary")
            for broker in three.brokers:
                broker.wait_for("ready", "active")
            assert present(first) == {("SCRAM-SHA-256", "brokers@QPID"), ("SCRAM-SHA-256", "manager@QPID")}
            backup = next(broker for broker in three.brokers if broker is not first)
            with pytest.raises(ProtonException, match="anonymous is not the user of links between brokers"):
                BlockingConnection(f"amqp://{first.address}", properties={symbol("qpid.ha-peer"): backup.address})
            first.kill()
            second = eventually(three.primary, lambda found: found is not first, "another primary")
            assert second.status()["epoch"] > 1
        finally:
            daemon.kill()
