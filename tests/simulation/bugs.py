"""Defines a planted bug, and has the bugs of queues of all kinds, large messages, dead letters, times and selectors.

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
        "as a new primary, keeps the parts of messages that were never completed",
        "broker.sessions.ledger",
        "Ledger.begin_parts",
        "self.drop_parts(self.state.parts.orphans())",
        "pass",
    ),
    "sweeps-what-is-held": Bug(
        "as a new primary, also removes the parts of messages that are on queues",
        "broker.core.parts",
        "Parts.orphans",
        "for first, count in manifests[0].ranges)",
        "for first, count in manifests[0].ranges[:-1])",
    ),
    "lets-go-for-all": Bug(
        "removes the parts of a large message when the first of its queues no longer needs them",
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
        "ends a delivery when the parts in memory are sent, although more parts must be read",
        "broker.sessions.deliveries",
        "LargeDelivery.has_more",
        "return bool(self._ready) or self._reading or self._parts.more",
        "return bool(self._ready)",
    ),
    "confirms-early": Bug(
        "confirms a consumer's accept when it arrives, before the dequeue is committed",
        "broker.sessions.consumer",
        "Subscription.outcomes",
        "confirm.append((first, count))",
        "link.settle(first, count)",
    ),
    "forgets-releases": Bug(
        "does not release a consumer's messages when its link ends",
        "broker.sessions.consumer",
        "Subscription.end",
        "node.messages.order.release(sequences)",
        "pass",
    ),
    "redelivers-last": Bug(
        "delivers released messages only when there are no others",
        "broker.core.queues.fifo",
        "Fifo.take",
        "if self._released:",
        "if self._released and self._cursor >= lane.next_seq:",
    ),
    "overtakes-what-is-read": Bug(
        "delivers messages in memory before older ones that must be read from disk",
        "broker.core.queues.lane",
        "Lane.walk",
        "return block.first_seq + position, True",
        """\
position = run_end
                        continue""",
    ),
    "gives-to-two": Bug(
        "delivers a message that another consumer has acquired",
        "broker.core.queues.fifo",
        "Fifo.take",
        "max_bytes -= lot.nbytes",
        "max_bytes, self._cursor = max_bytes - lot.nbytes, self._cursor - (lot is lots[-1])",
    ),
    "lowest-level-first": Bug(
        "delivers the lowest level of a priority queue first",
        "broker.core.queues.priority",
        "Priority.acquire",
        "for fifo in self._highest_first:",
        "for fifo in self._by_level:",
    ),
    "overtakes-a-level-that-is-read": Bug(
        "delivers lower levels while messages of a higher level must be read from disk",
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
        "puts all messages that arrive together for a priority queue on the level of the first one",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "lane = lane_for(each)",
        "lane = lane_for(messages[0])",
    ),
    "checkpoint-forgets-levels": Bug(
        "writes only the lowest level's next sequence into a checkpoint",
        "broker.core.state",
        "State.snapshot",
        "seqs.append((number, lane.next_seq))",
        "seqs += [(number, lane.next_seq)] if lane is messages.order.lanes[0] else []",
    ),
    "releases-the-lowest-level": Bug(
        "at the end of its term, releases only the lowest level of a priority queue",
        "broker.core.queues.priority",
        "Priority.release_all",
        "for fifo in self._by_level:",
        "for fifo in self._by_level[:1]:",
    ),
    "ring-lets-the-newest-go": Bug(
        "removes the newest messages of a ring instead of the oldest",
        "broker.core.queues.ring",
        "Ring._leaving",
        "in end.oldest() if end.count else ():",
        "in reversed(list(end.oldest())):",
    ),
    "ring-counts-what-is-committed": Bug(
        "counts only the committed messages of a ring against its limit",
        "broker.core.queues.ring",
        "_End.begin",
        "self.count, self.nbytes = lane.depth + len(ahead), lane.live_bytes + sum(ahead)",
        "self.count, self.nbytes = lane.depth, lane.live_bytes",
    ),
    "ring-lets-go-in-a-batch-of-its-own": Bug(
        "dequeues a ring's displaced messages in another batch than the one with the new message",
        "broker.sessions.ledger",
        "Ledger._displace",
        "gone.extend(leave)",
        """\
