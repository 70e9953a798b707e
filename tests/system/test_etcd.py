"""Daemons with `--arbiter etcd` beside a real cluster and a real etcd that hangs."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from tests.resource_manager.etcd import Etcd, running_etcd
from tests.resource_manager.fault_proxy import fault_proxy
from tests.system.harness import cluster, eventually
from tests.system.terms import check_one_primary_an_epoch, new_primary, resource_manager, terms, traffic


def published(etcd: Etcd) -> Any:
    """What etcd knows of the primary."""
    value = etcd.value("/understudy/orders/primary").get("value", "")
    return json.loads(b64decode(value) or b"{}").get("primary")


def test_an_etcd_that_hangs_deposes_nobody_and_delays_a_failover_by_the_patience_at_most(tmp_path: Path) -> None:
    """Breaks when trouble of the control plane reaches a healthy primary, or keeps a cluster without one."""
    with (
        running_etcd(tmp_path / "etcd") as etcd,
        fault_proxy(etcd.port) as proxy,
        cluster(tmp_path, 3, "--ha-replicate", "all", promote=False) as brokers,
    ):
        options = ["--arbiter", "etcd", "--arbiter-option", f"endpoints={proxy.url}", "--arbiter-option", "ttl=2"]
        options += ["--arbiter-patience", "2", "--cluster-name", "orders"]
        with (
            resource_manager(tmp_path, brokers, "rm-1", 20, options) as one,
            resource_manager(tmp_path, brokers, "rm-2", 20, options) as two,
        ):
            first = eventually(brokers.primary, bool, "a first primary")
            for broker in brokers.brokers:
                broker.wait_for("ready", "active")
            eventually(lambda: published(etcd), lambda primary: primary == first.address, "the first primary in etcd")
            assert "acts without" not in one.log() + two.log()
            with traffic(brokers) as run:
                proxy.becomes("hang")
                for daemon in (one, two):
                    eventually(daemon.log, lambda log: "the arbiter etcd cannot be reached" in log, "the fault in the log")
                run.wait_for(accepted=run.accepted + 3000)  # three seconds at this rate: longer than the patience
                assert [primary for _, primary in terms(first)] == [first.address], "the healthy primary is not touched"
                first.kill()
                second = new_primary(brokers, first)
                assert "acts without the arbiter etcd, which has been away for 2 s" in one.log() + two.log()
                proxy.becomes("")
                for daemon in (one, two):
                    eventually(daemon.log, lambda log: "the arbiter etcd is reachable again" in log, "its end in the log")
                eventually(lambda: published(etcd), lambda primary: primary == second.address, "the second primary in etcd")
                first.start()
                first.wait_for("ready")
        assert terms(second)[0][1] == first.address
        check_one_primary_an_epoch(brokers)
