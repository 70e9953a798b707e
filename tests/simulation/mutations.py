"""Bugs planted in production code, to see whether the simulation finds them: `python -m tests.simulation.mutations`.

Life of a bug: `planted(name)` takes the source of one production function, replaces a few lines in it, and uses the
result in place of the right function while the `with` lasts. Then seeds are run until one of the checks fails. If no
seed within the limit finds a bug, the plan lacks a fault or a load, or a check is missing.

Invariant: the lines to be replaced occur exactly once in the function. So a bug that no longer fits the code is an
error; it is never silently left out.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import multiprocessing
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from twisted.logger import ILogObserver, globalLogBeginner
from zope.interface import provider

from tests.simulation.bugs import OF_QUEUES, OF_TRANSACTIONS, Bug
from tests.simulation.bugs_of_alterations import OF_ALTERATIONS
from tests.simulation.bugs_of_departures import OF_DEPARTURES
from tests.simulation.bugs_of_duplicates import OF_DUPLICATES
from tests.simulation.bugs_of_links import OF_LINKS
from tests.simulation.bugs_of_moves import OF_MOVES
from tests.simulation.bugs_of_owners import OF_OWNERS
from tests.simulation.bugs_of_passing import OF_PASSING
from tests.simulation.bugs_of_routes import OF_ROUTES
from tests.simulation.bugs_of_subscriptions import OF_SUBSCRIPTIONS
from tests.simulation.bugs_of_takeovers import OF_TAKEOVERS
from tests.simulation.history import Violation
from tests.simulation.provoked import RUNS
from tests.simulation.world import run

SEEDS = 300


BUGS = {
    **OF_ALTERATIONS,
    **OF_DEPARTURES,
    **OF_DUPLICATES,
    **OF_LINKS,
    **OF_MOVES,
    **OF_OWNERS,
    **OF_PASSING,
    **OF_ROUTES,
    **OF_SUBSCRIPTIONS,
    **OF_TAKEOVERS,
    **OF_TRANSACTIONS,
    "votes-twice": Bug(
        "votes for every candidate, even a second time in an epoch",
        "ha.core.voter",
        "Voter.on_vote",
        "voted_for = member.voted_for if message.epoch == member.epoch else None",
        "voted_for = None",
    ),
    "forgets-its-vote": Bug(
        "after a restart, knows its epoch but not its vote in it",
        "ha.core.member",
        "Member.__init__",
        "self.voted_for = voted_for",
        "self.voted_for = None",
    ),
    "hard-state-in-the-page-cache": Bug(
        "does not sync epoch and vote before it answers",
        "broker.disk.hard_state",
        "_put",
        "sync_or_stop(disk, fd, path)",
        "pass",
    ),
    "wins-with-refusals": Bug(
        "counts every answer to a request for votes as a vote",
        "ha.core.quorum",
        "Tally.count",
        "if not granted:",
        "if False:",
    ),
    "votes-for-older-logs": Bug(
        "votes without comparing the logs",
        "ha.core.voter",
        "Voter._objection",
        "found = objection(theirs, member.position, member.floor)",
        'found = ""',
    ),
    "begins-anew": Bug(
        "counts the vote of a new store like any other vote, for an empty candidate too",
        "ha.core.election",
        "Campaign.count",
        "provisional=provisional and not self.forced",
        "provisional=False",
    ),
    "forgets-that-it-is-paused": Bug(
        "lets managers promote although the cluster is paused",
        "ha.core.cluster_settings",
        "objection",
        "if PAUSE in settings:",
        "if False:",
    ),
    "lets-two-kinds-move-it": Bug(
        "lets a manager move a primary that a manager of another kind has just promoted",
        "ha.core.cluster_settings",
        "objection",
        'if term.by not in ("", kind) and age_s < OTHERS_CALM_S:',
        "if False:",
    ),
    "checkpoint-forgets-settings": Bug(
        "does not write the cluster's settings into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.settings.values(), ",
        "",
    ),
    "gives-up-on-newer-logs": Bug(
        "gives up a promotion if other brokers have newer logs, and does not ask one of them to campaign first",
        "ha.core.candidacy",
        "Candidacy._seek",
        "if best:",
        "if best == member.me:",
    ),
    "leaves-it-at-the-better-one": Bug(
        "does not take over from the better broker that it has asked to campaign first",
        "ha.core.candidacy",
        "Candidacy._set_back",
        "if insisting and pursuit is not None:",
        "if False:",
    ),
    "stands-unasked": Bug(
        "campaigns as soon as the link to its primary breaks",
        "ha.core.candidacy",
        "Candidacy.primary_lost",
        "if self._handover_by is not None:",
        "if self.campaign is None:",
    ),
    "serves-early": Bug(
        "is active before a batch of its own epoch is committed",
        "ha.core.primary",
        "Primary.__init__",
        "self.active = False",
        "self.active = True",
    ),
    "counts-old-epochs": Bug(
        "commits a batch of an older epoch because a majority has it",
        "ha.core.primary",
        "Primary._advance_commit",
        "if index <= member.commit_index or member.log.epoch_at(index) != member.epoch:",
        "if index <= member.commit_index:",
    ),
    "commits-by-minority": Bug(
        "needs one broker less than a majority for a commit",
        "ha.core.primary",
        "held_by_majority",
        "return ordered[len(ordered) // 2]",
        "return ordered[max(0, len(ordered) // 2 - 1)]",
    ),
    "counts-learners": Bug(
        "counts a learner instead of the slowest voter",
        "ha.core.primary",
        "Primary._advance_commit",
        """\
            [member.durable_index if voter == member.me else self.peers[voter].match_index for voter in member.log.members.voters]
        )
