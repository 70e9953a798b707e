"""What a planted bug is, and the bugs of queues of all kinds and of large messages, of dead letters, times and selectors.

`mutations.py` has the others.
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
    "leaves-parts": Bug(
        "leaves, as a new primary, the parts of messages that never became whole",
        "broker.sessions.ledger",
        "Ledger.begin_parts",
        "self.drop_parts(self.state.parts.orphans())",
        "pass",
    ),
    "sweeps-what-is-held": Bug(
        "removes, as a new primary, the parts of messages that are on queues, too",
        "broker.core.parts",
        "Parts.orphans",
        "for first, count in manifests[0].ranges)",
        "for first, count in manifests[0].ranges[:-1])",
    ),
    "lets-go-for-all": Bug(
        "removes the parts of a large message when the first of several queues lets go of it",
        "broker.core.parts",
        "Parts.let_go",
        "held.pop()",
        "held.clear()",
    ),
    "manifest-lacks-a-part": Bug(
        "puts a large message on its queues without its last part",
        "broker.sessions.uploads",
        "Uploading.finish",
        "tuple(runs_of(sequences))",
        "tuple(runs_of(sequences[:-1]))",
    ),
    "delivers-what-is-read": Bug(
        "ends a delivery in order when the parts that were read have gone out, though more are to be read",
        "broker.sessions.deliveries",
        "LargeDelivery.has_more",
        "return bool(self._ready) or self._reading or self._parts.more",
        "return bool(self._ready)",
    ),
    "confirms-early": Bug(
        "confirms a consumer's accept when it comes, not when the dequeue is committed",
        "broker.sessions.consumer",
        "Subscription.outcomes",
        "confirm.append((first, count))",
        "link.settle(first, count)",
    ),
    "forgets-releases": Bug(
        "keeps, when a consumer's link ends, what it had acquired",
        "broker.sessions.consumer",
        "Subscription.end",
        "node.messages.order.release(sequences)",
        "pass",
    ),
    "redelivers-last": Bug(
        "gives out what came back only when nothing else is there",
        "broker.core.queues.fifo",
        "Fifo.take",
        "if self._released:",
        "if self._released and self._cursor >= lane.next_seq:",
    ),
    "overtakes-what-is-read": Bug(
        "gives out what is in memory before older messages that have to be read back from disk",
        "broker.core.queues.lane",
        "Lane.walk",
        "return block.first_seq + position, True",
        """\
position = run_end
                        continue""",
    ),
    "gives-to-two": Bug(
        "gives out a message that another consumer has acquired",
        "broker.core.queues.fifo",
        "Fifo.take",
        "max_bytes -= lot.nbytes",
        "max_bytes, self._cursor = max_bytes - lot.nbytes, self._cursor - (lot is lots[-1])",
    ),
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
        "queues=[queue for queue in found.queues if queue is not node]",
        "queues=[]",
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
        "broker.sessions.queue_terminus",
        "QueueTerminus.failed",
        "self.letters.add(over, letters.DELIVERY_LIMIT)",
        "self.ledger.dequeue(messages.number, over)",
    ),
    "gives-out-what-failed-too-often": Bug(
        "gives a message out again whose delivery has failed as often as it may",
        "broker.sessions.queue_terminus",
        "QueueTerminus.failed",
        "self.letters.add(over, letters.DELIVERY_LIMIT)",
        "self.node.delivery_limit += 1; self.give_back(over)",
    ),
    "forgets-what-failed-too-often": Bug(
        "leaves, as a new primary, messages on their queue whose delivery has failed too often",
        "broker.sessions.queue_terminus",
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
    "retries-at-once": Bug(
        "lets a message that has failed come again at once, where it is to wait",
        "broker.sessions.queue_terminus",
        "QueueTerminus.undo",
        "if retry_ms and not 0 < limit <= failures:",
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
        "(BatchBuilder.times, each) for each in times",
        "(BatchBuilder.times, each) for each in ()",
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
    "keeps-old-values": Bug(
        "keeps the message before on a last value queue when another with its key comes",
        "broker.core.queues.last_value",
        "LastValue.put",
        "if before < 0 or not self._is_there(before):",
        "if True:",
    ),
    "gives-out-unread-values": Bug(
        "gives out messages of a last value queue, as a new primary, before it knows their keys",
        "broker.sessions.queue_terminus",
        "QueueTerminus.dispatch",
        "if self.node.displacing is not None and not self.node.displacing.ready:",
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
    "frees-a-group-with-its-first": Bug(
        "frees a group when the first of its messages is acquired no more",
        "broker.core.queues.groups",
        "Groups._let_go",
        """\
        if self._held[group]:
""",
        """\
        if self._held[group]:
            self._owner[group] = None
            self._offer(group)
""",
    ),
    "behind-its-group": Bug(
        "lets what is released wait behind the rest of its group",
        "broker.core.queues.groups",
        "Groups._waits",
        "heappush(self._waiting.setdefault(group, []), sequence)",
        "self._waiting.setdefault(group, []).append(sequence)",
    ),
    "takes-more-than-its-share": Bug(
        "lets a level of priority that has a share give out all that it has",
        "broker.core.queues.fairshare",
        "Fairshare.acquire",
        "most = min(share - self._taken, max_count) if share else max_count",
        "most = max_count",
    ),
}
