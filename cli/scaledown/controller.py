"""The controller: it reads the stores, the wanted number and the brokers, lets `steps` decide, acts, and reads again.

Life: it waits until it is the controller that acts in its place, a folder or a namespace. From then on it reads the
state regularly, and soon if the place has news, but not more often than each `NEWS_S`. A failed step is tried again
after a time that doubles; if the wanted number changes, at once.

Invariant: it keeps no state that it could not read again, so it may end at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred

from cli import endings
from cli.scaledown.place import Place, Site, Tell, Unseen
from cli.scaledown.steps import decide, is_done

STALE_S = 120.0
"""If the last complete reading is older than this, the controller counts as not alive."""
NEWS_S = 0.2
"""The shortest time between two readings: every pod of a namespace is news, and each reading asks all wanted brokers."""
_ONCE_S = 0.1


@dataclass
class Controller:
    """See the module. `once`: run until nothing more can be done now."""

    reactor: Any
    place: Place
    tell: Tell
    parallel: int = 1
    poll_s: float = 5.0
    once: bool = False
    _began_s: float = 0.0
    _wanted: dict[str, range] = field(default_factory=dict)
    _told: str = ""
    """Why it waits or cannot read the state, as last reported."""
    _pausing: Any = None
    """The call that ends the pause; None while it reads or acts."""
    _news: bool = False
    closed: bool = False
    """Whether it ends."""

    def __post_init__(self) -> None:
        self._began_s = self.reactor.seconds()
        self.place.on_news = self._has_news

    @property
    def alive(self) -> bool:
        """Whether the whole state was read lately."""
        seen_s = self._began_s if self.place.seen_s is None else self.place.seen_s
        return bool(self.reactor.seconds() - seen_s < STALE_S)

    async def run(self) -> bool:
        """Read and act repeatedly; with `once` until nothing more can be done now. Returns whether everything is done."""
        self.place.start()
        while not self.closed:
            sites = await self._look()
            await self._act(sites)
            if self.once and not self.place.is_at_work:
                return all(is_done(site.wanted, site.stores) for site in sites)
            await self._pause()
        return False

    async def _act(self, sites: list[Site]) -> None:
        for site in sites:
            for step, ordinal in decide(site.wanted, site.stores, self.parallel):
                if not self.closed:
                    await self.place.do(step, site.name, ordinal)

    def close(self) -> Any:
        """End the processes that end with it, and release the place for another controller. May return a Deferred."""
        self.closed = True
        if self._pausing is not None and self._pausing.active():
            self._pausing.reset(0.0)
        return self.place.close()

    async def _look(self) -> list[Site]:
        """The whole state; empty if it cannot be read, or another controller acts. With `once`, these are refusals."""
        try:
            if why := await self.place.take():
                if self.once:
                    raise endings.Refused(why)
                self._say("waiting", why)
                return []
            sites = await self.place.look()
        except Unseen as error:
            if self.once:
                raise endings.Refused(str(error)) from None
            self._say("unseen", str(error))
            self._wanted.clear()  # drains in progress continue
            return []
        self._told = ""
        for site in sites:
            if site.wanted is not None and site.wanted != self._wanted.get(site.name):
                self._wanted[site.name] = site.wanted
                named = {"set": site.name} if site.name else {}
                first = {"first": site.wanted.start} if site.wanted.start else {}
                stores = sorted(store.ordinal for store in site.stores)
                self.tell("wanted", named | {"replicas": len(site.wanted)} | first | {"stores": stores})
                self.place.changed(site.name)
        return sites

    def _say(self, event: str, why: str) -> None:
        if why != self._told:
            self._told = why
            self.tell(event, {"why": why})

    def _pause(self) -> Deferred[None]:
        """Wait until the next reading is due, or there is news."""
        done: Deferred[None] = Deferred()
        delay_s = NEWS_S if self._news else _ONCE_S if self.once else self.poll_s
        timer = self._pausing = self.reactor.callLater(0.0 if self.closed else delay_s, done.callback, None)
        self._news = False

        def ended(result: Any) -> Any:
            self._pausing = None
            if timer.active():
                timer.cancel()
            return result

        return done.addBoth(ended)

    def _has_news(self) -> None:
        if self._pausing is None:
            self._news = True
        elif self._pausing.active() and self._pausing.getTime() - self.reactor.seconds() > NEWS_S:
            self._pausing.reset(NEWS_S)