""",
        """\
            sorted(
                (member.durable_index if each == member.me else self.peers[each].match_index)
                for each in member.log.members.addresses
            )[-len(member.log.members.voters) :]
        )
""",
    ),
    "counts-its-own-unsynced": Bug(
        "counts itself for a commit before its own disk has synced",
        "ha.core.primary",
        "Primary._advance_commit",
        "member.durable_index if voter == member.me",
        "member.log.last_index if voter == member.me",
    ),
    "two-member-changes": Bug(
        "begins a change of the members while another one is not committed",
        "ha.core.primary",
        "Primary.change_members",
        "elif self._changing:",
        "elif False:",
    ),
    "hands-over-without-quiet": Bug(
        "hands over before its consumers have settled their messages",
        "broker.sessions.leaving",
        "Leaving._settled",
        "return not unsettled or now_s - self._moved_s >= self._quiet_s or now_s >= self._settle_until_s",
        "return True",
    ),
    "follows-old-primaries": Bug(
        "goes back to the epoch of an old primary when it hears from one",
        "ha.core.replica",
        "Replica._on_primary",
        "if message.epoch < member.epoch or isinstance(role, Primary):",
        "member.epoch = message.epoch\n        if isinstance(role, Primary):",
    ),
    "counts-received": Bug(
        "counts batches for a commit that a backup has received but not synced",
        "ha.core.progress",
        "Progress.accepted",
        "match = min(reply.match_index, log.last_index)",
        "match = min(reply.received_index, log.last_index)",
    ),
    "keeps-a-diverged-tail": Bug(
        "keeps its own batch when the primary's batch has the same index and another epoch",
        "ha.core.backup",
        "Backup._add",
        "member.truncate(entry.index)",
        "continue",
    ),
    "truncates-what-it-holds": Bug(
        "truncates at each batch that it already has, so that a late message removes newer batches",
        "ha.core.backup",
        "Backup._add",
        "if log.epoch_at(entry.index) == entry.epoch:",
        "if entry.index <= member.commit_index:",
    ),
    "matches-without-epoch": Bug(
        "treats a log as matching if it is long enough, without comparing epochs",
        "ha.core.backup",
        "Backup.append",
        "elif member.log.epoch_at(message.prev_index) != message.prev_epoch:",
        "elif message.prev_index > member.log.last_index:",
    ),
    "commits-unverified": Bug(
        "as a backup, commits batches that may differ from the primary's",
        "ha.core.backup",
        "Backup._agree",
        "self._member.commit_to(min(self.told_commit, self.verified_index))",
        "self._member.commit_to(min(self.told_commit, self._member.log.last_index))",
    ),
    "acknowledges-unsynced": Bug(
        "acknowledges batches before they are synced",
        "ha.core.backup",
        "Backup.match_index",
        "return min(self._member.durable_index, self.verified_index)",
        "return self.verified_index",
    ),
    "skips-fsync": Bug(
        "never syncs the journal",
        "broker.disk.writer",
        "Writer._write_some",
        "sync_or_stop(self.disk, segment.fd, segment.path)",
        "pass",
    ),
    "torn-tail-taken-as-whole": Bug(
        "accepts a torn batch at its start without checking the checksum",
        "broker.disk.segments",
        "Window.batch",
        "return verify(self.get(offset, header.length))",
        "return header",
    ),
    "checkpoint-keeps-the-dead": Bug(
        "ignores dequeues in a checkpoint: it writes whole batches of a queue's messages, with the dead ones",
        "broker.core.state",
        "State.snapshot",
        "lane.snapshot()",
        "[Lot(block, *block.bounds(run), *body) for block in lane.blocks for run, body in sorted(block.bodies.items())]",
    ),
    "checkpoint-forgets-sequences": Bug(
        "does not write a queue's next sequence into a checkpoint",
        "broker.core.state",
        "State.snapshot",
        "seqs.append((number, lane.next_seq))",
        "pass",
    ),
    "checkpoint-forgets-delivery-counts": Bug(
        "does not write delivery counts into a checkpoint",
        "broker.core.state",
        "State.snapshot",
        "lane.delivery_counts()",
        "{}",
    ),
    "checkpoint-keeps-deleted-queues": Bug(
        "creates deleted queues again from a checkpoint",
        "broker.core.definitions",
        "Definitions._remove_queue",
        "queue = self.queues.pop(command.uuid, None)",
        "queue = self.queues.get(command.uuid)",
    ),
    "applies-twice": Bug(
        "applies the last batch before a restart a second time",
        "ha.log.applying",
        "Applying.__init__",
        "self.applied = self.committed = base_index",
        "self.applied, self.committed = max(base_index - 1, 0), base_index",
    ),
    "first-queue-only": Bug(
        "applies only the first queue's part of a batch for two queues",
        "broker.core.state",
        "State.apply",
        """\
                if messages is not None:
                    place =""",
        """\
                if messages is not None and not applied.fed:
                    place =""",
    ),
    "accepts-early": Bug(
        "accepts a producer's messages when they are proposed, before they are committed",
        "broker.sessions.pending",
        "Pending.pump",
        "index = log.propose(builder)\n",
        """\
