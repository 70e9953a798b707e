"""A process that has our commands loaded, and forks a child for each call of one.

To start an interpreter and import Twisted and proton costs a quarter of a second of processor time; to fork costs a few
milliseconds. The child is a process like any other: it has its own standard streams, environment, reactor and exit status. It
ends as one that was started afresh does, with its threads, exit functions and streams, but does not take its modules apart: that
costs more than most commands, because each page that is written to is copied first. An error that is not caught ends the
interpreter in its own way (tests/cli/test_processes.py holds for commands that are started afresh).

Life: `tests.cli.running` starts the zygote with one end of a SOCK_SEQPACKET pair as its standard input. A call is one datagram:
JSON with the keys of `Call`, and four descriptors, for the command's output, its errors, its fate, and the network namespace that
it is to run in. A keeper, forked for this call, forks the command, writes its process id to the third descriptor, waits, and
writes its exit status. The zygote ends with that socket, so with the process that started it; keeper and command are killed when
their parent ends.

No module that is loaded here may bring a reactor with it: each command installs its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import NoReturn, TypedDict

LOADED = (
    *(
        "cli.commands.qpid_config",
        "cli.commands.qpid_drain",
        "cli.commands.qpid_ha",
        "cli.commands.qpid_passwd",
        "cli.commands.qpid_resource_manager",
        "cli.commands.qpid_route",
        "cli.commands.qpid_scaledown",
        "cli.commands.qpid_stat",
        "cli.verify.qpid_verify",
        "cli.commands.qpidd",
    ),
    # What these import only when they have something to do, and the responders that tests let them talk to.
    *("broker.client", "cli.drain.orphan", "ha.service", "resource_manager.service", "resource_manager.witness"),
    "scramp.core",
    "tests.broker.management_peer",
)
MOST_BYTES = 1 << 20
"""The length of a call."""
PID = STATUS = struct.Struct("=i")
"""What comes through the third descriptor: first the process id, at the end the exit status, negative for a signal."""
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Call(TypedDict):
    """What is to be run: the function `main` of a module, under the name and with the words that a shell would give it."""

    module: str
    name: str
    words: list[str]
    environment: dict[str, str]
    folder: str


def serve(calls: socket.socket) -> tuple[Call, int, int]:
    """Fork for every call until there are no more, which ends the process. Returns in the commands, with their streams."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers are not waited for
    while True:
        said, descriptors, _, _ = socket.recv_fds(calls, MOST_BYTES, 4)
        if not said:
            sys.exit(0)
        out, err, fate, network = descriptors
        if os.fork() == 0:
            calls.close()
            _keep(fate)
            os.close(fate)
            _enter(network)
            return json.loads(said), out, err
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(fate: int) -> None:
    """Fork the command, and tell its fate. Returns in the command alone."""
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        _end_with_parent()
        return
    os.write(fate, PID.pack(child))
    _, status = os.waitpid(child, 0)
    os.write(fate, STATUS.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _enter(network: int) -> None:
    """Go into this network namespace, which only root may, unless this process is in it."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino and _libc.setns(network, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
    os.close(network)


def become(call: Call, out: int, err: int) -> None:
    """Give this process the streams and surroundings of the call."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the old one may believe that it can seek
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.argv[:] = [call["name"], *call["words"]]


def run(module: str) -> NoReturn:
    """Call the command's `main`, and end with its status; what else it raises ends the interpreter as ever."""
    status: object = None
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        status = end.code
    if status is None or isinstance(status, int):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((status or 0) & 0xFF)
    sys.exit(str(status))


def main() -> None:
    """The zygote's life, and then the command's."""
    for module in LOADED:
        importlib.import_module(module)
    assert "twisted.internet.reactor" not in sys.modules, "a module brings a reactor with it"
    gc.freeze()
    call, out, err = serve(socket.socket(fileno=os.dup(0)))
    become(call, out, err)
    run(call["module"])


if __name__ == "__main__":
    main()
