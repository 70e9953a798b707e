"""The common part of arbiters that give turns by a lease in an external store: a `Candidate` decides, and the store's
arbiter sends the requests.

Life: `watch` begins it. `carry_out` sends the candidate's requests, one at a time, and passes each answer or failure to
the candidate. `follow` watches changes of the turn, each time for at most _WATCH_S. `close` lets `release` release the
turn, as far as that succeeds in the time of one call.

Invariants: no call waits. The watcher is called in a separate turn of the reactor. After `close` there is no timer and
no call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, assert_never

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from resource_manager.core.arbiter import NEVER, Guarantee, Health, Published
from resource_manager.core.candidate import (
    Answer,
    Campaign,
    Candidate,
    Changed,
    Effect,
    Grant,
    Holder,
    Publish,
    Renew,
    Request,
    Resign,
    Trouble,
    WakeAt,
    Watch,
)
from resource_manager.net.web import StoreError

_WATCH_S = 60.0
"""Each watch ends after this time, so that one with an unnoticed dead connection is replaced."""


class LeasedArbiter(ABC):
    """Fulfils `resource_manager.core.arbiter.Arbiter`. `store` is the store's name in texts."""

    guarantee = Guarantee.LEASED
    log = Logger()

    def __init__(self, reactor: Any, candidate: Candidate, store: str) -> None:
        self._reactor = reactor
        self._candidate = candidate
        self._store = store
        self._on_change: Callable[[], None] = lambda: None
        self._timer: Any = None
        self._news: Any = None
        self._watch_timer: Any = None
        self._unpublished = False
        self._closed = False

    # ---- what a store's arbiter adds

    @abstractmethod
    async def carry_out(self, request: Request) -> Answer:
        """Send a request to the store. StoreError; an error because of a malformed answer (KeyError, ValueError and the
        like) counts as one. A state that could not be published is not logged if the error has no text.
        """

    @abstractmethod
    def follow(self, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Report each change of the turn after that revision. Fires with the reason when it ends; cancel it to end it."""

    @abstractmethod
    def release(self) -> Deferred[None]:
        """Release the turn, and end all connections. Fires when this is done, with any result."""

    # ---- see Arbiter

    def watch(self, on_change: Callable[[], None]) -> None:
        """Begin."""
        self._on_change = on_change
        self._do(self._candidate.start(self._now_s()))

    def health(self) -> Health:
        """The health, from the renewals of the lease."""
        return self._candidate.health

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """Campaign, and return the start of the turn."""
        self._do(self._candidate.wants(now_s))
        return NEVER if self._closed else self._candidate.acts_at(now_s)

    def rest(self) -> None:
        """Release the turn."""
        self._do(self._candidate.rest(self._now_s()))

    def hears_of(self, daemons: Collection[str]) -> None:
        """Nothing: the store decides."""
        del daemons

    def publish(self, view: Published) -> None:
        """Publish it in the store."""
        self._do(self._candidate.publish(view, self._now_s()))

    def close(self) -> Deferred[None]:
        """Release the turn."""
        self._closed = True
        for timer in (self._timer, self._news, self._watch_timer):
            if timer is not None and timer.active():
                timer.cancel()
        self._on_change = lambda: None
        return self.release()

    # ---- what is done

    def _now_s(self) -> float:
        return float(self._reactor.seconds())

    def _do(self, effects: list[Effect]) -> None:
        """Carry out these effects in order. Answers arrive in separate turns of the reactor."""
        if self._closed:
            return
        for effect in effects:
            match effect:
                case WakeAt(at_s):
                    self._wake_at(at_s)
                case Changed():
                    if self._news is None or not self._news.active():
                        self._news = self._reactor.callLater(0, self._on_change)
                case Watch(revision):
                    self._begin_watch(revision)
                case Grant() | Renew() | Campaign() | Resign() | Publish():
                    self._ask(effect)
                case _:
                    assert_never(effect)

    def _wake_at(self, at_s: float) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._reactor.callLater(
            max(at_s - self._now_s(), 0.001), lambda: self._do(self._candidate.wake(self._now_s()))
        )

    def _ask(self, request: Request) -> None:
        sent_s = self._now_s()

        def answered(answer: Answer) -> None:
            if isinstance(request, Publish):
                self._tell_unpublished("")
            self._do(self._candidate.succeeded(answer, sent_s, self._now_s()))

        def failed(failure: Failure) -> None:
            error = failure.value
            if isinstance(error, KeyError | IndexError | TypeError | AttributeError | ValueError):
                error = StoreError(
                    Trouble.AWAY, f"an answer to {type(request).__name__.lower()} that is not one of {self._store}'s"
                )
            if not isinstance(error, StoreError):
                failure.raiseException()
            if isinstance(request, Publish) and str(error):
                self._tell_unpublished(str(error))
            self._do(self._candidate.failed(error.trouble, str(error), self._now_s(), error.wait_s))

        ensureDeferred(self.carry_out(request)).addCallbacks(answered, failed).addErrback(
            lambda failure: self.log.failure("{store}: an internal error of this daemon", store=self._store, failure=failure)
        )

    def _tell_unpublished(self, wrong: str) -> None:
        """Log why the primary cannot be published, once and not for each endpoint, and the end of this."""
        if bool(wrong) == self._unpublished or self._closed:
            return
        if wrong:
            self.log.warn("the primary cannot be published in {store}: {reason}", store=self._store, reason=wrong)
        else:
            self.log.info("the primary is published in {store} again", store=self._store)
        self._unpublished = bool(wrong)

    # ---- the watch

    def _begin_watch(self, revision: int) -> None:
        def changed(holder: Holder) -> None:
            self._do(self._candidate.watched(holder, self._now_s()))

        def ended(_: object) -> None:
            if self._watch_timer.active():
                self._watch_timer.cancel()
            self._do(self._candidate.watch_ended(self._now_s()))

        watching = self.follow(revision, changed)
        self._watch_timer = self._reactor.callLater(_WATCH_S, watching.cancel)
        watching.addBoth(ended)