index = log.propose(builder)
                for link, runs in waits.accepts.items():
                    for first, count in runs:
                        link.settle(first, count, ACCEPTED)
                        link.context.accepted(count)
                waits.accepts.clear()
""",
    ),
    "accepts-when-deposed": Bug(
        "when it steps down, accepts proposed messages that it has not seen committed",
        "broker.sessions.pending",
        "Pending.void",
        "self._proposed.clear()",
        """\
for _, waits in self._proposed:
            for link, runs in waits.accepts.items():
                for first, count in runs:
                    link.settle(first, count, ACCEPTED)
                link.context.session.touch()
        self._proposed.clear()""",
    ),
    **OF_QUEUES,
    "backups-delete-by-their-own-clocks": Bug(
        "lets each broker delete an unused queue by its own clock",
        "broker.sessions.unused",
        "Unused.left",
        """\
        if node.auto_delete_s and self._logs.serving and not self._users(node):
            self._schedule.after(_key(node), node.auto_delete_s, partial(self._due, node.uuid))
""",
        """\
        from broker.core.commands import QueueDel

        def due():
            state = self._logs.ledgers[node.log].state
            self._due(node.uuid) if self._logs.serving else state._change(QueueDel(uuid=node.uuid), None)

        if node.auto_delete_s and not self._users(node):
            self._schedule.after(_key(node), node.auto_delete_s, due)
