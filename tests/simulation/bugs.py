"""What a planted bug is, and the bugs of the kinds of queues; `mutations.py` has all others, and plants them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bug:
    """A function, by module and name, and what is changed in it."""

    says: str
    module: str
    function: str
    right: str
    wrong: str


OF_QUEUES = {
    "lowest-level-first": Bug(
        "gives out the lowest level of a priority queue first",
        "broker.core.queues.priority",
        "Priority.acquire",
        "for fifo in self._highest_first:",
        "for fifo in self._by_level:",
    ),
    "overtakes-a-level-that-is-read": Bug(
        "gives out lower levels while messages of a higher one have to be read back from disk",
        "broker.core.queues.priority",
        "Priority.acquire",
        """\
                    self.absent = fifo.absent
                    break
""",
        """\
                    self.absent = fifo.absent
                    if self.absent < 0:
                        break
""",
    ),
    "levels-by-the-batch": Bug(
        "puts all that comes for a priority queue in one go on the level of the first",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "lane = lane_for(each)",
        "lane = lane_for(messages[0])",
    ),
    "checkpoint-forgets-levels": Bug(
        "forgets in a checkpoint how far the sequences of all levels but the lowest had come",
        "broker.core.state",
        "State.snapshot",
        "seqs.append((number, lane.next_seq))",
        "seqs += [(number, lane.next_seq)] if lane is messages.order.lanes[0] else []",
    ),
    "releases-the-lowest-level": Bug(
        "makes, when its term ends, only the lowest level of a priority queue available again",
        "broker.core.queues.priority",
        "Priority.release_all",
        "for fifo in self._by_level:",
        "for fifo in self._by_level[:1]:",
    ),
    "ring-lets-the-newest-go": Bug(
        "lets a ring's newest messages leave for what comes",
        "broker.core.queues.ring",
        "Ring._leaving",
        "in end.oldest() if end.count else ():",
        "in reversed(list(end.oldest())):",
    ),
    "ring-counts-what-is-committed": Bug(
        "counts only the committed messages of a ring when others come",
        "broker.core.queues.ring",
        "_End.begin",
        "self.count, self.nbytes = lane.depth + len(ahead), lane.live_bytes + sum(ahead)",
        "self.count, self.nbytes = lane.depth, lane.live_bytes",
    ),
    "ring-lets-go-in-a-batch-of-its-own": Bug(
        "proposes what leaves a ring in another batch than what it leaves for",
        "broker.sessions.ledger",
        "Ledger._displace",
        "gone.extend(leave)",
        """\
gone.extend(leave)
                self._cut()
                gone = self._builder.dequeues_for(number)""",
    ),
}
