"""The responder of `tests.broker.management_peer`, as something that the zygote can fork."""

from __future__ import annotations

import json
import sys

from proton.reactor import Container

from tests.broker.management_peer import Responder


def main() -> None:
    """Print a port, and answer on it as the first word says, until killed."""
    Container(Responder(json.loads(sys.argv[1]))).run()