""",
    ),
    "counts-the-time-of-old-terms": Bug(
        "continues the time of an unused queue from an earlier term or an earlier user",
        "broker.sessions.schedule",
        "Schedule.after",
        "self._agenda.put(key, self._clock.seconds() + delay_s)",
        "self._agenda.put(key, vars(self).setdefault(f'{key}', self._clock.seconds() + delay_s))",
    ),
    "forgets-what-was-due": Bug(
        "as a new primary, does not start the time of unused queues",
        "broker.service",
        "Broker.ledger_state",
        "self.queues.unused.begin()",
        "pass",
    ),
    "producers-use-nothing": Bug(
        "deletes a queue that only producers use",
        "broker.sessions.queues",
        "Queues.users",
        "len(terminus.subscriptions) + len(terminus.producers)",
        "len(terminus.subscriptions)",
    ),
    "compacts-nothing": Bug(
        "never compacts a file, however few live messages it has",
        "ha.log.retention",
        "Retention._victims",
        "if live >= worth * body.nbytes or (len(found) >= at_least and live > room):",
        "if True:",
    ),
    "keeps-dead-files": Bug(
        "forgets files that no checkpoint lists any more, and does not delete them",
        "broker.disk.journal",
        "Journal.release",
        "self._preparation.remove(paths)",
        "pass",
    ),
    "keeps-files-for-nobody": Bug(
        "keeps the files of a snapshot that the backup no longer needs",
        "ha.replicated_log",
        "ReplicatedLog._tick",
        "self._snapshot_effects.end_needless()",
        "pass",
    ),
    "stretch-ends-at-a-file": Bug(
        "removes only those messages of a run that are in the first file",
        "broker.core.queues.lane",
        "Lane._kill",
        "if lo >= stop:",
        "if lo >= stop or n:",
    ),
    "takes-a-neighbour": Bug(
        "removes the message after the accepted one from the queue",
        "broker.sessions.consumer",
        "Subscription.outcomes",
        "taken += sequences",
        "taken += range(sequences.start + 1, sequences.stop + 1)",
    ),
    "enqueues-backwards": Bug(
        "enqueues messages that a producer sent together in reverse order",
        "broker.sessions.producer",
        "Producer.take",
        "self.target.receive(self, first, messages)",
        "self.target.receive(self, first, messages[::-1])",
    ),
    "gives-beyond-credit": Bug(
        "sends a consumer one message more than its credit",
        "broker.sessions.consumer",
        "Subscription.room",
        "return room",
        "return room and room + 1",
    ),
    "credit-twice": Bug(
        "returns two credits to a producer for one message",
        "broker.sessions.producer",
        "Producer.accepted",
        "self._grant(count)",
        "self._grant(2 * count)",
    ),
    "keeps-what-went-settled": Bug(
        "keeps messages that it sent settled on the queue",
        "broker.sessions.consumer",
        "Subscription.deliver",
        "if self.presettled and not self.browse:",
        "if False:",
    ),
    "routes-to-one": Bug(
        "puts a message for several queues only on the first one",
        "broker.sessions.routing",
        "find",
        "return Routed(found, key, through, origin)",
        "return Routed(found[:1], key, through, origin)",
    ),
    "forgets-the-star": Bug(
        "treats the star in a topic exchange's pattern as a word",
        "broker.core.exchange",
        "Exchange._places",
        'for step in (word, "*"):',
        "for step in (word,):",
    ),
    "drops-what-nobody-wants": Bug(
        "ignores the alternate exchange of an exchange",
        "broker.sessions.routing",
        "find",
        "at = nodes.exchanges.get(at.definition.alternate) if at.definition.alternate else None",
        "at = None",
    ),
    "binds-for-itself": Bug(
        "does not replicate bindings of replicated queues",
        "broker.core.planning",
        "_binding_log",
        "return CLUSTER if nodes.clustered and exchange.replicated and queue.replicated else LOCAL",
        "return LOCAL",
    ),
    "accepts-at-the-first-log": Bug(
        "accepts a message for queues of two logs when the first log has it",
        "broker.sessions.routing",
        "_done_when_committed",
        "outstanding = set(ledgers)",
        "ledgers = dict(list(ledgers.items())[:1]); outstanding = set(ledgers)",
    ),
    "checkpoint-forgets-places": Bug(
        "does not write the local stores of queues that another log defines into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.stores.values(), ",
        "",
    ),
    "passes-over-the-unknown": Bug(
        "continues after a command that its release does not know, as release 0.1 did",
        "broker.core.state",
        "State._commands",
        "raise CannotApply(batch.header.index, command.why)",
        "continue",
    ),
    "raises-the-version-early": Bug(
        "raises the cluster's version although an absent member has not said that it knows this version",
        "ha.cluster_member",
        "ClusterMember._raise_version",
        "self.peers.machine_versions()",
        "dict.fromkeys(members, state.version) | self.peers.machine_versions()",
    ),
    "stops-at-a-dead-message": Bug(
        "removes only those messages of a run that are before a dead one",
        "broker.core.queues.blocks",
        "Block.kill",
        """\
                    stretches = list(self.stretches(start, stop))
                    n = sum(hi - lo for lo, hi in stretches)
                    nbytes = sum(offsets[hi] - offsets[lo] for lo, hi in stretches)
