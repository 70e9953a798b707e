"""What a planted bug is, and the bugs of queues: their kinds, dead letters, times, selectors.

`mutations.py` has all others, and plants them.
"""

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
    "drops-the-rejected": Bug(
        "forgets the alternate exchange of a queue",
        "broker.sessions.dead_letters",
        "DeadLetters._alternates",
        "return [queue for queue in found if queue is not node]",
        "return []",
    ),
    "keeps-the-rejected": Bug(
        "leaves a rejected message on its queue too",
        "broker.sessions.dead_letters",
        "DeadLetters._send",
        "partial(origin.ledger.dequeue, messages.number, (sequence,))",
        "list",
    ),
    "letters-twice": Bug(
        "sends two dead letters for one message",
        "broker.sessions.dead_letters",
        "DeadLetters._send_small",
        "logs.ledger_of(queue).enqueue(queue, [letter], len(letter))",
        "logs.ledger_of(queue).enqueue(queue, [letter, letter], len(letter))",
    ),
    "drops-what-failed-too-often": Bug(
        "takes a message off its queue whose delivery has failed too often, without a dead letter",
        "broker.sessions.queues",
        "QueueTerminus.failed",
        "self.letters.add(over, letters.DELIVERY_LIMIT)",
        "self.ledger.dequeue(messages.number, over)",
    ),
    "gives-out-what-failed-too-often": Bug(
        "gives a message out again whose delivery has failed as often as it may",
        "broker.sessions.queues",
        "QueueTerminus.failed",
        "self.letters.add(over, letters.DELIVERY_LIMIT)",
        "self.node.delivery_limit += 1; self.give_back(over)",
    ),
    "forgets-what-failed-too-often": Bug(
        "leaves, as a new primary, messages on their queue whose delivery has failed too often",
        "broker.sessions.queues",
        "QueueTerminus.term_begins",
        "self.letters.add(sorted(sequence for sequence, count in counts if count >= limit), letters.DELIVERY_LIMIT)",
        "pass",
    ),
    "gives-out-what-has-expired": Bug(
        "gives out what has expired, until a sweep has seen it",
        "broker.sessions.due",
        "Due.fit",
        "if not 0 < times(sequence) <= now_ms:",
        "if True:",
    ),
    "gives-out-what-is-to-wait": Bug(
        "gives out messages whose delay is not over",
        "broker.sessions.due",
        "Due.fit",
        "if delays is not None and delays.waiting:",
        "if False:",
    ),
    "lets-go-early": Bug(
        "lets messages go that expire within the next tenth of a second",
        "broker.sessions.due",
        "Due._sweep",
        "gone = messages.expiries.take(now_ms, MOST)",
        "gone = messages.expiries.take(now_ms + 100, MOST)",
    ),
    "times-of-the-next": Bug(
        "writes down for each message of a batch the times of the one after it",
        "broker.sessions.ledger",
        "Ledger._times_of",
        "return found if",
        "return found[1:] + found[:1] if",
    ),
    "checkpoint-forgets-times": Bug(
        "forgets in a checkpoint when messages expire, and from when on they may be given out",
        "broker.core.state",
        "_snapshot_batches",
        "builder.times(*column)",
        "pass",
    ),
    "forgets-what-waits": Bug(
        "has no time running, as a new primary, for messages that expire and messages that wait",
        "broker.sessions.due",
        "Due.begin",
        "self.look()",
        "pass",
    ),
    "gives-what-nobody-selects": Bug(
        "gives a consumer messages that its selector does not name",
        "broker.core.queues.scan",
        "Scan._look",
        "if matched and not is_acquired(sequence):",
        "if not is_acquired(sequence):",
    ),
    "selects-what-another-has": Bug(
        "gives a consumer with a selector messages that another one has",
        "broker.core.queues.fifo",
        "Fifo.is_acquired",
        "return sequence in self._claimed",
        "return False",
    ),
    "never-selects-again": Bug(
        "does not look again at a message that was released, for those who have passed it",
        "broker.core.queues.scan",
        "Scan.released",
        "if passed or sequence < place.cursor:",
        "if False:",
    ),
}

OF_TRANSACTIONS = {
    "tears-a-transaction": Bug(
        "puts what was consumed in a transaction into another batch than what was sent in it",
        "broker.sessions.transactions",
        "Transaction._propose",
        "            for queue, sequences, outcome in retired:",
        "            ledger._cut()\n            for queue, sequences, outcome in retired:",
    ),
    "carries-out-what-failed": Bug(
        "carries out a transaction that its client has discharged to fail",
        "broker.sessions.coordinator",
        "Coordinator._request",
        "if request.fail:",
        "if False:",
    ),
    "forgets-what-was-consumed": Bug(
        "keeps on the queue what was consumed in a transaction",
        "broker.sessions.transactions",
        "Transaction.retire",
        "self._retired.append(_Retired(queue, sequences, outcome))",
        "pass",
    ),
    "keeps-transactions-of-the-gone": Bug(
        "keeps acquired what was consumed in a transaction whose client is gone",
        "broker.sessions.coordinator",
        "Coordinator.left",
        "producer.session.transactions.left(producer)",
        "pass",
    ),
}
