"""A copy of all objects of one kind in a namespace of Kubernetes, kept up to date.

Life of a `Mirror`: `start` lists the objects, then watches their changes from that list's resource version on. The
server is asked to end the watch after `watch_s`; then the next watch begins at the version of the last event or
bookmark. Any other end of a watch leads to a new list: 410, an unreadable event, an end before any event, silence for
`silence_s`, or a refusal. While lists fail, the pause before the next one doubles. In any case everything is listed
again every `relist_s`, so that a watch that silently reports nothing is not trusted for longer. `stop` ends it.

Invariant: `things` has the result of one list and the changes that its watch has reported since. It may be out of date,
so each write that depends on it names the version that was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, fail, succeed
from twisted.internet.task import deferLater

from resource_manager.net.kubernetes import BOOKMARK, DELETED, KubernetesClient, Thing
from resource_manager.net.web import ENDED, StoreError

NEVER = "it was not listed yet"
FIRST_S, MOST_S = 0.5, 10.0
"""The first and the longest pause after a failed list."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times in seconds: see the module."""

    relist_s: float = 60.0
    watch_s: int = 30
    silence_s: float = 45.0


class Mirror:
    """See the module. `keep` returns the part of an object to keep; `on_change` is called after each change. `query`
    selects objects.
    """

    def __init__(
        self,
        reactor: Any,
        client: KubernetesClient,
        kind: str,
        keep: Callable[[Thing], Thing],
        on_change: Callable[[], None],
        times: Times,
        **query: str,
    ) -> None:
        self._reactor = reactor
        self._client = client
        self.kind = kind
        self._keep = keep
        self._on_change = on_change
        self._times = times
        self._query = query
        self.things: dict[str, Thing] = {}
        """The objects by name."""
        self.listed_s: float | None = None
        """The time of the last successful list."""
        self.why = NEVER
        """Why the copy may be out of date; "" if the last list succeeded."""
        self.lists = 0
        self._version = ""
        self._watching: Deferred[str] | None = None
        self._heard: Callable[[], None] = lambda: None
        self._running: Deferred[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin."""
        self._running = ensureDeferred(self._run())
        self._running.addErrback(lambda failure: failure.trap(CancelledError))

    def stop(self) -> Deferred[None]:
        """End. Fires when it has ended: after that there are no requests and no timer."""
        self._stopped = True
        if self._running is None:
            return succeed(None)
        self._running.cancel()
        if self._watching is not None:
            self._watching.cancel()
        return self._running

    async def _run(self) -> None:
        pause_s = FIRST_S
        while True:
            try:
                await self._list()
            except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
                self.why = str(error) if isinstance(error, StoreError) else "a list that is not one of Kubernetes'"
                self._on_change()
                await self._pause(max(pause_s, getattr(error, "wait_s", 0.0)))
                pause_s = min(2 * pause_s, MOST_S)
                continue
            pause_s = FIRST_S
            until_s = self._now_s() + self._times.relist_s
            while self._now_s() < until_s and await self._watch(until_s):
                await self._pause(FIRST_S / 5)
            await self._pause(FIRST_S)

    async def _list(self) -> None:
        found, self._version = await self._client.list_all(self.kind, **self._query)
        self.things = {str(thing["metadata"]["name"]): self._keep(thing) for thing in found}
        self.listed_s, self.why = self._now_s(), ""
        self.lists += 1
        self._on_change()

    async def _watch(self, until_s: float) -> bool:
        """Watch until the watch ends, is silent for too long, or a new list is due. Returns whether the server has
        reported anything and ended the watch in order.
        """
        told = 0
        query = {"resourceVersion": self._version, "timeoutSeconds": str(self._times.watch_s), **self._query}
        watching = self._watching = self._client.watch(self.kind, self._sees, **query)
        relist = self._reactor.callLater(max(until_s - self._now_s(), 0.0), watching.cancel)
        silence = self._reactor.callLater(self._times.silence_s, watching.cancel)

        def heard() -> None:
            nonlocal told
            told += 1
            if silence.active():
                silence.reset(self._times.silence_s)

        self._heard = heard
        try:
            return await watching == ENDED and told > 0
        finally:
            self._watching = None
            for timer in (relist, silence):
                if timer.active():
                    timer.cancel()

    def _sees(self, thing: Thing, what: str) -> None:
        self._heard()
        self._version = str(thing["metadata"]["resourceVersion"])
        if what == BOOKMARK:
            return
        name = str(thing["metadata"]["name"])
        if what == DELETED:
            self.things.pop(name, None)
        else:
            self.things[name] = self._keep(thing)
        self._on_change()

    def _pause(self, delay_s: float) -> Deferred[None]:
        if self._stopped:  # the client reports a cancelled request as a refusal, and a cancelled watch as a reason
            return fail(CancelledError())
        return deferLater(self._reactor, delay_s, lambda: None)

    def _now_s(self) -> float:
        return float(self._reactor.seconds())