""",
        """\
                    stop = dead.find(1, start, stop)
                    if stop == start:
                        return 0, 0
                    n, nbytes = stop - start, offsets[stop] - offsets[start]
""",
    ),
    "counts-up-to-a-gap": Bug(
        "raises the delivery counts only for the messages of a run that are before a dead one",
        "broker.core.queues.lane",
        "Lane.raise_count",
        "block.stretches(max(first_seq - base, 0), end - base):",
        "list(block.stretches(max(first_seq - base, 0), end - base))[:1]:",
    ),
    "installs-unsynced": Bug(
        "deletes the log for a received checkpoint whose files are not synced",
        "broker.disk.transfer",
        "Receiver._complete",
        "self._disk.sync(part.fd)",
        "pass",
    ),
    "installs-under-an-unsynced-name": Bug(
        "deletes the log for a received checkpoint whose name is not synced",
        "broker.disk.transfer",
        "Receiver.finish",
        """\
            self._disk.replace(self._aside, path)
            self._disk.sync_folder(self._folder)
""",
        """\
            self._disk.replace(self._aside, path)
""",
    ),
    "checkpoint-unsynced": Bug(
        "deletes the log for its own checkpoint that is not synced",
        "broker.disk.checkpoint",
        "write",
        "disk.sync(fd)",
        "pass",
    ),
    "checkpoint-under-an-unsynced-name": Bug(
        "deletes the log for its own checkpoint whose name is not synced",
        "broker.disk.checkpoint",
        "write",
        "disk.sync_folder(folder)",
        "pass",
    ),
    "whole-at-the-first-word": Bug(
        "treats a damaged store as whole as soon as it hears from a primary",
        "ha.core.backup",
        "Backup._judge_store",
        "elif member.floor is not None and Position(member.log.epoch_at(match) or 0, match) >= member.floor:",
        "elif member.floor is not None:",
    ),
    "votes-below-its-floor": Bug(
        "with a damaged store, votes for a log that may lack what the store has lost",
        "ha.core.voter",
        "Voter._objection",
        "objection(theirs, member.position, member.floor)",
        "objection(theirs, member.position, None)",
    ),
    "stands-below-its-floor": Bug(
        "with a damaged store, is a candidate in an election",
        "ha.core.candidacy",
        "Candidacy.unfit",
        "lost = unfitness(member.position, member.floor)",
        'lost = ""',
    ),
    "cuts-without-a-floor": Bug(
        "cuts damage out of the log without recording what it has lost",
        "broker.disk.recovery",
        "_Recovery.lose",
        "replace_durably(self.disk, self.folder / FLOOR, seal_json(floor._asdict()))",
        "pass",
    ),
    "floor-of-what-is-left": Bug(
        "records the end of the remaining log as what a damaged log once had",
        "broker.disk.recovery",
        "_Recovery.lose",
        "floor = max([end, *self.evidence(later, window, end), self.floor() or end])",
        "floor = end",
    ),
    "counts-old-acknowledgements": Bug(
        "counts acknowledgements of an older epoch",
        "ha.core.replica",
        "Replica._on_message",
        """\
                if current and isinstance(role, Primary):
                    role.append_reply(now, sender, message)
""",
        """\
                if isinstance(role, Primary):
                    role.append_reply(now, sender, message)