gone.extend(leave)
                self.pending.cut()
                gone = self.pending.builder.dequeues_for(number)""",
    ),
    "drops-the-rejected": Bug(
        "ignores the alternate exchange of a queue",
        "broker.sessions.dead_letters",
        "DeadLetters._alternates",
        "queues=[queue for queue in found.queues if queue is not node]",
        "queues=[]",
    ),
    "keeps-the-rejected": Bug(
        "also keeps a rejected message on its queue",
        "broker.sessions.dead_letters",
        "DeadLetters._send",
        "partial(origin.ledger.dequeue, messages.number, (sequence,))",
        "list",
    ),
    "letters-twice": Bug(
        "sends two dead letters for one message",
        "broker.sessions.dead_letters",
        "DeadLetters._send_small",
        "logs.ledger_of(queue).put_letter(queue, letter)",
        "logs.ledger_of(queue).enqueue(queue, [letter, letter], len(letter))",
    ),
    "drops-what-failed-too-often": Bug(
        "removes a message that has failed too often without a dead letter",
        "broker.sessions.returns",
        "Returns.failed",
        "self._letters.add(over, reasons.DELIVERY_LIMIT)",
        "self._queue.ledger.dequeue(messages.number, over)",
    ),
    "gives-out-what-failed-too-often": Bug(
        "delivers a message again that has reached its delivery limit",
        "broker.sessions.returns",
        "Returns.failed",
        "self._letters.add(over, reasons.DELIVERY_LIMIT)",
        "self._queue.node.delivery_limit += 1; self._queue.give_back(over)",
    ),
    "forgets-what-failed-too-often": Bug(
        "as a new primary, keeps messages on their queue that have reached the delivery limit",
        "broker.sessions.returns",
        "Returns.limited",
        "self._letters.add([each for each in free if each not in self._letters], reasons.DELIVERY_LIMIT)",
        "[order.claim(each, 1) for each in free]",
    ),
    "gives-out-what-has-expired": Bug(
        "delivers expired messages until a sweep removes them",
        "broker.sessions.due",
        "Due._tests",
        "if not 0 < times(sequence) <= now_ms:",
        "if True:",
    ),
    "gives-out-what-is-to-wait": Bug(
        "delivers messages before their delay is over",
        "broker.sessions.due",
        "Due._tests",
        "if delays is not None and delays.waiting:",
        "if False:",
    ),
    "retries-at-once": Bug(
        "delivers a failed message again at once, although a delay is configured",
        "broker.sessions.returns",
        "Returns.undo",
        "if retry_ms and not 0 < limit <= failures:",
        "if False:",
    ),
    "lets-go-early": Bug(
        "removes messages up to a tenth of a second before they expire",
        "broker.sessions.due",
        "Due._sweep",
        "gone = messages.expiries.take(now_ms, MOST)",
        "gone = messages.expiries.take(now_ms + 100, MOST)",
    ),
    "times-of-the-next": Bug(
        "records for each message of a batch the times of the next one",
        "broker.sessions.ledger",
        "Ledger._times_of",
        "return found if",
        "return found[1:] + found[:1] if",
    ),
    "checkpoint-forgets-times": Bug(
        "does not write expiry times and delays into a checkpoint",
        "broker.core.state",
        "_snapshot_batches",
        "(BatchBuilder.times, each) for each in times",
        "(BatchBuilder.times, each) for each in ()",
    ),
    "forgets-what-waits": Bug(
        "as a new primary, does not start the times of messages that expire or wait",
        "broker.sessions.due",
        "Due.begin",
        "self.look()",
        "pass",
    ),
    "gives-what-nobody-selects": Bug(
        "delivers messages that do not match the consumer's selector",
        "broker.core.queues.scan",
        "Scan._look",
        "if matched and not is_acquired(sequence):",
        "if not is_acquired(sequence):",
    ),
    "selects-what-another-has": Bug(
        "delivers messages that another consumer has acquired to a consumer with a selector",
        "broker.core.queues.fifo",
        "Fifo.is_acquired",
        "return sequence in self._claimed",
        "return False",
    ),
    "never-selects-again": Bug(
        "does not check a released message again for selectors that have passed it",
        "broker.core.queues.scan",
        "Scan._read",
        "if sequence < place.cursor or sequence < firsts[sequence >> LANE_SHIFT]:",
        "if False:",
    ),
    "keeps-old-values": Bug(
        "keeps the old message on a last value queue when a new one with the same key arrives",
        "broker.core.queues.last_value",
        "LastValue.put",
        "if before < 0 or not self._is_there(before):",
        "if True:",
    ),
    "gives-out-unread-values": Bug(
        "as a new primary, delivers messages of a last value queue before it knows their keys",
        "broker.sessions.queue_terminus",
        "QueueTerminus.dispatch",
        "if self.node.displacing is not None and not self.node.displacing.ready:",
        "if False:",
    ),
}

OF_TRANSACTIONS = {
    "tears-a-transaction": Bug(
        "puts the consumed messages of a transaction into another batch than its sent messages",
        "broker.sessions.transactions",
        "Transaction._propose",
        "            for queue, sequences, outcome in retired:",
        "            ledger.pending.cut()\n            for queue, sequences, outcome in retired:",
    ),
    "carries-out-what-failed": Bug(
        "carries out a transaction that its client has rolled back",
        "broker.sessions.coordinator",
        "Coordinator._request",
        "if request.fail:",
        "if False:",
    ),
    "forgets-what-was-consumed": Bug(
        "keeps the consumed messages of a transaction on their queue",
        "broker.sessions.transactions",
        "Transaction.retire",
        "self._retired.append(_Retired(queue, sequences, outcome))",
        "pass",
    ),
    "keeps-transactions-of-the-gone": Bug(
        "keeps the consumed messages of a transaction acquired after its client has left",
        "broker.sessions.coordinator",
        "Coordinator.left",
        "producer.session.transactions.left(producer)",
        "pass",
    ),
    "frees-a-group-with-its-first": Bug(
        "frees a group when the first of its acquired messages is settled",
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
        "puts a released message behind the other messages of its group",
        "broker.core.queues.groups",
        "Groups._waits",
        "heappush(self._waiting.setdefault(group, []), sequence)",
        "self._waiting.setdefault(group, []).append(sequence)",
    ),
    "takes-more-than-its-share": Bug(
        "lets a priority level with a fair share deliver all its messages in a row",
        "broker.core.queues.fairshare",
        "Fairshare.acquire",
        "most = min(share - taken, max_count) if share else max_count",
        "most = max_count",
    ),
}
