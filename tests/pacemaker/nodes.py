"""Three nodes of a real Pacemaker cluster, each with corosync, pacemakerd and our agent, in namespaces that only a test sees.

Life of a `Nodes`: folders that stand for the nodes' disks are written below one folder; nodes are started on a `BridgedLan`, each
as the init process of its own process namespace, so that killing that one process takes the whole node away as a power cut does.
Fencing is real: the fence agent leaves a request in a folder, and this process kills the node and says so. Leaving the context
ends every node; nothing is left on this machine, and no service of it is touched.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.cli.running import ROOT
from tests.system.harness import eventually
from tests.system.means import must_be_root, program
from tests.system.namespaces import BridgedLan

AGENT = ROOT / "resource_manager" / "ocf" / "qpidd.py"
SERVICES = ROOT / "build" / "services"
"""Where deploy/bootstrap.sh unpacks what is not installed here: corosync and Pacemaker may be there."""
CIB = Path(__file__).with_name("cib.xml")
NAMES = ("n1", "n2", "n3")
RESOURCE = "broker"
STABLE_S = 180.0
"""More than a machine needs that has much else to do."""
_FOLDERS = (
    "etc/corosync",
    "var/lib/corosync",
    "var/lib/pacemaker/cib",
    "var/lib/pacemaker/pengine",
    "var/lib/pacemaker/blackbox",
    "var/lib/pacemaker/cores",
    "var/log/corosync",
    "var/log/pacemaker",
    "mnt",
    "usr/sbin",
    "usr/share",
    "usr/lib/ocf/resource.d/understudy",
    "points/lib/corosync",
    "points/lib/pacemaker",
    "points/log/corosync",
    "points/log/pacemaker",
)
_USER, _GROUP = "hacluster", "haclient"
_UNUSED_ID = 62189
"""Of Pacemaker's user and group, where the machine has none: within a node alone."""
_COROSYNC = """totem {{
    version: 2
    cluster_name: understudy
    transport: knet
    crypto_cipher: none
    crypto_hash: none
    token: {token_ms}
    token_coefficient: 0
}}
nodelist {{
{nodes}}}
quorum {{
    provider: corosync_votequorum
}}
logging {{
    to_logfile: yes
    logfile: /var/log/corosync/corosync.log
    to_syslog: no
}}
"""
_NODE = """    node {{
        ring0_addr: {address}
        name: {name}
        nodeid: {id}
    }}
"""
_FENCE = """#!/usr/bin/env python3
import os, sys, time
given = dict(line.strip().partition("=")[::2] for line in sys.stdin) if not sys.argv[1:] else {{}}
action = given.get("action", "metadata")
node = given.get("port") or given.get("nodename") or given.get("plug", "")
if action == "metadata":
    print('<resource-agent name="fence_understudy"><longdesc>for tests</longdesc><parameters><parameter name="port"><content '
          'type="string"/></parameter><parameter name="action"><content type="string"/></parameter></parameters><actions>'
          '<action name="off"/><action name="reboot"/><action name="monitor"/><action name="list"/><action name="status"/>'
          '<action name="metadata"/></actions></resource-agent>')
elif action == "list":
    print("\\n".join({names!r}))
elif action in ("off", "reboot"):
    mark = os.path.join({folder!r}, node)
    with open(mark + ".asked", "w"):
        pass
    until = time.monotonic() + 20
    while not os.path.exists(mark + ".done"):
        if time.monotonic() > until:
            sys.exit(1)
        time.sleep(0.05)
    os.unlink(mark + ".done")
"""
_QPIDD_CONF = """port=5672
interface=0.0.0.0
data-dir=/mnt/store
ha-cluster=yes
ha-brokers-url=amqp:{members}
ha-replicate=all
log-enable=info+
"""
_STATE = re.compile(rb" info (\w+) in epoch ")
"""What a broker logs whenever its state has changed."""


