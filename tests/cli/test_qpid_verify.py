"""The command's words. What it finds out about brokers is in tests/system/test_verify.py, what it counts in tests/cli/verify."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from broker.core.sasl_client import Login
from cli.options import Target
from cli.programs import MODULES
from cli.verify.clients import Setting
from cli.verify.qpid_verify import read
from resource_manager.net.probe import Line
from tests.cli.running import LONGEST_S, environment, run


@pytest.mark.parametrize(
    "words, text",
    [
        ([], "--brokers URL is needed"),
        (["--brokers", "amqp:host:99999"], '"99999" in "host:99999" is not a port'),
        (["--brokers", "host,host"], '"host:5672" is given twice'),
        (["--brokers", "amqps:host", "--ssl-ca-file", "/nowhere"], "/nowhere: cannot be read: No such file"),
        (["--brokers", "amqps:host", "--ssl-key", "/key"], "--ssl-key has no effect without --ssl-certificate"),
        (["-b", "a", "--seconds", "soon"], "'soon' is not a number of seconds"),
        (["-b", "a", "--queues", "0"], "'0' is not a whole number from 1 to 1000"),
        (["-b", "a", "--replicate", "some"], "'some' is not one of all, configuration, none"),
        (["-b", "a", "--queue-prefix", "a/b"], "'a/b' is not a name"),
        (["-b", "a", "--config", "/nowhere"], "cannot read the configuration file /nowhere"),
        (["--dance"], "--dance"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_in_one_line(words: list[str], text: str) -> None:
    ran = run("qpid-verify", *words)
    assert ran.status == 2
    assert text in ran.err


def test_without_a_folder_for_temporary_files_it_does_not_end_as_if_a_message_were_lost() -> None:
    """As in a container with a read-only root; here, because no file may have a byte."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); main()"
    program = f"from {MODULES['qpid-verify']} import main; {limited}"
    command = [sys.executable, "-c", program, "-b", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, env=environment(), check=False)
    told = "qpid-verify: no folder for temporary files can be written: name one in TMPDIR (see qpid-verify --help)\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_password_is_taken_from_a_file_and_is_not_shown_in_an_error(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o600)
    ran = run("qpid-verify", "-b", "amqp:me@127.0.0.1:1", "--password-file", file, "--timeout", "0.1")
    assert ran.status == 3
    assert "secret" not in ran.out + ran.err


def test_a_reason_of_several_brokers_is_told_once(peers: Any) -> None:
    """Breaks when a wrong password fills the screen, with the question whether the cluster runs."""
    ran = run("qpid-verify", "-b", "127.0.0.1:1,127.0.0.1:2", "--timeout", "0.1")
    hint = "is the cluster running, and has it a primary (qpid-ha status --all)?"
    told = f"no broker serves us: 127.0.0.1:1 refuses the connection, like 127.0.0.1:2; {hint}"
    assert (ran.status, ran.err) == (3, f"qpid-verify: {told}\n")
    first, second = (peers(ha={"status": "active"}).name for _ in range(2))
    ran = run("qpid-verify", "-b", f"ann@{first},{second}", "--sasl-mechanism", "SCRAM-SHA-256", "--timeout", "0.1")
    assert ran.status == 3
    assert (ran.err.count("does not let us in"), ran.err.endswith(f", like {second}\n")) == (1, True), ran.err


def test_a_password_is_in_no_repr_of_what_is_told_a_command_or_a_daemon() -> None:
    """A repr stands in tracebacks and in failed assertions, and so in logs."""
    settings = read({}, {"QPID_BROKERS": "amqp:me/secret@a"})
    line = Line("me", "secret", "", "daemon", 1.0, 1.0)
    target = Target(settings.url, 1.0, "", False)
    assert "secret" in (settings.workload.login.password, line.password)
    assert "secret" not in repr((settings, line, target, settings.url, Login("me", "secret")))
    assert [one.repr for one in fields(Setting) if one.name == "login"] == [False]


@pytest.mark.parametrize("command", ["qpid-verify", "qpid-stat -g", "qpid-config", "qpid-ha status", "qpid-resource-manager"])
def test_a_password_on_a_command_line_is_refused_and_not_shown(command: str) -> None:
    name, *words = command.split()
    option = "--brokers" if name in ("qpid-verify", "qpid-resource-manager") else "--broker"
    ran = run(name, *words, option, "amqp:me/secret@127.0.0.1:1")
    assert (ran.status, "secret" in ran.out + ran.err) == (2, False)
    assert f"{option}: other users of this machine can see a password on a command line: give it in QPID_BROKER" in ran.err


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def foreign() -> Iterator[str]:
    """A port behind which there is a web server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1000)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_where_no_broker_is_it_says_what_each_address_did(silent: str, foreign: str) -> None:
    ran = run("qpid-verify", "-b", f"127.0.0.1:1,no-such-host.invalid,{silent},{foreign}", "--timeout", "0.5")
    assert ran.status == 3
    assert ran.out == ""
    for said in ("127.0.0.1:1 refuses the connection", "no-such-host.invalid:5672 cannot be reached"):
        assert said in ran.err
    assert f"{silent} does not answer" in ran.err
    assert f"{foreign} does not speak AMQP" in ran.err
    assert "qpid-ha status --all" in ran.err


def test_options_come_from_the_environment_too() -> None:
    environment = {
        "QPID_BROKERS": "a,b:1",
        "QPID_SECONDS": "3",
        "QPID_QUEUES": "2",
        "QPID_QUEUE_PREFIX": "jobs",
        "QPID_RATE": "5",
    }
    settings = read({"rate": "7"}, environment)
    assert settings.seconds == 3
    assert list(settings.workload.addresses) == ["a:5672", "b:1"]
    assert list(settings.workload.queues) == ["jobs-1", "jobs-2"]
    assert settings.workload.rate == 7


def test_a_user_in_the_url_is_who_the_clients_are() -> None:
    assert read({}, {"QPID_BROKERS": "amqp:me/secret@a"}).workload.login == Login("me", "secret")
    assert read({"brokers": "a"}, {}).workload.login == Login()
    assert read({"brokers": "a", "sasl_mechanism": "EXTERNAL"}, {}).workload.login == Login(mechanism="EXTERNAL")
