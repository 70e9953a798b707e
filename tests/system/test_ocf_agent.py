"""The OCF agent, and the script for rgmanager, with a real qpidd and the real qpid-ha.

With a real Pacemaker: `make test-pacemaker`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resource_manager.ocf import qpidd, qpidd_primary
from resource_manager.ocf.qpidd import ERR_GENERIC, NOT_RUNNING, RUNNING_PROMOTED, SUCCESS
from tests.pacemaker.nodes import commands
from tests.system.harness import free_ports


def test_the_agent_starts_promotes_and_stops_a_real_broker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Breaks when the agent does not understand what the commands say. A cluster of one: nobody can take over from it."""
    commands(tmp_path)
    (port,) = free_ports(1)
    options = {"port": port, "data-dir": tmp_path / "store", "ha-cluster": "yes", "ha-brokers-url": f"amqp:127.0.0.1:{port}"}
    (tmp_path / "qpidd.conf").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    environ = os.environ | {
        "HA_RSCTMP": str(tmp_path / "run"),
        "OCF_RESKEY_CRM_meta_timeout": "60000",
        "OCF_RESKEY_config": str(tmp_path / "qpidd.conf"),
        "OCF_RESKEY_broker": f"127.0.0.1:{port}",
        "OCF_RESKEY_qpidd": str(tmp_path / "qpidd"),
        "OCF_RESKEY_qpid_ha": str(tmp_path / "qpid-ha"),
    }
    try:
        assert [qpidd.main([action], environ) for action in ("start", "promote", "monitor")] == [
            SUCCESS,
            SUCCESS,
            RUNNING_PROMOTED,
        ]
        capfd.readouterr()
        script = {"QPID_HA": environ["OCF_RESKEY_qpid_ha"], "QPIDD_SERVICE": "true", "QPID_BROKER": f"127.0.0.1:{port}"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QPID_BROKER", script["QPID_BROKER"])
            assert [qpidd_primary.main([word], script) for word in ("start", "status")] == [0, 0]
            patch.setenv("QPID_BROKER", f"127.0.0.1:{free_ports(1)[0]}")
            assert qpidd_primary.main(["status"], script) == 1
        assert capfd.readouterr().out.splitlines()[-2:-1] == ["qpidd is the primary"]
        assert qpidd.main(["demote"], environ) == ERR_GENERIC
        assert (
            "continues as the primary, because no other can take over: no other voting member is connected"
            in capfd.readouterr().err
        )
    finally:
        stopped = qpidd.main(["stop"], environ)
    assert (stopped, qpidd.main(["monitor"], environ)) == (SUCCESS, NOT_RUNNING)
