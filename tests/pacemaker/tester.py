"""Conformance of the agent: its meta-data against the schemas of resource-agents, and ocf-tester against a real broker.

Two brokers of a cluster run on loopback; the third is the one that ocf-tester starts, promotes, demotes and stops by the agent.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.pacemaker.nodes import AGENT, commands
from tests.system.harness import cluster
from tests.system.means import NotHere, program

SCHEMAS = Path("/usr/share/resource-agents")


def check(folder: Path) -> str:
    """What ocf-tester said last. AssertionError when the agent does not conform; NotHere without the tools."""
    tester, lint = program("ocf-tester", "resource-agents"), program("xmllint", "libxml2-utils")
    if not (SCHEMAS / "metadata.rng").exists():
        raise NotHere("the schemas of resource-agents (Debian: apt install resource-agents)")
    folder.mkdir()
    meta_data = folder / "qpidd.xml"
    meta_data.write_bytes(subprocess.run([AGENT, "meta-data"], check=True, capture_output=True).stdout)
    for words in (["--relaxng", str(SCHEMAS / "metadata.rng")], ["--dtdvalid", str(SCHEMAS / "ra-api-1.dtd")]):
        checked = subprocess.run([lint, "--noout", *words, str(meta_data)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    commands(folder)
    with cluster(folder, 3, "--ha-replicate", "all", promote=False) as brokers:
        mine, *others = brokers.brokers
        mine.kill()
        members = ",".join(broker.address for broker in (mine, *others))
        options = {
            "port": mine.port,
            "data-dir": folder / "store-of-the-agent",
            "ha-cluster": "yes",
            "ha-brokers-url": f"amqp:{members}",
            "ha-replicate": "all",
        }
        (folder / "qpidd.conf").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        given = {
            "config": folder / "qpidd.conf",
            "broker": mine.address,
            "qpidd": folder / "qpidd",
            "qpid_ha": folder / "qpid-ha",
        }
        words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
        environment = os.environ | {"HA_RSCTMP": str(folder / "run")}
        command = [tester, "-n", "broker", *words, str(AGENT)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip().splitlines()[-1]
