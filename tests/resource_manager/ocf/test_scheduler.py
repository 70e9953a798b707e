"""Pacemaker's own scheduler (crm_simulate) on the CIB of the how-to, with the scores that the agent gives: who becomes primary.

Nothing runs: each situation is a CIB with a status, made by the scheduler itself from the one before it, and the answer is where
the scheduler wants the primary, and what it would do to the brokers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from resource_manager.ocf.qpidd import NEVER
from tests.cli.running import ROOT
from tests.system.means import NotHere, where_possible

CIB = ROOT / "tests" / "pacemaker" / "cib.xml"
SERVICES = ROOT / "build" / "services"
ALL = ("n1", "n2", "n3")
_READY = {"n1": "1000", "n2": "900", "n3": "900"}


def crm_simulate() -> tuple[str, dict[str, str]]:
    """The program, installed or unpacked by deploy/bootstrap.sh, and the environment that it needs. NotHere without it."""
    installed = shutil.which("crm_simulate", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if installed:
        return installed, dict(os.environ)
    unpacked = SERVICES / "usr/sbin/crm_simulate"
    if not unpacked.exists():
        raise NotHere("crm_simulate (Debian: apt install pacemaker-cli-utils)")
    folders = [SERVICES / "usr/lib", *SERVICES.glob("usr/lib/*-linux-gnu*"), *SERVICES.glob("lib/*-linux-gnu*")]
    libraries = ":".join(map(str, folders))
    extra = {"LD_LIBRARY_PATH": libraries, "PCMK_schema_directory": str(SERVICES / "usr/share/pacemaker")}
    return str(unpacked), os.environ | extra


class Scheduler:
    """A cluster of three in one CIB, `path`."""

    def __init__(self, path: Path) -> None:
        self._program, self._environment = crm_simulate()
        self.path = path
        shutil.copy(CIB, path)
        self.said = ""

    def run(self, *words: str) -> str:
        """Let the scheduler decide, and do what it wants; what it would do, by line."""
        command = [self._program, "-x", str(self.path), "-S", "-q", "1", *words, "-O", str(self.path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=self._environment)
        assert ran.returncode == 0, ran.stderr
        self.said = ran.stdout
        return "\n".join(re.findall(r"Resource action: broker\S*\s+.*|Fencing \S+ .*", ran.stdout))

    def score(self, scores: Mapping[str, str]) -> None:
        """What the agents say on their nodes."""
        tree = ET.parse(self.path)
        for state in tree.iter("node_state"):
            attributes = state.find("transient_attributes")
            if attributes is not None:
                state.remove(attributes)
            value = scores.get(state.get("uname", ""))
            if value is not None:
                attributes = ET.SubElement(state, "transient_attributes", id=state.get("id", ""))
                inner = ET.SubElement(attributes, "instance_attributes", id=f"status-{state.get('id')}")
                ET.SubElement(inner, "nvpair", id=f"score-{state.get('id')}", name="master-broker", value=value)
        tree.write(self.path)

    def configure(self, tag: str, **attributes: str) -> None:
        """One more constraint."""
        tree = ET.parse(self.path)
        place = tree.find("configuration/constraints")
        assert place is not None
        ET.SubElement(place, tag, attributes)
        tree.write(self.path)

    def option(self, name: str, value: str) -> None:
        """A property of the cluster."""
        tree = ET.parse(self.path)
        place = tree.find("configuration/crm_config/cluster_property_set")
        assert place is not None
        ET.SubElement(place, "nvpair", id=f"option-{name}", name=name, value=value)
        tree.write(self.path)

    @property
    def _end(self) -> str:
        """The status in the end, without what was on nodes that are lost and cannot be fenced for lack of a quorum."""
        lines = self.said.partition("Revised Cluster Status")[2].partition("fence")[0].splitlines()
        return "\n".join(line for line in lines if "UNCLEAN" not in line)

    @property
    def primary(self) -> str:
        """Where the scheduler has the primary in the end, "" for nowhere."""
        end = self._end
        found = re.search(r"(?:Promoted|Masters): \[ (\S+) \]", end) or re.search(r"\bbroker\b.*(?:Promoted|Master) (\S+)", end)
        return found.group(1) if found else ""

    @property
    def running(self) -> set[str]:
        """Where brokers run in the end."""
        return {
            name
            for line in self._end.splitlines()
            if re.search(r"romoted|Masters|Slaves", line) and "Clone Set" not in line
            for name in re.findall(r"\bn\d\b", line)
        }


@dataclass(frozen=True)
class Situation:
    """Scores, what happens (words for crm_simulate, options, constraints), and where the primary is in the end. `calm`: no broker
    is stopped, demoted or promoted; `running`: where brokers run in the end."""

    name: str
    scores: Mapping[str, str]
    words: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    constraint: Mapping[str, str] | None = None
    primary: str = ""
    calm: bool = False
    running: tuple[str, ...] = ALL


def prefer(node: str, role: str = "Promoted") -> dict[str, str]:
    """What `crm_resource --move` leaves in the CIB."""
    return {"id": "cli-prefer-brokers", "rsc": "brokers", "role": role, "node": node, "score": "INFINITY"}


SITUATIONS = [
    Situation("all are well", _READY, primary="n1", calm=True),
    Situation("a backup that is even with the rest does not take over", {**_READY, "n2": "999"}, primary="n1", calm=True),
    Situation("a backup falls behind", {**_READY, "n3": "100"}, primary="n1", calm=True),
    Situation("the primary's node dies", {"n2": "490", "n3": "500"}, ("-f", "n1"), primary="n3", running=("n2", "n3")),
    Situation("a backup's node dies", _READY, ("-f", "n3"), primary="n1", running=("n1", "n2")),
    Situation("the primary's node goes down in order", _READY, ("-d", "n1"), primary="n2", running=("n2", "n3")),
    Situation("the primary's broker dies", _READY, ("-i", "broker_monitor_5000@n1=7"), primary="n1"),
    Situation("the primary's broker stands still", _READY, ("-i", "broker_monitor_5000@n1=9"), primary="n1"),
    Situation("a backup's broker dies", _READY, ("-i", "broker_monitor_10000@n3=7"), primary="n1"),
    Situation("a move to another node", _READY, constraint=prefer("n3"), primary="n3"),
    Situation(
        "maintenance, whatever fails", _READY, ("-i", "broker_monitor_5000@n1=7"), (("maintenance-mode", "true"),), calm=True
    ),
    Situation("only a broker that must not be promoted is left", {"n3": NEVER}, ("-f", "n1", "-f", "n2"), running=("n3",)),
    Situation(
        "two of three nodes are gone, and with them the quorum", {"n3": "500"}, ("-f", "n1", "-f", "n2", "-q", "0"), running=()
    ),
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name.replace(" ", "-"))
@where_possible
def test_the_scheduler_has_the_primary_where_the_agents_scores_say(situation: Situation, tmp_path: Path) -> None:
    """Breaks when scores, roles or the how-to's options make Pacemaker move a healthy primary, or leave a cluster without one."""
    cluster = Scheduler(tmp_path / "cib.xml")
    cluster.run("-u", "n1", "-u", "n2", "-u", "n3")
    cluster.score({"n1": "500", "n2": "490", "n3": "490"})
    cluster.run()
    assert cluster.primary == "n1", cluster.said
    cluster.score(situation.scores)
    for option in situation.options:
        cluster.option(*option)
    if situation.constraint is not None:
        cluster.configure("rsc_location", **situation.constraint)
    done = cluster.run(*situation.words)
    if situation.calm:
        assert not re.search(r"\b(start|stop|promote|demote)\b|Fencing", done), done
    else:
        assert (cluster.primary, cluster.running) == (situation.primary, set(situation.running)), cluster.said
