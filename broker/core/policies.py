"""Policies: default attributes for queues and topics, by their names (docs/adr/0052-policies-when-made.md).

Life of a policy: an operator creates it for a pattern of names. It is a record of the log, so every primary has it. When a queue
or an exchange is created, by a request, by use, or for a subscription, the policy that matches its name best adds its attributes
to the definition. When a policy is changed or deleted, existing queues and exchanges do not change.

Only one policy applies to a name: the one with the longest beginning before a `*`, `?` or `[...]`. If several are equal, the
longest pattern applies, then the first one in alphabetical order. Policies are not combined. Each attribute and argument of the
request takes precedence over the policy, under whichever of its names, and the policy takes precedence over the broker's options.

Invariants: only the primary uses policies, before it proposes a definition. Members apply the definition without them, so the
result does not depend on the order of records. Queues of subscriptions, dynamic nodes and the queues of routes get only those
arguments of a policy that any queue may have (`broker.core.planning.FOR_ANY`). So a policy never makes them another kind of
queue.

Source: `QueuePolicy` and `TopicPolicy` in qpidd's docs/amqp-1.0.txt, which create nodes on demand by patterns. The syntax of
patterns is that of `--queue-patterns`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from broker.core.commands import PolicyAdd
from broker.core.dynamic import WILD, matches
from broker.core.queues.arguments import first_name

KINDS: Final = {"QueuePolicy": "queue", "TopicPolicy": "topic"}
"""Type in management requests -> kind of a policy."""
POLICY_OF: Final = {"queue": "queue", "exchange": "topic"}
"""Type of a node -> kind of its policies."""
AS_IS: Final = "asIs"
"""The attribute of a request to which no policy applies: a queue that is moved keeps its attributes."""


def best(policies: Iterable[PolicyAdd], kind: str, name: str) -> PolicyAdd | None:
    """The policy of this kind that applies to a name; None if no pattern matches."""
    found = [each for each in policies if each.kind == kind and matches((each.pattern,), name)]
    return min(found, key=order_of, default=None)


def order_of(policy: PolicyAdd) -> tuple[int, int, str]:
    """The sort key of policies: of those that match a name, the first one applies."""
    pattern = policy.pattern
    wild = next((at for at, letter in enumerate(pattern) if letter in WILD), len(pattern))
    return -wild, -len(pattern), pattern


def merged(policy: PolicyAdd, asked: Mapping[str, Any], only: Collection[str] | None = None) -> dict[str, Any]:
    """The attributes of a new node: those of the request (`asked`), completed by the policy. An attribute that is None, False or
    "" was not requested.

    `only`: the policy gives only these arguments and the alternate exchange.
    """
    theirs = dict(policy.attributes)
    given = asked.get("arguments")
    own = dict(given) if isinstance(given, dict) else {}
    said = {first_name(name) for name in own if isinstance(name, str)}
    defaults = theirs.pop("arguments", {}).items()
    arguments = {name: value for name, value in defaults if first_name(name) not in said and (only is None or name in only)}
    if only is not None:
        theirs = {name: value for name, value in theirs.items() if name == "alternateExchange"}
    if "qpid.replicate" in own:
        theirs.pop("replicate", None)
    wanted = {name: value for name, value in asked.items() if value not in (None, False, "") or name not in theirs}
    if given is not None and not isinstance(given, dict):
        return theirs | wanted  # the arguments are invalid: the check of the request refuses them
    return theirs | wanted | {"arguments": arguments | own}
