"""Clients that others wrote log in by the mechanisms that they have: Proton in Python and C++, rhea, and the commands of ours.

One broker offers every mechanism that there is. What a client is let in as is read from the broker's own list of connections.
C++ and rhea need a compiler, libraries and Node, which not every machine has: there a warning says why they were not tried.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import users_file
from broker.core import users
from tests.certificates import CLIENT, authority
from tests.cli.running import ROOT, environment, run
from tests.system.harness import BrokerProcess, ask, eventually, standalone
from tests.system.test_interop import HERE, INSTALL_S, NotHere, compiled

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
PASSWORD = "pencil"
Program = list[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("logins")
    keys = {mechanism: users.derive(mechanism, PASSWORD, b"salt" * 4) for mechanism in users.HASHES}
    users_file.change(folder / "users", lambda text: users.with_line(text, "ann", users.line_of("ann", keys)))
    options = ["--users", folder / "users", "--sasl-mechanisms", f"EXTERNAL,{','.join(MECHANISMS)}", "--plain-without-tls", "yes"]
    certificate, key = authority().issue("broker", "127.0.0.1").write(folder, "broker")
    options += ["--ssl-certificate", certificate, "--ssl-key", key, "--ssl-ca-file", authority().write(folder)]
    with standalone(folder, *map(str, options), "--ssl-port", "0") as found:
        yield found


@pytest.fixture(scope="module")
def certified(broker: BrokerProcess) -> list[str]:
    """Where the broker listens for TLS; certificate and key of ann; and the authority's."""
    folder = broker.store.parent
    port = re.search(r"SSL connections on TCP/TCP6 port ([0-9]+)", broker.log())
    assert port is not None
    own = authority().issue("ann", purposes=CLIENT).write(folder, "ann")
    return [f"127.0.0.1:{port[1]}", *map(str, own), str(folder / "ca.pem")]


def python(folder: Path) -> Program:
    return [sys.executable, str(HERE / "login.py")]


def cpp(folder: Path) -> Program:
    return [str(compiled(HERE / "login.cpp", folder))]


def rhea(folder: Path) -> Program:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotHere("needs node and npm")
    shutil.copy(HERE / "login.js", folder)
    install = [npm, "install", "--no-audit", "--no-fund", "--fetch-retries", "1", "--prefix", str(folder), "rhea@3"]
    try:
        made = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotHere(f"needs rhea from npm, which did not come within {INSTALL_S} s") from None
    if made.returncode != 0:
        raise NotHere(f"needs rhea from npm: {made.stderr.strip().splitlines()[-1]}")
    return [node, str(folder / "login.js")]


CLIENTS: dict[str, tuple[Callable[[Path], Program], tuple[str, ...]]] = {
    "python": (python, ("PLAIN", "ANONYMOUS")),
    "cpp": (cpp, ("PLAIN", "ANONYMOUS")),
    "rhea": (rhea, ("PLAIN", "ANONYMOUS")),
}
"""Each client, and the mechanisms that it has as it is installed: neither Debian's Proton nor PyPI's is built with Cyrus SASL, so
that SCRAM is tried by our own commands."""


@contextlib.contextmanager
def logged_in(program: Program, address: str, mechanism: str, who: list[str], log: Path) -> Iterator[str]:
    """What the client says; it goes with the context."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*program, address, mechanism, *who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def present(broker: BrokerProcess) -> set[tuple[str, str]]:
    """Mechanism and user of every connection but the one that asks, which is nobody's."""
    found = [(item["mechanism"], item["user"]) for item in ask(broker.address, "QUERY", "connection")["items"]]
    found.remove(("ANONYMOUS", "anonymous"))
    return set(found)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_by_each_mechanism_that_it_has(broker: BrokerProcess, client: str, tmp_path: Path) -> None:
    make, mechanisms = CLIENTS[client]
    try:
        program = make(tmp_path)
    except NotHere as reason:
        warnings.warn(f"{client} was not tried: it {reason}", stacklevel=1)
        return
    for mechanism in mechanisms:
        log = tmp_path / f"{mechanism}.log"
        who = [] if mechanism == "ANONYMOUS" else ["ann", PASSWORD]
        with logged_in(program, broker.address, mechanism, who, log) as said:
            assert said == "open", (mechanism, log.read_text())
            user = "anonymous" if mechanism == "ANONYMOUS" else "ann@QPID"
            assert present(broker) == {(mechanism, user)}
        eventually(lambda: present(broker), lambda left: not left, "its leaving")
        if mechanism != "ANONYMOUS":
            with logged_in(program, broker.address, mechanism, ["ann", "wrong"], log) as said:
                assert (mechanism, said) == (mechanism, "refused")


def test_a_certificate_is_a_login(broker: BrokerProcess, certified: list[str], tmp_path: Path) -> None:
    address, certificate, key, trusted = certified
    with logged_in(python(tmp_path), address, "EXTERNAL", [certificate, key, trusted], tmp_path / "log") as said:
        assert said == "open", (tmp_path / "log").read_text()
        assert present(broker) == {("EXTERNAL", "ann@QPID")}
    files = ["--ssl-certificate", certificate, "--ssl-key", key, "--ssl-ca-file", trusted]
    ran = run("qpid-stat", "-c", "-b", f"amqps:{address}", "--sasl-mechanism", "EXTERNAL", *files)
    assert (ran.status, "EXTERNAL" in ran.out, "ann@QPID" in ran.out) == (0, True, True), ran.err


def test_the_users_are_read_again_at_a_hangup_unless_they_have_become_wrong(broker: BrokerProcess, tmp_path: Path) -> None:
    file, password = broker.store.parent / "users", tmp_path / "password"
    password.write_text("other\n")
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


@pytest.mark.parametrize("mechanism", ["", *MECHANISMS])
def test_our_commands_log_in_by_each_mechanism(broker: BrokerProcess, mechanism: str, tmp_path: Path) -> None:
    """Without a mechanism named, by the best that there is."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    named = ["--sasl-mechanism", mechanism] if mechanism else []
    ran = run("qpid-stat", "-c", "-b", f"ann@{broker.address}", "--password-file", file, *named)
    assert ran.status == 0, ran.err
    used = mechanism or MECHANISMS[0]
    assert used in ran.out
    assert ("anonymous" if mechanism == "ANONYMOUS" else "ann@QPID") in ran.out
    file.write_text("wrong\n")
    ran = run("qpid-stat", "-c", "-b", f"ann@{broker.address}", "--password-file", file, *named)
    assert (ran.status, "the broker does not let this login in" in ran.err) == (
        (0, False) if mechanism == "ANONYMOUS" else (3, True)
    )
