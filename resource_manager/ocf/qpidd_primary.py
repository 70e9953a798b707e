#!/usr/bin/env python3
"""LSB script: the primary of a broker cluster as a service of rgmanager. Install as /etc/init.d/qpidd-primary.

A configuration for rgmanager has one service on each node that restarts qpidd there, and one service that moves between
the nodes, with this script. So `start` may find a running broker or not: it starts this node's qpidd by its own service
and makes it the primary. `stop` stops that broker, which hands over first, as in the script of Apache Qpid C++.
`status` checks whether it is the primary.

Environment: QPIDD_SERVICE, the command that gets the words start, stop and status (default `service qpidd`); QPID_HA
(default `qpid-ha`); QPID_BROKER and the other variables of qpid-ha; QPIDD_PRIMARY_TIMEOUT, the maximum seconds of a
start (30).

Exit codes are those of the script of Apache Qpid C++ (etc/fedora/qpidd-primary.in): 0 done, or for `status` the
primary; for `status` 1 in every other case; 2 wrong usage; 3 for `reload`, which does nothing; 5 a program is not
installed, for any word; and the exit code of qpidd's own service if that fails to start or stop.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

DONE, FAILED, USAGE, UNIMPLEMENTED, NOT_INSTALLED = 0, 1, 2, 3, 5
_UNREACHABLE = 3
"""The exit code of qpid-ha if no broker answers."""
_PAUSE_S = 0.2
_ANSWER_S = 10.0


class Script:
    """One call. `environ`: see the module."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._service = shlex.split(environ.get("QPIDD_SERVICE") or "service qpidd")
        self._tool = shlex.split(environ.get("QPID_HA") or "qpid-ha")
        self._timeout_s = float(environ.get("QPIDD_PRIMARY_TIMEOUT") or 30)

    def missing(self) -> str:
        """The program that is not installed, or ""."""
        return next((words[0] for words in (self._service, self._tool) if shutil.which(words[0]) is None), "")

    def start(self) -> int:
        """Start this node's broker, and make it the primary."""
        started, text = _run([*self._service, "start"], self._timeout_s, reads=False)
        if started != 0:
            return _fail(f"qpidd does not start: {text}", started)
        deadline = time.monotonic() + self._timeout_s
        code, text = self._ask("ping")
        while code == _UNREACHABLE and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            code, text = self._ask("ping")
        if code == 0:
            code, text = self._ask("promote", "--cluster-manager")
        return DONE if code == 0 else _fail(f"qpidd is not made the primary: {text}")

    def stop(self) -> int:
        """Stop this node's broker."""
        code, text = _run([*self._service, "stop"], 2 * self._timeout_s)
        return DONE if code == 0 else _fail(f"qpidd does not stop: {text}", code)

    def restart(self) -> int:
        """Stop, then start."""
        return self.stop() or self.start()

    def reload(self) -> int:
        """Nothing."""
        return _fail("there is nothing to reload: qpidd reads its options at its start", UNIMPLEMENTED)

    def try_restart(self) -> int:
        """Restart, if this broker is the primary."""
        return self.restart() if self.status() == DONE else DONE

    def status(self) -> int:
        """Whether this node's broker is the primary."""
        running, text = _run([*self._service, "status"], _ANSWER_S)
        if running != 0:
            print(f"qpidd does not run: {text}")
            return FAILED
        code, text = self._ask("status", "--is-primary")
        if code == 0:
            print("qpidd is the primary")
            return DONE
        print(text)
        return FAILED

    def _ask(self, *words: str) -> tuple[int, str]:
        timeout_s = self._timeout_s if words[0] == "promote" else _ANSWER_S
        return _run([*self._tool, *words, "-t", f"{timeout_s:g}"], timeout_s + 2, late=_UNREACHABLE)


def _run(command: list[str], timeout_s: float, late: int = FAILED, *, reads: bool = True) -> tuple[int, str]:
    """Run a command. Returns its exit code and its last line; `late` if it takes too long, FAILED if a signal has ended
    it. Without `reads` it writes where this script does, and may leave a process in the background that does so too: the
    end of the command alone is waited for.
    """
    to = subprocess.PIPE if reads else None
    try:
        ran = subprocess.run(command, stdout=to, stderr=to, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return late, f"no answer within {timeout_s:g} s"
    said = ((ran.stderr or "").strip() or (ran.stdout or "").strip() or f"exit code {ran.returncode}").splitlines()
    return (ran.returncode if ran.returncode >= 0 else FAILED), said[-1]


def _fail(text: str, code: int = FAILED) -> int:
    print(f"qpidd-primary: {text}", file=sys.stderr)
    return code


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out one word. The exit code is LSB's."""
    word = words[0] if len(words) == 1 else ""
    try:
        script = Script(environ)
    except ValueError as error:
        return _fail(f"an environment variable makes no sense: {error}")
    known = {
        "start": script.start,
        "stop": script.stop,
        "restart": script.restart,
        "force-reload": script.restart,
        "reload": script.reload,
        "condrestart": script.try_restart,
        "try-restart": script.try_restart,
        "status": script.status,
    }
    missing = script.missing()
    if missing:
        print(f"qpidd-primary: {missing} is not installed", file=sys.stderr)
        return NOT_INSTALLED
    if word not in known:
        print(f"usage: qpidd-primary {'|'.join(known)}", file=sys.stderr)
        return USAGE
    return known[word]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