class Node:
    """A node and its disk."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self._nodes = nodes
        self.number = number
        self.name = NAMES[number - 1]
        self.address = f"{BridgedLan.address(number)}:5672"
        self.folder = nodes.folder / self.name
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, corosync: str, fence: str, qpidd: str) -> None:
        """Lay out its disk."""
        for name in _FOLDERS:
            (self.folder / name).mkdir(parents=True)
        (self.folder / "etc/corosync/corosync.conf").write_text(corosync)
        (self.folder / "mnt/qpidd.conf").write_text(qpidd)
        cib = self.folder / "var/lib/pacemaker/cib/cib.xml"
        cib.write_text(CIB.read_text())
        cib.chmod(0o600)
        _script(self.folder / "usr/sbin/fence_understudy", fence)
        agent = self.folder / "usr/lib/ocf/resource.d/understudy/qpidd"
        shutil.copy(AGENT, agent)
        agent.chmod(0o755)
        commands(self.folder / "usr/sbin")
        user, group = self._accounts()
        for folder in ("var/lib/pacemaker", "var/log/pacemaker"):
            for path in (self.folder / folder, *(self.folder / folder).rglob("*")):
                os.chown(path, user, group)
                if path.is_dir():
                    path.chmod(0o770)

    def _accounts(self) -> tuple[int, int]:
        """Give the node Pacemaker's user and group, if the machine does not have them; their ids."""
        try:
            group = grp.getgrnam(_GROUP).gr_gid
        except KeyError:
            group = _UNUSED_ID
            (self.folder / "etc/group").write_text(Path("/etc/group").read_text() + f"{_GROUP}:x:{group}:\n")
        try:
            user = pwd.getpwnam(_USER).pw_uid
        except KeyError:
            user = _UNUSED_ID
            line = f"{_USER}:x:{user}:{group}::/var/lib/pacemaker:/usr/sbin/nologin\n"
            (self.folder / "etc/passwd").write_text(Path("/etc/passwd").read_text() + line)
        return user, group

    def start(self) -> None:
        """Power on."""
        assert not self.running, "it runs"
        unshare = ["-m", "-u", "-i", "-p", "-f", "--kill-child=SIGKILL", "--mount-proc", "--propagation", "private"]
        script = [str(Path(__file__).with_name("node.sh")), self.name, str(self.folder), str(SERVICES)]
        with self._nodes.lan.inside(self.number), (self.folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                [program("unshare", "util-linux"), *unshare, "bash", *script],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it is powered on."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Power off, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(20)
            self._process = None

    def run(self, *words: str, timeout_s: float = 20.0) -> str:
        """Run a program on this node; what it printed, or AssertionError."""
        init = self._init()
        command = ["nsenter", "-t", str(init), "-a", "timeout", "-k", "1", f"{timeout_s}", *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s + 5, check=False)
        assert ran.returncode == 0, (
            f"{self.name}: {' '.join(words)}: {ran.returncode}: {ran.stderr.strip() or ran.stdout.strip()}"
        )
        return ran.stdout

    def _init(self) -> int:
        assert self._process is not None, f"{self.name} is off"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        assert children, f"{self.name} has ended"
        return int(children[0])

    def broker(self) -> int:
        """The process id, here, of this node's broker. Waits until there is one."""
        return eventually(self._broker, bool, f"the broker of {self.name}", STABLE_S)

    def _broker(self) -> int:
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if (
                        any(word == b"cli.commands.qpidd" or word.endswith(b"/qpidd") for word in words)
                        and (entry / "ns/pid").readlink() == Path(f"/proc/{self._init()}/ns/pid").readlink()
                    ):
                        return int(entry.name)
        return 0

    def leads(self) -> bool:
        """Whether the last state that its broker has logged is the primary's. To look is cheaper than to ask Pacemaker."""
        log = self.folder / "mnt/qpidd.log"
        states = _STATE.findall(log.read_bytes()) if log.exists() else []
        return states[-1:] == [b"active"]

    def log(self) -> str:
        """What this node's Pacemaker says."""
        path = self.folder / "var/log/pacemaker/pacemaker.log"
        return path.read_text(errors="replace") if path.exists() else ""


class Nodes:
    """See the module. NotHere where the machine lacks what it takes."""

    def __init__(self, folder: Path, *, token_ms: int = 1000) -> None:
        """`token_ms`: for so long a node may be silent before the others take it for dead."""
        must_be_root()
        for name, package in (("pacemakerd", "pacemaker"), ("corosync", "corosync"), ("crm_mon", "pacemaker-cli-utils")):
            if not (SERVICES / "usr/sbin" / name).exists():
                program(name, package)
        self.folder = folder
        self.lan = BridgedLan(3)
        self.fenced: list[str] = []
        self._fences = folder / "fences"
        self._fences.mkdir(parents=True)
        self.all = [Node(self, number) for number in (1, 2, 3)]
        hosts = "".join(_NODE.format(address=self.lan.address(node.number), name=node.name, id=node.number) for node in self.all)
        members = ",".join(node.address for node in self.all)
        for node in self.all:
            node.write(
                _COROSYNC.format(nodes=hosts, token_ms=token_ms),
                _FENCE.format(names=list(NAMES), folder=str(self._fences)),
                _QPIDD_CONF.format(members=members),
            )
        self._closed = threading.Event()
        self._fencing = threading.Thread(target=self._fence, daemon=True)

    def __enter__(self) -> Nodes:
        self._fencing.start()
        for node in self.all:
            node.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._fencing.join(10)
        for node in self.all:
            node.kill()
        self.lan.close()

    def __getitem__(self, name: str) -> Node:
        return self.all[NAMES.index(name)]

    def _fence(self) -> None:
        """Kill nodes that the others have asked to be rid of."""
        while not self._closed.wait(0.05):
            for asked in self._fences.glob("*.asked"):
                node = self[asked.stem]
                node.kill()
                self.fenced.append(node.name)
                asked.unlink()
                (self._fences / f"{node.name}.done").touch()

    # ---- what Pacemaker sees and is told

    def on_some(self, *words: str, timeout_s: float = 20.0) -> str:
        """Run a program on a node that runs."""
        last = "no node runs"
        for node in self.all:
            if node.running:
                try:
                    return node.run(*words, timeout_s=timeout_s)
                except AssertionError as error:
                    last = str(error)
        raise OSError(last)

    def roles(self, by: str = "") -> dict[str, str]:
        """The role of the resource on each node that is online and on which it runs, as Pacemaker sees it."""
        words = ("crm_mon", "-1", "--output-as=xml")
        tree = ET.fromstring(self[by].run(*words) if by else self.on_some(*words))
        online = {node.get("name", "") for node in tree.iterfind("nodes/node") if node.get("online") == "true"}
        return {
            node.get("name", ""): resource.get("role", "")
            for resource in tree.iter("resource")
            if resource.get("id") == RESOURCE
            for node in resource.iter("node")
            if node.get("name") in online
        }

    def promoted(self) -> str:
        """The node of the primary in Pacemaker's eyes, "" without one."""
        return next((name for name, role in self.roles().items() if role in ("Promoted", "Master")), "")

    def failures(self) -> list[str]:
        """Failed actions that Pacemaker has on record."""
        tree = ET.fromstring(self.on_some("crm_mon", "-1", "--output-as=xml"))
        return [ET.tostring(failure, "unicode").strip() for failure in tree.iter("failure")]

    def status(self, node: Node) -> str:
        """What the broker of this node says that it is; "" when it does not answer."""
        try:
            return node.run("qpid-ha", "status", "-b", "localhost:5672", "-t", "2").strip()
        except AssertionError:
            return ""

    def wait(self, done: Callable[[], bool], what: str, within_s: float = STABLE_S) -> float:
        """How long it took until it was so, in seconds."""
        began = time.monotonic()
        eventually(done, bool, what, within_s)
        return time.monotonic() - began

    def stable(self, *running: str) -> str:
        """Wait until one broker is promoted and active, and the others of these nodes run; the primary's node."""
        names = set(running or NAMES)

        def well() -> bool:
            if not any(self[name].leads() for name in names):
                return False
            roles = self.roles()
            promoted = [name for name, role in roles.items() if role in ("Promoted", "Master")]
            return set(roles) == names and len(promoted) == 1 and self.status(self[promoted[0]]) == "active"

        self.wait(well, f"one promoted and active among {', '.join(sorted(names))}")
        return self.promoted()


def commands(folder: Path) -> None:
    """Write qpidd and qpid-ha into this folder, as an installation puts them on PATH."""
    for name in ("qpidd", "qpid_ha"):
        command = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cli.commands.{name} "$@"\n'
        _script(folder / name.replace("_", "-"), command)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def freeze(pid: int, *, on: bool) -> None:
    """Stop a process, or let it go on."""
    os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)
