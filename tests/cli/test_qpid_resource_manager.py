"""The daemon's command: options, errors, and an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.programs import MODULES
from tests.cli.running import ROOT, ended, environment, run
from tests.system.harness import free_ports


@pytest.mark.parametrize(
    "words, text",
    [
        ([], "--brokers URL is needed"),
        (["--brokers", "a", "--arbiter", "zookeeper"], "there is no arbiter 'zookeeper'; there are: builtin"),
        (["--brokers", "a", "--arbiter", "etcd"], "the arbiter etcd: endpoints are needed"),
        (["--brokers", "a", "--arbiter", "etcd", "--arbiter-option", "a=b c"], "the arbiter etcd: etcd has no option 'a'"),
        (["--brokers", "a", "--priority", "a=1", "--priority", "b=2"], "which is none of --brokers"),
        (["--brokers", "a", "--config", "/nowhere"], "cannot read the configuration file /nowhere"),
        (["--brokers", "a", "--config", ""], "--config: a file is needed"),
        (["--brokers", "a", "--telemetry-dir", __file__], f"--telemetry-dir {__file__}: no telemetry can be written there: File"),
        (["--dance"], "--dance"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_in_one_line(words: list[str], text: str) -> None:
    ran = run("qpid-resource-manager", *words)
    assert ran.status == 2
    assert text in ran.err


def test_a_witness_that_cannot_begin_ends_its_daemon_in_one_line(tmp_path: Path) -> None:
    """Breaks when a daemon goes on without the vote that it was started for, and nobody notices."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--brokers", f"127.0.0.1:1,127.0.0.1:2,127.0.0.1:{port}", "--witness", f"127.0.0.1:{port}"]
        ran = run("qpid-resource-manager", *words, "--witness-dir", str(tmp_path))
    assert ran.status == 1
    assert f"qpid-resource-manager: the witness cannot start: cannot listen on 127.0.0.1:{port}" in ran.err
    where = "(interface: in the file of --witness-config)"
    assert f"choose another --witness or interface, or stop what uses it {where}" in ran.err


def test_a_witness_whose_folder_or_port_for_probes_does_not_do_names_the_options_of_its_daemon(tmp_path: Path) -> None:
    """Breaks when an operator is told to change an option that the daemon has not."""
    (tmp_path / "file").touch()
    port, *_ = free_ports(1)
    words = ["--brokers", f"127.0.0.1:1,127.0.0.1:2,127.0.0.1:{port}", "--witness", f"127.0.0.1:{port}", "--witness-dir"]
    ran = run("qpid-resource-manager", *words, tmp_path / "file" / "witness")
    assert (ran.status, "or name another --witness-dir\n" in ran.err, "--data-dir" in ran.err) == (1, True, False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "conf").write_text(f"admin-port = {taken.getsockname()[1]}\n")
        ran = ended("qpid-resource-manager", *words, tmp_path / "witness", "--witness-config", tmp_path / "conf")
    assert ran.status == 1
    end = "choose another admin-port or admin-interface, or stop what uses it"
    assert f"{end} (admin-port, admin-interface: in the file of --witness-config)\n" in ran.err


def test_it_watches_logs_and_ends_when_told_to(peers: Any) -> None:
    """Breaks when a daemon that is stopped by its service ends with an error, or not at all."""
    broker = peers(ha={"status": "active", "epoch": 3, "lastEpoch": 3, "lastIndex": 7, "primary": ""})
    command = [
        sys.executable,
        "-m",
        "cli.commands.qpid_resource_manager",
        "--brokers",
        f"{broker.name},127.0.0.1:1",
        "--name",
        "rm-1",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as daemon:
        assert daemon.stderr is not None
        lines: list[str] = []
        while not any("is the primary of epoch 3" in line for line in lines):
            lines.append(daemon.stderr.readline())
            assert lines[-1], "".join(lines)
        daemon.send_signal(signal.SIGHUP)
        lines.append(daemon.stderr.readline())
        assert "SIGHUP has no effect" in lines[-1]
        daemon.send_signal(signal.SIGTERM)
        rest = daemon.stderr.read()
    assert daemon.returncode == 0, rest
    assert any("127.0.0.1:1: connection refused" in line for line in lines)
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    "command, words, extra",
    [
        ("qpid-resource-manager", ["--brokers", "a:1", "--arbiter", "etcd", "--cluster-name", "c"], "etcd"),
        ("qpid-resource-manager", ["--brokers", "a:1", "--arbiter", "kubernetes", "--cluster-name", "c"], "kubernetes"),
        ("qpid-scaledown", ["--namespace", "shop"], "kubernetes"),
    ],
)
def test_the_way_to_a_missing_extra_names_no_package_of_an_index(
    tmp_path: Path, command: str, words: list[str], extra: str
) -> None:
    """Breaks when an operator is told to install what another project has under our name."""
    (tmp_path / "treq.py").write_text("raise ModuleNotFoundError('there is no treq', name='treq')")
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ran = subprocess.run(
        [sys.executable, "-m", MODULES[command], *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment() | paths,
        check=False,
    )
    assert ran.returncode in (1, 2)
    way = f"pip install '.[{extra}]' in the checkout, or pip install 'understudy-VERSION-py3-none-any.whl[{extra}]'"
    assert f"install the extra {extra}: {way}" in ran.stderr, ran.stderr
