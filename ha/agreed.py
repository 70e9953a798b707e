"""The settings of the cluster (ha.core.cluster_settings) at one broker: requests, answers, and planned switchovers.

Life of a request: the primary checks it, proposes a record, and answers when the record is committed. If its term ends before
that, the answer says so. The primary at the planned time carries out a planned switchover: it first takes the plan out of the
log, so that it happens at most once, and then hands over. A plan that no primary could carry out for `LATE_S` is dropped,
with a line in the process log. So is a plan that is replaced or cancelled while its removal waits for the disk. While another
plan, or its end, waits to be committed, the primary removes none: the removal would come behind it in the log.

Invariant: this broker reports only settings that are committed and applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.core.commands import Setting
from broker.service import Broker
from ha.core import cluster_settings as settings
from ha.core.cluster_settings import BadSetting, Tags
from ha.core.membership import Membership

_log = Logger(namespace="ha")
Answer = tuple[int, str, dict[str, Any]]
LATE_S = 60.0
"""A planned switchover is dropped if no primary could start it within this time."""


class Agreed:
    """See the module. `members` gives the members in force, `primary` the primary's address or "", `wall` seconds since 1970.
    `hand_over` begins a switchover to the member of an address, or to the best one for ""."""

    def __init__(
        self,
        broker: Broker,
        members: Callable[[], Membership],
        primary: Callable[[], str],
        wall: Callable[[], float],
        hand_over: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._members = members
        self._primary = primary
        self._wall = wall
        self._hand_over = hand_over
        self._waiting: list[Deferred[Answer]] = []
        self._plans = 0
        """How many requests for a planned switchover, or for its end, were taken."""

    def told(self) -> dict[str, dict[str, Any]]:
        """The settings by key."""
        return {key: dict(each.value) for key, each in self._broker.lead.state.definitions.settings.items()}

    def tags(self, address: str) -> Tags:
        """The tags of a member."""
        found = self._broker.lead.state.definitions.settings.get(settings.TAGS + address)
        return Tags.of(None if found is None else found.value)

    def objection(self, manager: str, hears: str, *, insists: bool = False) -> str:
        """Why this kind of cluster manager must not promote this broker; "" if it may. `hears` is the primary that this
        broker hears, "" for none. `insists`: the request insists on this broker."""
        terms = self._broker.lead.state.definitions.terms
        return settings.objection(manager, self.told(), terms, hears, self._wall(), insists=insists)

    def ask(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        """Answer SET."""
        try:
            key, value = settings.checked(body, self._wall())
        except BadSetting as error:
            return succeed((400, str(error), {}))
        obstacle = self._obstacle(key, value)
        if obstacle:
            return succeed((409, obstacle, {}))
        answered: Deferred[Answer] = Deferred()
        self._waiting.append(answered)
        self._plans += key == settings.SWITCHOVER

        def committed(reason: str) -> None:
            if answered in self._waiting:
                self._waiting.remove(answered)
                unset = not value and bool(reason)  # the setting was already unset, as requested
                answered.callback((200, "done", {"setting": key, "value": value}) if unset or not reason else (409, reason, {}))

        self._broker.lead.change(Setting(key=key, value=value), committed)
        return answered

    def _obstacle(self, key: str, value: Mapping[str, Any]) -> str:
        members = self._members().addresses
        if self._broker.state != "active":
            where = f": ask the primary, {self._primary()}" if self._primary() else ""
            return f"this broker is {self._broker.state}, and only the primary can change settings of the cluster{where}"
        if lacks := self._broker.nodes.lacks(self._broker.lead.name, Setting.SINCE):
            return f"a setting {lacks}"
        candidate, voters = value.get("candidate", ""), self._members().voters
        if (
            key == settings.SWITCHOVER
            and candidate in members
            and (candidate not in voters or candidate == self._members().witness)
        ):
            return f"{candidate} cannot take over: it has no vote, or it is the witness, which stores no messages"
        named = key.removeprefix(settings.TAGS) if key.startswith(settings.TAGS) and value else value.get("candidate", "")
        if named and named not in members:
            return f"{named} is not a member; the members are: {', '.join(members)}"
        return ""

    def state_changed(self, state: str) -> None:
        """The state of this broker has changed."""
        if state != "active":
            waiting, self._waiting = self._waiting, []
            for answered in waiting:
                answered.callback((503, "this broker is no longer the primary: query the settings at the next primary", {}))

    @property
    def _changes_the_plan(self) -> bool:
        """Whether another plan, the end of the plan, or its removal waits to be committed."""
        under_way = self._broker.lead.pending.under_way()
        return any(isinstance(each, Setting) and each.key == settings.SWITCHOVER for each in under_way)

    def tick(self) -> None:
        """Time has passed: carry out a planned switchover if it is due."""
        plan = self._broker.lead.state.definitions.settings.get(settings.SWITCHOVER)
        if plan is None or self._broker.state != "active":
            return
        at, candidate = str(plan.value.get("at")), str(plan.value.get("candidate") or "")
        try:
            moment = settings.moment(at)
        except BadSetting:
            moment = self._wall() - LATE_S
        if self._wall() < moment or self._changes_the_plan:
            return
        plans = self._plans

        def taken_out(reason: str) -> None:
            if reason or self._plans != plans:
                return
            if self._wall() - moment >= LATE_S:
                _log.warn("the switchover planned for {at} is dropped: it could not be started at that time", at=at)
            else:
                _log.info("the switchover planned for {at} begins", at=at)
                self._hand_over(candidate)

        self._broker.lead.change(Setting(key=settings.SWITCHOVER), taken_out)
