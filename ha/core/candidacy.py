"""How a member becomes the primary: the requests for it, and the campaign or handover in progress.

Life of a candidacy: `promote` requests it. If a primary is heard, the primary is asked to hand over; otherwise the member
campaigns for votes (`election.py`). A promotion with `insist` goes further (`pursuit.py`). The candidacy ends when the member is
the primary, when it is refused, or when another epoch begins. A forced beginning (`bootstrap`, `take_over`) first ends anything
in progress.

Invariants: at most one campaign or one wait for a handover is in progress. Each request is answered once, by PromotionEnded. A
member that enters an epoch that another member began ends what it did in the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ha.core import lineage
from ha.core.backup import Backup
from ha.core.effects import PromotionEnded
from ha.core.election import Campaign, Round, unfitness
from ha.core.membership import Membership
from ha.core.messages import Position, PreVote, PreVoteReply, TransferReply, TransferRequest, Vote, VoteReply
from ha.core.office import Office
from ha.core.primary import Primary
from ha.core.pursuit import Pursuit
from ha.core.witness import NO_CANDIDATE

_WITHOUT_IT = (
    "no other member stores this log: bring that part back, or, to go on without it, stop this broker, delete the file floor in "
    "the folder cluster of its --data-dir, and start it again"
)
"""The end of the only store of a cluster is lost. Only a person can know that no broker has it that is no member any more."""


class Candidacy:
    """The candidacy of the member that holds this office. `campaign` is the campaign in progress; `begun_without` are
    the members that were silent when this one was made the primary by force, and `begun_for` those that asked it to be
    elected first, so that it hands over to them: both are for the history.
    """

    __slots__ = (
        "_campaigns",
        "_handover_by",
        "_member",
        "_office",
        "_patrons",
        "_pursuit",
        "_refusing",
        "_requests",
        "begun_for",
        "begun_without",
        "campaign",
    )

    def __init__(self, office: Office) -> None:
        self._office = office
        self._member = office.member
        self.campaign: Campaign | None = None
        self._campaigns = 0
        self._requests: list[tuple[str, bool]] = []
        """The ids of the requests, and whether each one has `insist`."""
        self._pursuit: Pursuit | None = None
        self._refusing: Mapping[str, str] = {}
        """The members that refused links when the last request was made, and why."""
        self._patrons: set[str] = set()
        """The members that have asked this one to be elected first, so that it hands over to them."""
        self._handover_by: float | None = None
        self.begun_for: tuple[str, ...] = ()
        self.begun_without: tuple[str, ...] = ()

    @property
    def unfit(self) -> str:
        """Why this member must not be a candidate, or "".

        A member that is being removed, or becomes a learner, may be one: until that is committed, perhaps no other member
        has a log that is new enough (dissertation §4.2.2).
        """
        member = self._member
        if member.settings.witness:
            return f"{member.me} {NO_CANDIDATE}"
        role = member.log.members.role(member.me)
        learns = role == "learner" and member.log.members_at(member.commit_index).role(member.me) != "voter"
        if learns or (not role and member.log.members_index <= member.commit_index):
            return f"{member.me} is not a voting member of the cluster ({', '.join(member.log.members.voters)})"
        lost = unfitness(member.position, member.floor)
        return member.halted or (f"{lost}; {_WITHOUT_IT}" if lost and member.is_only_store else lost)

    # What people ask for

    def promote(self, now: float, request_id: str, *, insist: bool, refusing: Mapping[str, str]) -> None:
        """See `Replica.promote`."""
        member, role = self._member, self._office.role
        self._refusing = refusing
        self._requests.append((request_id, insist))
        if insist and self._pursuit is None:
            times = member.settings
            within_s = times.campaign_timeout_s + times.transfer_timeout_s
            self._pursuit = Pursuit(now, within_s, times.heartbeat_s)
        if isinstance(role, Primary):
            if role.active:
                self._end_requests(True, f"{member.me} is the primary of epoch {member.epoch} already")
        elif self.campaign is None and self._handover_by is None:
            self._stand(now, role)

    def bootstrap(self, now: float, request_id: str) -> None:
        """See `Replica.bootstrap`."""
        obstacle = self.obstacle_to_bootstrap(now)
        if obstacle:
            self._member.emit(PromotionEnded(request_id, False, obstacle))
        else:
            self._give_up("an operator begins a new cluster with this broker")
            self._requests.append((request_id, False))
            self._run(now, forced=True)

    def obstacle_to_bootstrap(self, now: float) -> str:
        """Why no new cluster can begin with this store, or ""."""
        member, role = self._member, self._office.role
        if isinstance(role, Primary):
            return f"{member.me} is the primary of epoch {member.epoch}"
        if role.hears(now):
            return f"{member.me} hears the primary {role.primary} of epoch {member.epoch}, from which it fetches missing batches"
        if member.settings.witness:
            return f"{member.me} {NO_CANDIDATE}"
        if not member.blank or member.cluster_id:
            named = f" of cluster {member.cluster_id}" if member.cluster_id else ""
            return f"the store of {member.me} is not new: it holds data{named}; use `qpid-ha promote`"
        if member.claimed_id:
            # A new cluster would get this id, too, and a broker that has more of the old one would lose that to it.
            return (
                f"the store of {member.me} is not new: it holds the beginning of cluster {member.claimed_id}; use `qpid-ha "
                f"promote`, or, to give that cluster up, start {member.me} with an empty --data-dir"
            )
        return self.unfit

    def take_over(self, now: float, request_id: str, cluster_id: str) -> None:
        """See `Replica.take_over`."""
        obstacle = self.obstacle_to_takeover(now)
        if obstacle:
            self._member.emit(PromotionEnded(request_id, False, obstacle))
        else:
            member = self._member
            self._give_up("an operator begins a new lineage with this broker")
            self._requests.append((request_id, False))
            self.begun_without = ()  # those that an earlier beginning gave up
            member.cluster_id = cluster_id
            member.save(member.epoch + 1, member.me)
            self.lead(now, lineage.alone(member.me, cluster_id))

    def obstacle_to_takeover(self, now: float) -> str:
        """Why no new lineage can begin here, or ""."""
        role = self._office.role
        hears = self._member.me if isinstance(role, Primary) else role.primary if role.hears(now) else ""
        return lineage.obstacle(self._member, hears)

    # What happens

    def tick(self, now: float) -> None:
        """Time has passed."""
        campaign = self.campaign
        if campaign is not None:
            if now >= campaign.deadline:
                found = f"no majority within {self._member.settings.campaign_timeout_s:g} s: {self._verdict(campaign)}"
                self._give_up(found if self._pursuit is None else self._pursuit.told(found))
            else:
                if now - campaign.asked_at >= self._member.settings.heartbeat_s:
                    self._ask(now, campaign)
                if campaign.forced:
                    self._weigh(now, campaign)
        elif self._handover_by is not None:
            self._await_handover(now, self._handover_by)
        elif self._pursuit is not None:
            self._pursue(now, self._pursuit)

    def halted(self, reason: str) -> None:
        """This member can no longer be the primary: a promotion in progress is refused."""
        if self.campaign is not None or self._handover_by is not None:
            self._give_up(reason)

    def connected(self, peer: str) -> None:
        """A member is connected and can be asked."""
        if self.campaign is not None and peer in self.campaign.tally.unconvinced:
            self._ask_one(peer, self.campaign)

    def primary_lost(self, now: float, role: Backup) -> None:
        """The link to the primary is gone."""
        if self._handover_by is not None:
            self._stand_alone(now, role)

    def superseded(self, now: float, primary: str, epoch: int) -> None:
        """A primary of this epoch is heard: no election is needed."""
        if self.campaign is not None:
            self._set_back(now, f"{primary} is the primary of epoch {epoch}")

    def primary_heard(self, now: float, role: Backup) -> None:
        """A new primary is heard: it may hand over."""
        if self._pursuit is not None and self._handover_by is None:
            self._stand(now, role)

    def on_transfer_reply(self, now: float, sender: str, message: TransferReply) -> None:
        """The primary refuses to hand over, or a member that was asked to be elected first refuses."""
        if self._handover_by is not None and sender == self._office.primary:
            reason = f"the primary {sender} does not hand over: {message.reason}"
            if message.later:
                self._set_back(now, reason)
            else:
                self._give_up(reason)
        campaign, pursuit = self.campaign, self._pursuit
        if campaign is not None and pursuit is not None and not message.later and pursuit.refused(sender, message.reason):
            self._seek(now, campaign, pursuit)

    def on_timeout_now(self, now: float) -> None:
        """The primary of this epoch hands over to this member. If it must not be a candidate, the primary is told so."""
        unfit = self.unfit
        if unfit:
            self._member.send(self._office.primary, TransferReply(self._member.epoch, unfit))
        if self.campaign is None and not unfit:
            self._member.heard_at = now
            self._run(now, transfer=True)

    def on_pre_vote_reply(self, now: float, sender: str, message: PreVoteReply) -> None:
        """A voter answers whether it would vote for this member."""
        campaign = self.campaign
        if campaign is not None and campaign.round is Round.PRE_VOTE and campaign.number == message.campaign:
            campaign.highest_epoch = max(campaign.highest_epoch, message.epoch)
            campaign.replies[sender] = message
            campaign.count(sender, message.granted, provisional=message.provisional, reason=message.reason)
            self._weigh(now, campaign)

    def on_vote_reply(self, now: float, sender: str, message: VoteReply) -> None:
        """A voter has voted, or refuses to vote."""
        campaign = self.campaign
        if campaign is not None and campaign.round is Round.VOTE and message.for_epoch == self._member.epoch:
            campaign.count(sender, message.granted, provisional=message.provisional, reason=message.reason)
            self._weigh(now, campaign)

    def stand_for(self, now: float, patron: str, role: Backup) -> None:
        """A member with an older log wants to be the primary. Be elected first, so that it can catch up from this
        member and take over.
        """
        member = self._member
        heard, unfit = self._office.loyalty(now), self.unfit
        if heard or unfit:
            member.send(patron, TransferReply(member.epoch, heard or unfit, later=not unfit))
        elif self._handover_by is None:
            self._patrons.add(patron)
            if self.campaign is None:
                self._run(now)

    # Ways to become the primary

    def _stand(self, now: float, role: Backup) -> None:
        """Begin a promotion: it is refused, or goes by handover, or by votes."""
        reason = self.unfit
        if role.hears(now) and (not reason or (self._pursuit is not None and self._may_mend())):
            self._handover_by = now + self._member.settings.transfer_timeout_s + self._member.settings.heartbeat_s
            self._member.send(role.primary, TransferRequest(self._member.epoch))
        elif not reason:
            self._run(now)
        elif self._pursuit is not None and self._may_mend():
            self._run(now, unfit=reason)
        else:
            self._give_up(reason)

    def _may_mend(self) -> bool:
        """Whether this member is unfit only because it must first catch up with a primary."""
        member = self._member
        return not member.halted and not member.settings.witness and member.me in member.log.members.voters

    def _pursue(self, now: float, pursuit: Pursuit) -> None:
        """Continue a promotion with `insist` between two attempts."""
        role = self._office.role
        if isinstance(role, Backup):
            if now >= pursuit.deadline:
                self._give_up(pursuit.told(pursuit.reason))
            elif now >= pursuit.retry_at:
                self._stand(now, role)

    def _seek(self, now: float, campaign: Campaign, pursuit: Pursuit) -> None:
        """This member cannot be elected before another one was: ask the best reachable member to be elected."""
        member = self._member
        replies = {voter: reply for voter, reply in campaign.replies.items() if voter in member.connected}
        if campaign.unfit:
            if any(voter in member.connected for voter in campaign.tally.silent if voter != member.me):
                return
        elif not campaign.tally.hopeless(member.connected):
            return
        best = pursuit.best_of(replies, Position(0, 0) if campaign.unfit else member.position)
        if best:
            if pursuit.may_ask(now, best):
                member.send(best, TransferRequest(member.epoch, stand=replies[best].epoch))
        elif not campaign.is_heard_of and (campaign.lost or campaign.unfit):
            self._give_up(pursuit.told(self._verdict(campaign)))

    def _await_handover(self, now: float, deadline: float) -> None:
        """Wait for the primary to hand over. It may have failed in the meantime, or never answer."""
        if not self._office.primary and isinstance(self._office.role, Backup):
            self._stand_alone(now, self._office.role)
        elif now >= deadline:
            self._give_up(
                f"the primary {self._office.primary} has not handed over within {self._member.settings.transfer_timeout_s:g} s"
            )

    def _stand_alone(self, now: float, role: Backup) -> None:
        """The primary that had to hand over has failed: campaign for votes, unless only that primary could have made
        this member fit.
        """
        self._handover_by = None
        self._stand(now, role)

    def _run(self, now: float, *, transfer: bool = False, forced: bool = False, unfit: str = "") -> None:
        """Begin a campaign."""
        member = self._member
        self._handover_by = None
        self._campaigns += 1
        timeout_s = member.settings.campaign_timeout_s
        campaign = self.campaign = Campaign(
            self._campaigns, member.log.members.voters, now, timeout_s, transfer=transfer, forced=forced, unfit=unfit
        )
        if transfer:
            self._begin_vote(now, campaign)
        else:
            if not unfit:
                self._vote_for_oneself(campaign)
            self._ask(now, campaign)
            self._weigh(now, campaign)

    def _begin_vote(self, now: float, campaign: Campaign) -> None:
        """Begin a new epoch and vote for this member (§5.2)."""
        member = self._member
        campaign.begin_vote(member.log.members.voters)
        member.save(max(member.epoch, campaign.highest_epoch) + 1, member.me)
        self._office.follow()
        self.announce()
        self._vote_for_oneself(campaign)
        self._ask(now, campaign)
        self._weigh(now, campaign)

    def _vote_for_oneself(self, campaign: Campaign) -> None:
        member = self._member
        campaign.count(member.me, True, provisional=member.blank)

    def _ask(self, now: float, campaign: Campaign) -> None:
        campaign.asked_at = now
        for voter in campaign.tally.unconvinced:
            self._ask_one(voter, campaign)

    def _ask_one(self, voter: str, campaign: Campaign) -> None:
        member = self._member
        end = member.position
        if campaign.round is Round.PRE_VOTE:
            member.send(voter, PreVote(member.epoch, campaign.number, end.index, end.epoch, member.claimed_id))
        else:
            member.send(voter, Vote(member.epoch, end.index, end.epoch, campaign.transfer, member.claimed_id))

    def _weigh(self, now: float, campaign: Campaign) -> None:
        if campaign.won(now):
            if campaign.round is Round.PRE_VOTE:
                self._begin_vote(now, campaign)
            else:
                self.begun_without = campaign.without
                self.lead(now)
        elif self._pursuit is not None and campaign.round is Round.PRE_VOTE:
            self._seek(now, campaign, self._pursuit)
        elif campaign.lost or (self._pursuit is not None and campaign.tally.hopeless(self._member.connected)):
            addresses, me = self._member.log.members.addresses, self._member.me  # a member that is being removed tries last
            self._set_back(now, self._verdict(campaign), turn=addresses.index(me) if me in addresses else len(addresses))

    def _verdict(self, campaign: Campaign) -> str:
        return campaign.verdict(self._member.me, self._member.connected, self._refusing)

    def lead(self, now: float, members: Membership | None = None) -> None:
        """Be the primary, after an election, or with other members than those in force."""
        handed_over = self.campaign is not None and self.campaign.transfer
        self.begun_for = () if handed_over else tuple(sorted(self._patrons))
        self.campaign = None
        self._patrons.clear()
        role = self._office.lead(now)
        self.announce()
        role.begin(now, members)

    # Ends

    def _give_up(self, reason: str) -> None:
        """Refuse the promotion in progress, if any."""
        self.campaign = None
        self._handover_by = None
        patrons, self._patrons = self._patrons, set()
        for patron in sorted(patrons):
            self._member.send(patron, TransferReply(self._member.epoch, reason))
        self._end_requests(False, reason)

    def _set_back(self, now: float, reason: str, turn: int = 0) -> None:
        """The attempt in progress, if any, has failed for a reason that may pass. A promotion with `insist` tries
        again, others are refused.
        """
        pursuit, refusing = self._pursuit, self._refusing
        insisting = [each for each in self._requests if each[1]]
        self._requests = [each for each in self._requests if not each[1]]
        self._give_up(reason)
        self._requests = insisting
        if insisting and pursuit is not None:
            self._pursuit, self._refusing = pursuit, refusing
            pursuit.set_back(now, reason, turn)

    def _end_requests(self, won: bool, reason: str) -> None:
        requests, self._requests = self._requests, []
        self._pursuit, self._refusing = None, {}
        for request_id, _ in requests:
            self._member.emit(PromotionEnded(request_id, won, reason))

    def enter(self, now: float, epoch: int, voted_for: str | None, reason: str) -> None:
        """Enter an epoch that another member began, or vote in the present one."""
        begun = epoch > self._member.epoch
        self._member.save(epoch, voted_for)
        if begun:
            self.retire(now, reason)
        else:
            self._set_back(now, reason)

    def retire(self, now: float, reason: str) -> None:
        """Be a backup that knows no primary. This is announced at once, because the following effects in the list are
        no longer those of a primary.
        """
        if isinstance(self._office.role, Primary):
            if self._office.role.active:
                self._member.heard_at = now
            self._office.role.end(reason)
        self._office.follow()
        self._set_back(now, reason)
        self.announce()

    def announce(self) -> None:
        """Announce the changes. A member that serves has been promoted."""
        office = self._office
        if office.announce_state() and isinstance(office.role, Primary) and office.role.active:
            without = f", begun anew without {', '.join(self.begun_without)}" if self.begun_without else ""
            self._end_requests(True, f"{self._member.me} is the primary of epoch {self._member.epoch}{without}")
        office.announce_writable()
