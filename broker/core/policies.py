"""Policies: what queues and topics get by their names, where nobody says otherwise (docs/adr/0052-policies-when-made.md).

Life of a policy: an operator makes it for a pattern of names; it is a record of the log, so every primary has it. When a queue or
an exchange is made, by a request, by use, or for a subscription, the policy that fits its name best is asked, and what it says
stands in the definition from then on. A policy that is changed or deleted changes nothing that is there.

One policy counts for a name: the one whose beginning without `*`, `?` and `[...]` is the longest; of these the longest pattern;
of these the first by its text. Policies are not added up. Whatever the request says itself goes before the policy, argument by
argument; the policy goes before the broker's options.

Invariants: a member applies definitions and asks no policy, so that what a queue is depends on no order of records; queues of
subscriptions, and dynamic nodes, get of a policy only what any queue may have (`for_any`), and never become another kind of
queue by it.

Source: qpidd's docs/amqp-1.0.txt for `QueuePolicy` and `TopicPolicy`, by whose patterns nodes are made on demand; patterns are
those of `--queue-patterns`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from broker.core.commands import PolicyAdd
from broker.core.dynamic import WILD, matches

KINDS: Final = {"QueuePolicy": "queue", "TopicPolicy": "topic"}
"""Type of management -> kind of a policy."""
POLICY_OF: Final = {"queue": "queue", "exchange": "topic"}
"""Type of a node -> kind of the policies for such nodes."""
AS_IS: Final = "asIs"
"""The attribute of a request that wants nothing but what it says: a queue that is moved stays what it is."""


def best(policies: Iterable[PolicyAdd], kind: str, name: str) -> PolicyAdd | None:
    """The policy of this kind that counts for a name."""
    found = [each for each in policies if each.kind == kind and matches((each.pattern,), name)]
    return min(found, key=order_of, default=None)


def order_of(policy: PolicyAdd) -> tuple[int, int, str]:
    """Policies sort by it: the first one that fits a name counts for it."""
    pattern = policy.pattern
    wild = next((at for at, letter in enumerate(pattern) if letter in WILD), len(pattern))
    return -wild, -len(pattern), pattern


def merged(policy: PolicyAdd, asked: Mapping[str, Any], only: Collection[str] | None = None) -> dict[str, Any]:
    """What a node is to be that was asked for with these attributes. An attribute that is none, false or "" was not asked for.

    `only`: of the policy these arguments count, and the alternate exchange, and nothing else.
    """
    theirs = dict(policy.attributes)
    given = asked.get("arguments")
    own = dict(given) if isinstance(given, dict) else {}
    arguments = {name: value for name, value in theirs.pop("arguments", {}).items() if only is None or name in only}
    if only is not None:
        theirs = {name: value for name, value in theirs.items() if name == "alternateExchange"}
    if "qpid.replicate" in own:
        theirs.pop("replicate", None)
    wanted = {name: value for name, value in asked.items() if value not in (None, False, "") or name not in theirs}
    if given is not None and not isinstance(given, dict):
        return theirs | wanted  # whoever looks at it refuses it
    return theirs | wanted | {"arguments": arguments | own}
