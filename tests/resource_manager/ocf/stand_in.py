"""Programs that stand for qpidd, qpid-ha and crm_attribute on a machine of a test, as an agent or a script finds them on PATH.

Life of a `Machine`: small scripts are written into a folder; what qpid-ha answers lies in files beside them, by command and
broker; what each was called with is appended to `calls`. A qpidd is a process that does nothing until it is told to end. The
broker of the machine answers `query` when it was started, or before if there is a file `foreign`: then another one answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from resource_manager.ocf import qpidd

_TOOL = """#!/bin/sh
echo "qpid-ha $*" >> {folder}/calls
command=$1
answer="{folder}/$command.$3"
case "$*" in *--all*) answer="{folder}/$command-all" ;; *--is-primary*) answer="{folder}/is-primary" ;; esac
[ "$2" = -b ] || {{ answer="{folder}/$command"; case "$*" in *--is-primary*) answer="{folder}/is-primary" ;; esac; }}
own="{folder}/query.localhost:5672"
[ "$answer" != "$own" ] || [ -e {folder}/foreign ] || grep -q "^qpidd " {folder}/calls || answer="{folder}/nobody"
[ -e "$answer" ] || {{ echo "qpid-ha: $3: connection refused" >&2; exit 3; }}
[ ! -e "$answer.then" ] || . "$answer.then"
if [ -e "$answer.code" ]; then cat "$answer" >&2; exit "$(cat "$answer.code")"; fi
cat "$answer"
"""
_BROKER = """#!/bin/sh
echo "qpidd $*" >> {folder}/calls
[ ! -e {folder}/dies ] || {{ echo "qpidd: the store is in use"; exit 1; }}
[ ! -e {folder}/deaf ] || trap "" TERM
while :; do read line < {folder}/never || sleep 1000; done
"""
_ATTRIBUTE = """#!/bin/sh
case "$*" in
    --node*qpidd-address*--query*) cat {folder}/attribute.$2 2>/dev/null || exit 105 ;;
    --name*qpidd-address*--update*) for word; do :; done; echo "$word" > {folder}/attribute.here ;;
    *--query*) cat {folder}/score 2>/dev/null || exit 105 ;;
    *--delete*) rm -f {folder}/score ;;
    *) for word; do :; done; echo "score $word" >> {folder}/calls; echo "$word" > {folder}/score ;;
esac
"""
_SERVICE = """#!/bin/sh
echo "service $*" >> {folder}/calls
[ ! -e {folder}/$1.fails ] || {{ cat {folder}/$1.fails >&2; exit 6; }}
"""


class Machine:
    """See the module. `broker` is the address of its broker."""

    broker = "localhost:5672"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in (("qpid-ha", _TOOL), ("qpidd", _BROKER), ("crm_attribute", _ATTRIBUTE), ("service", _SERVICE)):
            path = self.bin / name
            path.write_text(text.format(folder=folder))
            path.chmod(0o755)
        os.mkfifo(folder / "never")
        (folder / "qpidd.conf").write_text("ha-cluster=yes\n")
        self.environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "OCF_RESOURCE_INSTANCE": "broker:0",
            "HA_RSCTMP": str(folder / "run"),
            "OCF_RESKEY_config": str(folder / "qpidd.conf"),
            "OCF_RESKEY_CRM_meta_timeout": "4000",
        }
        self.pid_file = folder / "run" / "qpidd-broker-0.pid"

    def answers(self, view: dict[str, Any], broker: str = broker) -> None:
        """What this broker says of itself from now on."""
        (self.folder / f"query.{broker}").write_text(json.dumps(view))
        (self.folder / f"ping.{broker}").write_text("")

    def says(self, name: str, text: str, code: int = 0, then: str = "") -> None:
        """What a command answers, by `COMMAND.BROKER` or `COMMAND`, and what happens first."""
        (self.folder / name).write_text(text)
        if code:
            (self.folder / f"{name}.code").write_text(str(code))
        if then:
            (self.folder / f"{name}.then").write_text(then)

    def is_silent(self, broker: str = broker) -> None:
        """This broker does not answer any more."""
        for command in ("query", "ping"):
            (self.folder / f"{command}.{broker}").unlink(missing_ok=True)

    def turns(self, view: dict[str, Any], broker: str = broker) -> str:
        """Words for `then`: this broker says something else from now on."""
        path = self.folder / f"next.{view['status']}"
        path.write_text(json.dumps(view))
        return f"cp {path} {self.folder}/query.{broker}\n"

    def calls(self, program: str = "") -> list[str]:
        """What was called, oldest first."""
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.startswith(program)] if path.exists() else []

    def pid(self) -> int:
        """The process that stands for the broker, 0 for none."""
        words = self.pid_file.read_text().split() if self.pid_file.exists() else []
        return int(words[0]) if len(words) == 2 and words[0].isdecimal() and words[1] == qpidd._began(int(words[0])) else 0

    def end(self) -> None:
        """Leave no process behind."""
        pid = self.pid()
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError) as error:
                print(error, file=sys.stderr)


def view(status: str, **more: Any) -> dict[str, Any]:
    """What the broker n1 of three says of itself."""
    members = [
        {"address": "n1:5672", "role": "voter", "connected": True, "ackedIndex": 50},
        {"address": "n2:5672", "role": "voter", "connected": True, "ackedIndex": 48},
        {"address": "n3:5672", "role": "voter", "connected": True, "ackedIndex": 49},
    ]
    fields = {
        "status": status,
        "address": "n1:5672",
        "lastEpoch": 3,
        "lastIndex": 50,
        "brokersUrl": "amqp:n1:5672,n2:5672,n3:5672",
    }
    return fields | {"stopped": "", "members": members} | more
