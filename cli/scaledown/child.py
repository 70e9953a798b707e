"""A qpid-drain that ends with the process that started it, however that process ends: `python -m cli.scaledown.child
PARENT WORD...`.

The kernel kills it when its parent's thread has ended (prctl(2), PR_SET_PDEATHSIG). So the next controller finds no
store locked by a drain that it does not know. A drain may be killed at any time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent, and run qpid-drain."""
    parent = int(sys.argv.pop(1))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # the parent ended before the call
        sys.exit(1)
    from cli.commands import qpid_drain

    qpid_drain.main()


if __name__ == "__main__":
    main()
