"""How a console script of ours starts: an interrupt during the imports ends the process, without a traceback.

The imports of a command take from a third of a second to some seconds on a busy machine. An interrupt in this time would be a
KeyboardInterrupt in the middle of them. So SIGINT has its default action until the command is loaded: the process ends silently,
and a shell reports 130. Then the command calls `take_interrupts`. This module imports nothing that takes time.

Each function here is the console script of one program (pyproject.toml). With `python -m` a program starts without this module.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable

from cli.programs import MODULES


def take_interrupts() -> None:
    """From now on an interrupt is a KeyboardInterrupt again. A caller that ignores interrupts is obeyed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _script(name: str) -> Callable[[], None]:
    def main() -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        importlib.import_module(MODULES[name]).main()

    return main


qpidd = _script("qpidd")
qpid_config = _script("qpid-config")
qpid_drain = _script("qpid-drain")
qpid_ha = _script("qpid-ha")
qpid_lag = _script("qpid-lag")
qpid_passwd = _script("qpid-passwd")
qpid_resource_manager = _script("qpid-resource-manager")
qpid_route = _script("qpid-route")
qpid_scaledown = _script("qpid-scaledown")
qpid_stat = _script("qpid-stat")
qpid_verify = _script("qpid-verify")