""",
    ),
    "counts-answers-to-other-campaigns": Bug(
        "counts answers to an older campaign",
        "ha.core.candidacy",
        "Candidacy.on_pre_vote_reply",
        "campaign.round is Round.PRE_VOTE and campaign.number == message.campaign:",
        "campaign.round is Round.PRE_VOTE:",
    ),
    "lets-go-late": Bug(
        "campaigns because a primary of an older epoch asked it to take over",
        "ha.core.replica",
        "Replica._on_message",
        "if current and isinstance(role, Backup) and role.primary == sender:",
        "if isinstance(role, Backup):",
    ),
    "counts-blank-votes": Bug(
        "with a blank store, gives a vote that counts like any other",
        "ha.core.voter",
        "Voter.on_vote",
        "not reason, member.blank, reason",
        "not reason, False, reason",
    ),
    "promises-blank-votes": Bug(
        "with a blank store, promises a vote that counts like any other",
        "ha.core.voter",
        "Voter.on_pre_vote",
        "not reason, member.blank, reason",
        "not reason, False, reason",
    ),
    "counts-provisional-votes": Bug(
        "counts a provisional vote like any other, although it counts only if all members grant",
        "ha.core.quorum",
        "Tally.count",
        "(self.provisional if provisional else self.granted).add(voter)",
        "self.granted.add(voter)",
    ),
    "leaves-what-it-truncates": Bug(
        "truncates in memory, but leaves the bytes in the file",
        "broker.disk.segments",
        "Segment.clear",
        "for at in range(self.end, dirty_end, len(_ZEROS)):",
        "for at in ():",
    ),
    "marks-what-it-truncates": Bug(
        "leaves the mark of a segment after the end to which it was truncated",
        "broker.disk.segments",
        "Segment.clear",
        "for _ in _MARK_OFFSETS:",
        "for _ in ():",
    ),
    "reset-keeps-segments": Bug(
        "keeps the segments of a log that a checkpoint replaces",
        "broker.disk.recovery",
        "reset",
        "for _, path in segments.listed(disk, folder):",
        "for path in ():",
    ),
    "whole-before-it-knows": Bug(
        "treats a blank store as whole before its primary has committed a batch of its own epoch",
        "ha.core.backup",
        "Backup._has_everything",
        "return match >= self._goal and member.log.epoch_at(self._goal) == member.epoch",
        "return match >= self.told_commit",
    ),
    "waits-for-a-silent-reader": Bug(
        "keeps a link to a silent member while its socket is full",
        "ha.net.peers",
        "_Outgoing.tick",
        "if silent or self.engine.finished:",
        "if self.engine.finished:",
    ),
    "whole-before-it-is-on-disk": Bug(
        "treats a blank store as whole before the batches that it needs are on its disk",
        "ha.core.backup",
        "Backup._has_everything",
        "return match >= self._goal and member.log.epoch_at(self._goal) == member.epoch",
        "return member.log.epoch_at(self.told_commit) == member.epoch",
    ),
    "witness-votes-for-whoever-asks": Bug(
        "as a witness, votes for a broker that lacks batches that it attests and that only the other broker has",
        "ha.core.voter",
        "Voter._objection",
        "return objection_of(member.attested, theirs) if found and member.attested is not None else found",
        'return "" if member.attested is not None else found',
    ),
    "attests-before-it-is-saved": Bug(
        "as a witness, attests a position before it is saved",
        "ha.core.member",
        "Member.attest",
        "self._effects.append(SaveHardState(self.epoch, self.voted_for, attested))",
        "pass",
    ),
    "forgets-what-it-attests": Bug(
        "as a witness, keeps the attested position in memory only",
        "broker.disk.hard_state",
        "_sealed",
        'if name != "attested" or value is not None',
        'if name != "attested"',
    ),
    "raises-who-is-to-follow": Bug(
        "gives a learner that must stay a learner a vote as soon as it has caught up",
        "ha.core.primary",
        "Primary._raise_learner",
        "progress.address in members.learners and progress.address not in members.standby",
        "progress.address in members.learners",
    ),
    "asks-for-what-no-disk-has": Bug(
        "asks the witness to attest batches that are not on the primary's own disk",
        "ha.core.witness",
        "Asking.question",
        "index = member.durable_index",
        "index = member.log.last_index",
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Production code with this bug in it."""
    with planted_bug(BUGS[name]):
        yield


