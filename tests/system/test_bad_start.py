"""A broker that cannot start says why in one line, changes no data of others, and disturbs no running broker.

Each test runs the real command to its end. Wrong usage ends with 2, and so does a file of an option that cannot be used.
Every other reason that prevents the start ends with 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.disk.durable import read_json, seal_json
from broker.disk.files import REAL_DISK
from tests.cli.running import ROOT, Ran, ended, environment
from tests.system.harness import BrokerProcess, Refused, eventually, standalone

USAGE, CANNOT = 2, 1


def refusal(*options: object, status: int = CANNOT, wrapper: tuple[str, ...] = ()) -> str:
    """The one line that qpidd with these options says; AssertionError when it says more, or ends otherwise."""
    ran = within(wrapper, *options) if wrapper else ended("qpidd", *options)
    lines = [line for line in ran.err.splitlines() if " info " not in line]
    assert (ran.status, len(lines), ran.out) == (status, 1, ""), str(ran)
    name, text = lines[0].split(": ", 1)
    assert name == "qpidd"
    return text


def within(wrapper: tuple[str, ...], *options: object) -> Ran:
    """The command in an interpreter that another program starts."""
    command = [*wrapper, sys.executable, "-m", "cli.commands.qpidd", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment(), check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("running")
    (folder / "passwords").write_text("ann secret\n")
    (folder / "passwords").chmod(0o644)
    with standalone(folder / "broker", "--route-passwords", str(folder / "passwords")) as broker:
        broker.create("queue", "kept")
        yield broker
        assert broker.queue("kept")["name"] == "kept"


# ---- options


@pytest.mark.parametrize(
    "options, said",
    [
        (["--prot", "1"], "No such option"),
        (["--ssl-certificate", "/nowhere"], "/nowhere: cannot be read: No such file or directory"),
        (["--ssl-certificate", str(ROOT / "README.md")], f"{ROOT / 'README.md'}: there is no certificate in PEM form"),
        (["--require-encryption", "yes"], "--require-encryption yes leaves no port to listen on: give --ssl-certificate"),
        (["--port", "99999"], "--port: '99999' is not a whole number from 0 to 65535"),
        (["--ha-cluster", "yes"], "--ha-cluster yes needs the addresses of all members: give --ha-brokers-url amqp:host1:5672,"),
        (["--ha-brokers-url", "amqp:a:1,b:x"], "--ha-brokers-url: "),
        (["--ha-brokers-url", "amqp:me/secret@a:1"], "--ha-brokers-url: give the addresses alone, without a user"),
        (["--ha-username", "me", "--ha-password", "secret"], "--ha-password: other users of this machine can see a password"),
        (["--auth", "yes"], "--auth yes needs --users FILE: qpid-passwd add FILE NAME makes one"),
        (["--interface", "eth0"], "--interface: 'eth0' is not an IP address to listen on"),
        (["--max-frame-size", "100"], "--max-frame-size: '100' is not a size from 512 to 1M"),
        (["--config", ""], "--config: a file is needed"),
        (["--data-dir", "same", "--telemetry-dir", "same"], "--telemetry-dir and --data-dir are the same folder, same"),
        (
            ["--config", "/nowhere/qpidd.conf"],
            "cannot read the configuration file /nowhere/qpidd.conf: No such file or directory",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_usage_and_named(options: list[str], said: str) -> None:
    text = refusal(*options, status=USAGE)
    assert text.startswith(said)
    assert "secret" not in text


def test_an_unknown_key_in_the_configuration_file_is_told_with_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "qpidd.conf"
    config.write_text("# a broker\nport=0\nmax-conections=5\n")
    said = refusal("--config", config, "--data-dir", tmp_path / "store", status=USAGE)
    assert said == f"{config}:3: there is no option 'max-conections'; did you mean 'max-connections'?"
    assert not (tmp_path / "store").exists()


def test_a_limit_of_open_files_that_leaves_clients_none_is_told(tmp_path: Path) -> None:
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", wrapper=("prlimit", "--nofile=320:320"))
    assert said.startswith(
        "only 320 files may be open, and a broker needs 320 for its disk, the other members and administrators"
    )
    assert not (tmp_path / "store").exists()


def test_a_hangup_is_no_end(running: BrokerProcess) -> None:
    running.signal(signal.SIGHUP)
    eventually(running.log, lambda log: "SIGHUP has no effect" in log, "the broker saying what it makes of a hangup")
    assert running.state() == "standalone"


def test_a_wrong_line_in_the_acl_file_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.acl").write_text("acl allow ann all\nacl alow eve all\n")
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--acl-file", "a.acl", status=USAGE)
    assert said == f"{tmp_path}/store/a.acl:2: 'alow' is not a permission: one of allow, allow-log, deny, deny-log"
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a.acl"], "nothing else was touched"


def test_a_users_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    file = tmp_path / "users"
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--users", file, status=USAGE)
    assert said == f"there is no users' file {file}: make one with qpid-passwd add {file} NAME"
    assert not (tmp_path / "store").exists()


def test_a_file_of_passwords_for_routes_that_is_not_there_or_wrong_is_told(tmp_path: Path) -> None:
    """Breaks when it is known only when the first route fails."""
    file = tmp_path / "passwords"
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--route-passwords", file, status=USAGE)
    assert said == f"--route-passwords {file}: cannot be read: No such file or directory"
    file.write_bytes(b"ann \xff\n")
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--route-passwords", file, status=USAGE)
    assert said == f"--route-passwords {file}:1: is not UTF-8 text"
    file.write_text("ann secret\nbob:secret\n")
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--route-passwords", file, status=USAGE)
    assert said == (f"--route-passwords {file}:2: a line is USER PASSWORD or USER@HOST:PORT PASSWORD, with one space between")
    assert not (tmp_path / "store").exists()


def test_a_file_of_passwords_for_routes_that_others_may_read_is_told(running: BrokerProcess) -> None:
    assert "/passwords can be read or written by other users, but its passwords are secret: run chmod 600" in running.log()


def test_a_place_that_cannot_have_telemetry_is_told(tmp_path: Path) -> None:
    """Breaks when it is known only by a warning some time later, and no telemetry is there when it is needed."""
    (tmp_path / "file").touch()
    options = ["--port", 0, "--data-dir", tmp_path / "store", "--ha-cluster", "yes", "--ha-brokers-url", "127.0.0.1:1"]
    for folder, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "within", "Not a directory")):
        said = refusal(*options, "--telemetry-dir", folder, status=USAGE)
        assert said == f"--telemetry-dir {folder}: no telemetry can be written there: {why}"
    assert not (tmp_path / "store").exists()


def test_a_wrong_file_of_keys_for_tokens_is_told(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    options = ["--port", 0, "--data-dir", tmp_path / "store", "--plain-without-tls", "yes", "--token-keys", file]
    options += ["--token-issuer", "https://issuer", "--token-audience", "broker"]
    assert refusal(*options, status=USAGE) == f"--token-keys {file}: cannot be read: No such file or directory"
    file.write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')
    assert refusal(*options, status=USAGE) == f"--token-keys {file}: key 1 is a secret: only public keys belong here"
    assert not (tmp_path / "store").exists()


def test_a_hangup_reads_the_acl_file_again(tmp_path: Path) -> None:
    file = tmp_path / "a.acl"
    file.write_text("acl allow anonymous all\n")
    with standalone(tmp_path, "--acl-file", str(file)) as broker:
        broker.create("queue", "q")
        file.write_text("acl allow anonymous access\nacl deny\n")
        broker.signal(signal.SIGHUP)
        eventually(broker.log, lambda log: f"{file}:2: a rule needs" in log, "the broker saying what is wrong with the file")
        broker.create("queue", "still-allowed")
        file.write_text("acl allow anonymous access\n")
        broker.signal(signal.SIGHUP)
        eventually(broker.log, lambda log: f"1 rules of {file}" in log.split("stay in force")[-1], "the new rules being in force")
        with pytest.raises(Refused, match="anonymous may not: create queue name=denied"):
            broker.create("queue", "denied")


# ---- where it listens


def test_a_port_in_use_is_told_with_what_to_do(tmp_path: Path, running: BrokerProcess) -> None:
    said = refusal("--port", running.port, "--data-dir", tmp_path / "store")
    assert said == (
        f"cannot listen on 127.0.0.1:{running.port}: Address already in use; "
        "choose another --port or --interface, or stop what uses it"
    )
    said = refusal("--port", 0, "--admin-port", running.port, "--data-dir", tmp_path / "store")
    assert "Address already in use; choose another --admin-port or --admin-interface, or stop what uses it" in said
    with standalone(tmp_path) as broker:
        assert broker.state() == "standalone", "the store that was made meanwhile serves"


def test_an_interface_that_is_not_there_is_told(tmp_path: Path) -> None:
    """192.0.2.1 is an address of documentation (RFC 5737), which no machine has."""
    said = refusal("--port", 0, "--interface", "192.0.2.1", "--data-dir", tmp_path / "store")
    assert said.startswith("cannot listen on 192.0.2.1:0: Cannot assign requested address; choose another --port or --interface")


def test_an_address_that_is_not_in_the_url_is_told_with_the_way_out(tmp_path: Path) -> None:
    url = "amqp:127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    said = refusal("--port", 0, "--data-dir", tmp_path / "store", "--ha-cluster", "yes", "--ha-brokers-url", url)
    assert said.startswith("none of the addresses of --ha-brokers-url (127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3) is this broker's")
    assert "add it there, or give --ha-address" in said


# ---- the data folder


def test_a_data_folder_in_use_is_told_with_the_process_that_has_it(running: BrokerProcess) -> None:
    assert running.process is not None
    said = refusal("--port", 0, "--data-dir", running.store)
    assert said == f"data folder {running.store} is in use by process {running.process.pid}"


def test_a_folder_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear all")
    said = refusal("--port", 0, "--data-dir", tmp_path)
    assert said == f"{tmp_path} is not empty and has no store.json, so it is not the data folder of a broker; name another one"
    assert {path.name for path in tmp_path.iterdir()} <= {"letters.txt", "lock"}


def test_a_data_folder_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal("--port", 0, "--data-dir", tmp_path / "file" / "store")
    where = tmp_path / "file" / "store"
    assert said.startswith(f"cannot open the data folder {where}: Not a directory; ")


def test_a_data_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """root may write anywhere, so that right is taken from it first."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o555)
    wrapper: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "util-linux has it"
        wrapper = (setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
    said = refusal("--port", 0, "--data-dir", folder, wrapper=wrapper)
    assert str(folder) in said
    assert said.endswith("Permission denied; give this user the right to write there, or name another --data-dir")


@pytest.fixture
def stopped(tmp_path: Path) -> BrokerProcess:
    """A broker that was stopped in order."""
    with standalone(tmp_path) as broker:
        broker.create("queue", "kept")
        assert broker.stop() == 0
    return broker


def test_a_store_of_a_newer_format_is_left_alone(stopped: BrokerProcess) -> None:
    identity = stopped.store / "store.json"
    found = read_json(REAL_DISK, identity)
    assert found is not None
    newer = seal_json({**found, "format": found["format"] + 1})
    identity.write_bytes(newer)
    said = refusal("--port", 0, "--data-dir", stopped.store)
    assert said == (f"the store in {stopped.store} has format 2, newer than 1; use the version of the program that wrote it")
    assert identity.read_bytes() == newer


def test_a_damaged_identity_is_told_and_not_replaced(stopped: BrokerProcess) -> None:
    identity = stopped.store / "store.json"
    damaged = identity.read_bytes().replace(b"store_id", b"store_iD")
    identity.write_bytes(damaged)
    said = refusal("--port", 0, "--data-dir", stopped.store)
    assert said.startswith(f"{identity} is damaged: its checksum does not fit its content")
    assert identity.read_bytes() == damaged


def test_a_port_that_somebody_else_has_is_no_reason_to_wait(tmp_path: Path) -> None:
    """Not only another broker: whatever listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refusal("--port", taken.getsockname()[1], "--data-dir", tmp_path / "store")
    assert "Address already in use" in said
