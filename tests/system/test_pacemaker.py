"""One round on a real Pacemaker cluster: the primary's host loses its power, and another broker is promoted.

The daemons are those that `deploy/bootstrap.sh` unpacks, and are not installed. `make test-pacemaker` has the other rounds.
"""

from __future__ import annotations

from pathlib import Path

from tests.pacemaker.nodes import Nodes
from tests.pacemaker.rounds import Account
from tests.system.means import where_possible
from tests.system.namespaces import on_client

_TOKEN_MS = 3000
"""Tests that use up the machine must not make a host look dead."""


@where_possible
def test_pacemaker_fences_a_host_that_is_dead_and_promotes_another_broker_with_all_that_was_accepted(tmp_path: Path) -> None:
    """Breaks when the agent cannot start, promote or watch a broker, or when a score lets a backup without the messages win."""
    with Nodes(tmp_path, token_ms=_TOKEN_MS) as nodes, on_client(nodes.lan):
        first = nodes[nodes.stable()]
        account = Account(nodes)
        account.send(first)
        first.kill()
        left = [node.name for node in nodes.all if node is not first]
        second = nodes.stable(*left)
        assert first.name in nodes.fenced
        account.check(nodes[second])
        account.send(nodes[second], 10)
