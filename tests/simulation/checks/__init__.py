"""What is promised, checked while it happens: the log (consensus.py), the state (reference.py), the bounds (limits.py), the end
(accounting.py), and the observers that tell them (watch.py)."""

from tests.simulation.checks.watch import Checks

__all__ = ["Checks"]