@contextmanager
def planted_bug(bug: Bug) -> Iterator[None]:
    """Production code with a bug in it that is none of `BUGS`."""
    owner: Any = importlib.import_module(bug.module)
    *path, last = bug.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    before = vars(owner)[last]
    setattr(owner, last, _spoilt(before, bug))
    try:
        yield
    finally:
        setattr(owner, last, before)


def _spoilt(before: Any, bug: Bug) -> Any:
    function: Any = before.fget if isinstance(before, property) else getattr(before, "__func__", before)
    source = inspect.getsource(function)
    found = source.count(bug.right)
    assert found == 1, f"{bug.right!r} stands {found} times in {bug.module}.{bug.function}, and should stand there once"
    made: dict[str, Any] = {}
    # Annotations stay text, as in the module that the function comes from; a method keeps its indentation.
    head = "from __future__ import annotations\nif True:\n" if source[0] == " " else "from __future__ import annotations\n"
    exec(compile(head + source.replace(bug.right, bug.wrong), bug.module, "exec"), function.__globals__, made)
    return made[function.__name__]


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a bug: the seed that found it, the check that objected, and what it said; `seed` 0 when none did."""

    name: str
    seed: int
    text: str
    seconds: float

    @property
    def check(self) -> str:
        """The check's name."""
        return self.text.partition(":")[0]


def hunt(name: str, run: Callable[[int], object], seeds: Sequence[int], sound: Container[int] = ()) -> Finding:
    """Run seeds with the bug until a check objects that has nothing to say without it; of `sound` seeds that is known."""
    began = time.monotonic()
    for seed in seeds:
        with planted(name):
            text = _objection(run, seed)
        if text and (seed in sound or not _objection_without(run, seed)):
            return Finding(name, seed, text, time.monotonic() - began)
    return Finding(name, 0, "", time.monotonic() - began)


def hunt_where_it_shows(name: str, seeds: Sequence[int]) -> Finding:
    """Hunt in the plan that provokes the bug, or in usual runs if it has none."""
    return hunt(name, RUNS.get(name, run), seeds)


@cache
def _objection_without(run: Callable[[int], object], seed: int) -> str:
    """What a check says of the code as it is. Told once: several bugs have the same plan."""
    return _objection(run, seed)


def _objection(run: Callable[[int], object], seed: int) -> str:
    """What a check says of this seed's run, "" for nothing."""
    try:
        run(seed)
    except Violation as violation:
        text = str(violation)
    else:
        return ""
    gc.collect(1)  # the world that the exception has held
    return text


def table(findings: Sequence[Finding]) -> str:
    """The findings as a table for the documentation."""
    lines = ["| planted bug | what it does | in runs | caught by |", "|---|---|---|---|"]
    for finding in findings:
        runs = "of its own plan" if finding.name in RUNS else "of any seed"
        lines.append(f"| {finding.name} | {BUGS[finding.name].says} | {runs} | {finding.check or 'not caught'} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description="Plant bugs and see them caught.")
    parser.add_argument("names", nargs="*", help="the bugs to plant (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds to try for each (default: %(default)s)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(BUGS)
    if unknown:
        parser.error(f"there is no bug named {', '.join(sorted(unknown))}; there are {', '.join(BUGS)}")
    globalLogBeginner.beginLoggingTo([_nowhere], redirectStandardIO=False, discardBuffer=True)
    findings = []
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for finding in pool.map(partial(hunt_where_it_shows, seeds=range(1, given.seeds + 1)), given.names or BUGS):
            findings.append(finding)
            after = f"by seed {finding.seed}: {finding.text}" if finding.seed else f"not by {given.seeds} seeds"
            print(f"{finding.name}: {after.splitlines()[0]} ({finding.seconds:.1f} s)", flush=True)
    print()
    print(table(findings))
    return 0 if all(finding.seed for finding in findings) else 1


@provider(ILogObserver)
def _nowhere(event: object) -> None:
    """What production code logs is of no interest here."""


if __name__ == "__main__":
    raise SystemExit(main())
