"""The LSB script that rgmanager calls: what it does, and its exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from resource_manager.ocf import qpidd_primary
from tests.resource_manager.ocf.stand_in import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", made.environ["PATH"])
    made.says("ping", "")
    made.says("promote", "")
    made.says("is-primary", "")
    return made


def call(*words: str, **environ: str) -> int:
    return qpidd_primary.main(words, {"QPIDD_PRIMARY_TIMEOUT": "1"} | environ)


def test_start_runs_the_broker_and_makes_it_the_primary(machine: Machine) -> None:
    """With the option that the scripts of Apache Qpid give."""
    assert call("start") == 0
    assert machine.calls() == ["service qpidd start", "qpid-ha ping -t 10", "qpid-ha promote --cluster-manager -t 1"]


def test_stop_ends_the_broker(machine: Machine) -> None:
    """As the script of Apache Qpid does: rgmanager restarts it on its node, as a backup."""
    assert call("stop") == 0
    assert machine.calls() == ["service qpidd stop"]


def test_restart_is_stop_and_start_and_of_a_backup_nothing_if_only_tried(machine: Machine) -> None:
    assert [call("restart"), call("force-reload")] == [0, 0]
    assert [each.split()[-1] for each in machine.calls("service")] == ["stop", "start"] * 2
    machine.says("is-primary", "the broker is ready, not the primary\n", 1)
    for word in ("condrestart", "try-restart"):
        assert call(word) == 0
    assert [each.split()[-1] for each in machine.calls("service")][4:] == ["status", "status"]


@pytest.mark.parametrize(
    "answer, code, status, said",
    [
        ("", 0, 0, "qpidd is the primary"),
        ("qpid-ha: the broker is ready, not the primary", 1, 1, "the broker is ready, not the primary"),
        ("qpid-ha: localhost:5672: no answer in 10 s", 3, 1, "no answer in 10 s"),
    ],
)
def test_status_is_that_of_the_primary(
    machine: Machine, answer: str, code: int, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks when a backup, or a broker that cannot be asked, counts as the running service."""
    machine.says("is-primary", answer, code)
    assert call("status") == status
    assert said in capsys.readouterr().out


def test_a_broker_that_does_not_run_is_not_the_primary(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    (machine.folder / "qpidd.fails").write_text("qpidd is stopped\n")
    assert call("status") == 1
    assert capfd.readouterr().out == "qpidd does not run: qpidd is stopped\n"
    assert [call("start"), call("stop"), call("restart")] == [6, 6, 6], "the code of qpidd's own script"
    assert capfd.readouterr().err.splitlines() == [
        "qpidd is stopped",
        "qpidd-primary: qpidd does not start: exit code 6",
        *["qpidd-primary: qpidd does not stop: qpidd is stopped"] * 2,
    ]


def test_a_broker_in_the_background_that_keeps_the_output_of_its_service_open_is_started(machine: Machine) -> None:
    """Breaks when the end of the output is waited for: the broker never closes it, and is never made the primary."""
    pid_file = machine.folder / "pid"
    (machine.bin / "service").write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {pid_file}\n")
    environ = {"PATH": machine.environ["PATH"], "QPIDD_PRIMARY_TIMEOUT": "2"}
    with open(machine.folder / "said", "wb") as said:
        ran = subprocess.run([qpidd_primary.__file__, "start"], stdout=said, stderr=said, check=False, env=environ, cwd="/")
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert (ran.returncode, (machine.folder / "said").read_text()) == (0, "")
    assert machine.calls("qpid-ha promote") == ["qpid-ha promote --cluster-manager -t 2"]


def test_a_start_fails_with_the_brokers_reason(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.says("promote", "qpid-ha: n2 is not connected\n", 1)
    assert call("start") == 1
    (machine.folder / "ping").unlink()
    assert call("start", QPIDD_PRIMARY_TIMEOUT="0.1") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "qpidd-primary: qpidd is not made the primary: qpid-ha: n2 is not connected"
    assert "connection refused" in said[1]


@pytest.mark.parametrize(
    "words, environ, code",
    [
        ([], {}, 2),
        (["promote"], {}, 2),
        (["start", "now"], {}, 2),
        (["reload"], {}, 3),
        (["no-such-word"], {"QPID_HA": "no-such-tool"}, 5),
        (["reload"], {"QPID_HA": "no-such-tool"}, 5),
        (["start"], {"QPID_HA": "no-such-tool"}, 5),
        (["status"], {"QPIDD_SERVICE": "no-such-service qpidd"}, 5),
        (["start"], {"QPIDD_PRIMARY_TIMEOUT": "soon"}, 1),
    ],
)
def test_what_cannot_be_done_has_the_exit_code_of_the_script_of_apache_qpid(
    machine: Machine, words: list[str], environ: dict[str, str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words, **environ) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert machine.calls() == []


def test_the_script_is_one_file_that_any_python_runs() -> None:
    environ = {"PATH": os.defpath, "QPIDD_SERVICE": "no-such-service"}
    ran = subprocess.run([qpidd_primary.__file__], capture_output=True, text=True, check=False, env=environ, cwd="/")
    assert (ran.returncode, ran.stderr) == (5, "qpidd-primary: no-such-service is not installed\n")
