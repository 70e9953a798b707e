"""haproxy, with our configuration, in front of a real cluster: clients know only its address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.verify.run import Run, Workload
from tests.broker.scraped import read
from tests.cli.running import ROOT
from tests.system.harness import BrokerProcess, Cluster, cluster, eventually, free_ports
from tests.system.terms import go_on, new_primary, resource_manager
from tests.system.traffic import accounted

SHIPPED = ROOT / "deploy/haproxy/understudy.cfg"
SERVICES = ROOT / "build/services/usr"
"""Where deploy/bootstrap.sh unpacks what would start a service if it were installed."""


class Probed(BrokerProcess):
    """A broker with an admin port."""

    def __init__(self, folder: Path, port: int, options: list[str], *place: object) -> None:
        self.admin_port = free_ports(1)[0]
        super().__init__(folder, port, [*options, "--admin-port", str(self.admin_port)])

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text of a probe. OSError when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode().strip()


@contextmanager
def haproxy(folder: Path, brokers: Cluster) -> Iterator[str]:
    """A running one; the address that clients know."""
    (port,) = free_ports(1)
    text = re.sub("bind :5672", f"bind 127.0.0.1:{port}", SHIPPED.read_text())
    for number, broker in enumerate(brokers.brokers, 1):
        assert isinstance(broker, Probed)
        text = re.sub(f"host{number}:5672 port 5680", f"{broker.address} port {broker.admin_port}", text)
    config = folder / "haproxy.cfg"
    config.write_text(text)
    found = shutil.which("haproxy", path=f"{SERVICES}/sbin:{os.environ['PATH']}:/usr/sbin")
    assert found, "haproxy is missing: deploy/bootstrap.sh test unpacks it"
    libraries = ":".join(str(each) for each in (SERVICES / "lib").glob("*-linux-gnu"))
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [found, "-db", "-f", str(config)], stdout=log, stderr=log, env=os.environ | {"LD_LIBRARY_PATH": libraries}
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        print((folder / "haproxy.log").read_text())


def test_clients_that_know_haproxy_alone_go_on_after_the_primary_is_killed(tmp_path: Path) -> None:
    """Breaks when a probe tells another broker than the one that serves, or tells it late."""
    with (
        cluster(tmp_path, 3, "--ha-replicate", "all", make=Probed) as brokers,
        resource_manager(tmp_path, brokers),
        haproxy(tmp_path, brokers) as address,
    ):
        first, second, _ = brokers.brokers
        assert isinstance(first, Probed)
        assert isinstance(second, Probed)
        assert first.probe("/readyz") == (200, "active")
        assert second.probe("/readyz") == (503, f"ready: the primary is {first.address}")
        assert second.probe("/startedz") == (200, "ready")
        behind = read(first.probe("/metrics")[1])["understudy_member_connected"]
        assert behind == {f'member="{other.address}"': 1 for other in brokers.brokers[1:]}
        first.create("queue", "jobs")
        with Run(Workload([address], ["jobs"], rate=500, heartbeat_s=1.0)) as run:
            run.wait_for(accepted=200)
            first.kill()
            primary = new_primary(brokers, first)
            go_on(run)
            assert isinstance(primary, Probed)
            assert primary.probe("/readyz")[0] == 200
            figures = [
                read(each.probe("/metrics")[1]) for each in brokers.brokers if each is not first and isinstance(each, Probed)
            ]
            assert sorted(each["understudy_serves"][""] for each in figures) == [0, 1], "one serves"
            assert {each["understudy_epoch"][""] for each in figures} == {2}
            assert sum(each.get("understudy_queues", {}).get("", 0) for each in figures) == 1, "no queue is counted twice"
            first.start()
            eventually(lambda: first.probe("/startedz"), lambda said: said == (200, "ready"), "the killed broker in sync")
            accounted(run, brokers.primary)
