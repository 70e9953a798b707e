"""What is promised, checked while it happens: the log (consensus.py), the state (reference.py), the limits (limits.py),
the end (accounting.py), and the observers that tell the checkers (watch.py).
"""

from tests.simulation.checks.watch import Checks

__all__ = ["Checks"]
