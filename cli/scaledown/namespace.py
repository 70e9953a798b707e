"""The stores of the StatefulSets in a namespace of Kubernetes that have the label for it.

Life: sets, claims and pods are listed and watched (`Mirror`) from the start. The controller with the Lease acts; it
renews the Lease at each reading. A reading finds the claims of each set, and carries out what `claims.upkeep` says
about each claim. Then it asks the wanted brokers that run whether they leave. A drain is a pod (`drainer`), and its end
is seen in the pod's status. A cancellation is a process of qpid-drain, which ends with this process.

Invariants: the listed objects may be out of date, so the set is read again before a drainer is created and before a
claim is deleted. A second acting controller does no harm: see `claims`. No call is repeated here; the next reading
repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, gatherResults, succeed
from twisted.internet.task import deferLater

from broker.core import urls
from cli.options import Target
from cli.scaledown import claims, drainer
from cli.scaledown.claims import Brokers, Claim, Write
from cli.scaledown.place import Answer, Site, Tell, Tries, Unseen, Work, address_of, which_leave
from cli.scaledown.steps import Do, Store
from resource_manager.net.kubernetes import CLAIM, CONFLICT, NOT_FOUND, POD, STATEFUL_SET, KubernetesClient, Thing
from resource_manager.net.lease import Lease
from resource_manager.net.mirror import NEVER, Mirror, Times
from resource_manager.net.web import StoreError

LEASE_NAME = "qpid-scaledown"
LEASE_S = 15
"""After a renewal, no other controller acts for this time."""
STALE_S = 120.0
"""If the last list is older than this, no step follows from it."""

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class Settings:
    """`brokers`, as for `address_of`, and `to` are "" and () if each set defines them; `words` are passed to each
    qpid-drain. What follows from the targets that sets name in their annotations: `target_of` gives the broker at an
    address, beside the targets of all sets; `of_step` gives more words of a drain or of a cancellation, by the targets
    of its set and those of the others.
    """

    namespace: str
    brokers: str
    to: tuple[str, ...]
    delete_released: bool
    target_of: Callable[[str, Sequence[str]], Target]
    words: tuple[str, ...] = ()
    times: Times = field(default_factory=Times)
    of_step: Callable[[Sequence[str], Sequence[str]], Mapping[Do, tuple[str, ...]]] = lambda to, others: {}


@dataclass(slots=True)
class _Known:
    """What is remembered of a claim: when to try again, whose failure was counted, what was reported of its drainer and
    of its broker, and the running process.
    """

    tries: Tries
    counted: str = ""
    made: str = ""
    told: str = ""
    denied: str = ""
    work: Work | None = None


class Namespace:
    """Fulfils `place.Place`."""

    def __init__(
        self, reactor: Any, client: KubernetesClient, lease: Lease, settings: Settings, tell: Tell, *, once: bool
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._lease = lease
        self._settings = settings
        self._tell = tell
        self._once = once
        self.what = f"namespace {settings.namespace}"
        self.on_news: Callable[[], None] = lambda: None

        def mirror(kind: str, keep: Callable[[Thing], Thing], **query: str) -> Mirror:
            return Mirror(reactor, client, kind, keep, self._has_news, settings.times, **query)

        self._sets = mirror(STATEFUL_SET, lambda thing: thing, labelSelector=f"{claims.SELECTED}=yes")
        self._claims = mirror(CLAIM, _brief)
        self._pods = mirror(POD, _brief)
        self._mirrors = (self._sets, self._claims, self._pods)
        self._known: dict[str, _Known] = {}
        self._seen: dict[str, tuple[Brokers, dict[int, Claim]]] = {}
        self._unfit: dict[str, str] = {}
        self._may = False
        """Whether a write of the Lease has succeeded."""
        self._acts_until_s = 0.0
        self._busy = False

    def _has_news(self) -> None:
        self.on_news()

    @property
    def seen_s(self) -> float | None:
        """The time of the oldest of the last successful lists."""
        listed = [mirror.listed_s for mirror in self._mirrors]
        return None if None in listed else min(each for each in listed if each is not None)

    @property
    def is_at_work(self) -> bool:
        """Whether a drain or process runs, or was started in the last reading."""
        return self._busy or any(known.work for known in self._known.values())

    def start(self) -> None:
        """Begin to list and watch."""
        for mirror in self._mirrors:
            mirror.start()

    def close(self) -> Deferred[Any]:
        """End the processes, and release the Lease. Drainer pods continue."""
        for known in self._known.values():
            if known.work is not None:
                known.work.kill()
        stopped = gatherResults([mirror.stop() for mirror in self._mirrors])
        given: Deferred[Any] = ensureDeferred(self._lease.give_up()) if self._acts_until_s else succeed(None)
        return given.addErrback(lambda _: None).addCallback(lambda _: self._client.close()).addCallback(lambda _: stopped)

    # ---- what is seen

    async def take(self) -> str:
        """Take or renew the Lease."""
        now_s = self._reactor.seconds()
        try:
            if self._lease.is_ours:
                await self._lease.renew()
            else:
                await self._lease.mark() if not self._may else await self._lease.read()
                self._may = True
                await self._lease.take()
        except StoreError as error:
            if error.status == NOT_FOUND:  # the Lease was deleted: it is created again
                self._may = False
            if now_s < self._acts_until_s:
                return ""
            raise Unseen(str(error)) from None
        except _MALFORMED:
            raise Unseen("a Lease that is not one of Kubernetes'") from None
        if not self._lease.is_ours:
            self._acts_until_s = 0.0
            return f"another controller acts on {self.what}: {self._lease.holder}"
        self._acts_until_s = now_s + LEASE_S
        return ""

    async def look(self) -> list[Site]:
        """Read the sets, and the claims of each. What an unfit set wants is not known."""
        try:
            return await self._look()
        except _MALFORMED as error:
            raise Unseen(f"objects that are not as Kubernetes makes them: {error!r}") from None

    async def _look(self) -> list[Site]:
        await self._listed()
        now_s = self._reactor.seconds()
        for mirror in self._mirrors:
            if mirror.listed_s is None or now_s - mirror.listed_s >= STALE_S:
                raise Unseen(mirror.why)
        self._seen.clear()
        self._busy = False
        unfit = list[Site]()
        pods = list(self._pods.things.values())
        for thing in list(self._sets.things.values()):
            brokers = claims.brokers_of(thing)
            if self._is_fit(brokers):
                found = claims.claims_of(brokers, self._claims.things.values(), pods)
                self._seen[brokers.name] = brokers, {claim.ordinal: claim for claim in found}
            else:
                unfit.append(Site(brokers.name, None, ()))
        self._forget()
        for brokers, found_claims in list(self._seen.values()):
            for claim in found_claims.values():
                self._note(claim)
                write = claims.upkeep(brokers, claim, deletes=self._settings.delete_released)
                if write is not None and not self._known[claim.name].tries.waits(now_s):
                    await self._write(brokers, claim.name, write)
        sites = [await self._site(brokers, found_claims) for brokers, found_claims in list(self._seen.values())]
        self._busy = self._busy or any(store.work for site in sites for store in site.stores)
        return sites + unfit

    async def _listed(self) -> None:
        """With `once`: wait until everything was listed, or cannot be listed."""
        while self._once and any(mirror.listed_s is None and mirror.why == NEVER for mirror in self._mirrors):
            await deferLater(self._reactor, 0.02, lambda: None)

    def _is_fit(self, brokers: Brokers) -> bool:
        if brokers.unfit != self._unfit.get(brokers.name, ""):
            self._unfit[brokers.name] = brokers.unfit
            if brokers.unfit:
                self._tell("unfit", self._facts("set", brokers.name) | {"why": brokers.unfit})
        return not brokers.unfit

    def _forget(self) -> None:
        there = {claim.name for _, found in self._seen.values() for claim in found.values()}
        for name in [name for name, known in self._known.items() if name not in there and known.work is None]:
            del self._known[name]
        for name in there - self._known.keys():
            self._known[name] = _Known(Tries(self._once))

    def _note(self, claim: Claim) -> None:
        """Report the result of its drainer, and count a failure once."""
        known, pod = self._known[claim.name], claim.drainer
        if pod is None or pod.going:
            return
        if pod.status is None:
            if pod.why != known.told:
                known.told = pod.why
                if pod.why:
                    self._tell("pending", self._facts("store", claim.name) | {"pod": pod.name, "why": pod.why})
        elif pod.uid != known.counted:
            known.counted, known.told = pod.uid, ""
            if pod.status or pod.says.get("empty") is not True:
                why = {"why": pod.why} if pod.why else {what: pod.says[what] for what in ("moved", "left") if what in pod.says}
                self._tell("failed", self._facts("store", claim.name) | {"pod": pod.name, "status": pod.status} | why)
                if pod.uid == known.made or not self._once:
                    known.tries.failed(self._reactor.seconds())
            else:
                known.tries.anew()

    async def _site(self, brokers: Brokers, found: dict[int, Claim]) -> Site:
        ordinals = sorted(found)
        asked = [ordinal for ordinal in ordinals if self._may_leave(brokers, found[ordinal])]
        addresses = [self._address(brokers, ordinal) for ordinal in asked]
        said = [target for each, _ in self._seen.values() for target in self._said(each)]
        answers = await which_leave(self._reactor, lambda address: self._settings.target_of(address, said), addresses)
        leave = dict(zip(asked, answers, strict=True))
        stores = [self._store(brokers, found[ordinal], leave.get(ordinal, Answer())) for ordinal in ordinals]
        return Site(brokers.name, brokers.wanted, tuple(stores))

    def _may_leave(self, brokers: Brokers, claim: Claim) -> bool:
        """Whether its broker is to be asked if it leaves, so that its drain can be cancelled."""
        at_work = self._known[claim.name].work is not None
        return claim.ordinal in brokers.wanted and bool(claim.broker) and not at_work and claims.may_call_off(claim)

    def _store(self, brokers: Brokers, claim: Claim, answer: Answer) -> Store:
        known = self._known[claim.name]
        if answer.denied and answer.denied != known.denied:
            self._tell("denied", self._facts("store", claim.name) | {"why": answer.denied})
        known.denied = answer.denied
        waits, at_work = known.tries.waits(self._reactor.seconds()), known.work.step if known.work else None
        return claims.store(brokers, claim, leaves=answer.leaves, denies=bool(answer.denied), at_work=at_work, waits=waits)

    def _said(self, brokers: Brokers) -> list[str]:
        """The targets that only this set's annotation names."""
        return [] if self._settings.to else drainer.annotated(brokers)

    def _address(self, brokers: Brokers, ordinal: int) -> str:
        given = self._settings.brokers
        if not given:
            return drainer.address(brokers, self._settings.namespace, ordinal)
        return address_of(given, ordinal, set=brokers.name, namespace=self._settings.namespace)

    # ---- what is done

    def changed(self, site: str) -> None:
        """The wanted number of this set has changed."""
        for claim in self._seen[site][1].values():
            self._known[claim.name].tries.anew()

    async def do(self, step: Do, site: str, ordinal: int) -> None:
        """Create or delete a pod, or start a process of qpid-drain."""
        brokers, found = self._seen[site]
        claim = found[ordinal]
        if step is Do.CALL_OFF:
            now = await self._call(claim.name, "get", CLAIM, claim.name, None)
            if now is not None and any(map(claims.may_call_off, claims.claims_of(brokers, [now], ()))):
                self._tell(step.value, self._facts("store", claim.name))
                self._call_off(claim, self._address(brokers, ordinal), self._words(Do.CALL_OFF, brokers))
        elif step is Do.STOP or claim.drainer is not None:  # a drainer pod that has ended has the name that the next one needs
            write = claims.room(claim)
            if write is not None:
                if step is Do.STOP:
                    self._tell(step.value, self._facts("store", claim.name))
                await self._write(brokers, claim.name, write)
        elif self._unchanged(brokers, await self._read(brokers)):
            await self._drain(brokers, claim)

    async def _drain(self, brokers: Brokers, claim: Claim) -> None:
        try:
            user = urls.parse(self._address(brokers, brokers.wanted.start)).user
            to = drainer.places(brokers, self._settings.namespace, self._settings.to, user)
            pod = drainer.pod(brokers, claim, to, self._words(Do.DRAIN, brokers))
        except (drainer.Unfit, urls.BadUrl) as error:
            self._failed(claim.name, str(error))
            return
        made = await self._call(claim.name, "create", POD, "", pod)
        if made is not None:
            self._known[claim.name].made = str(made["metadata"]["uid"])
            self._tell(Do.DRAIN.value, self._facts("store", claim.name) | {"pod": pod["metadata"]["name"], "to": to})

    def _call_off(self, claim: Claim, address: str, words: list[str]) -> None:
        known = self._known[claim.name]

        def ended(status: int, why: str) -> None:
            work, known.work = known.work, None
            if work is not None and not work.killed:
                facts = self._facts("store", claim.name) | {"status": status} | ({"why": why} if why else {})
                self._tell("failed" if status else "done", facts)
            if status:
                known.tries.failed(self._reactor.seconds())
            self.on_news()

        known.work = Work(Do.CALL_OFF, self._facts("store", claim.name), self._tell, ended)
        known.work.start(self._reactor, ["--from", address, "--cancel", "--format", "json", *words])

    def _words(self, step: Do, brokers: Brokers) -> list[str]:
        others = [target for each, _ in self._seen.values() if each.name != brokers.name for target in self._said(each)]
        return [*self._settings.words, *self._settings.of_step(self._said(brokers), others).get(step, ())]

    async def _write(self, brokers: Brokers, claim: str, write: Write) -> None:
        if write.verb == "delete" and write.kind == CLAIM and not self._unchanged(brokers, await self._read(brokers)):
            return
        if await self._call(claim, write.verb, write.kind, write.name, write.body) is not None and write.event:
            self._tell(write.event, self._facts("store", claim))

    async def _read(self, brokers: Brokers) -> Thing | None:
        """The set as it is now."""
        return await self._call("", "get", STATEFUL_SET, brokers.name, None)

    @staticmethod
    def _unchanged(brokers: Brokers, thing: Thing | None) -> bool:
        return thing is not None and claims.brokers_of(thing).moment == brokers.moment

    async def _call(self, claim: str, verb: str, kind: str, name: str, body: Thing | None) -> Thing | None:
        """The answer; None without one. A conflict, or a missing object, means that the state was out of date."""
        self._busy = True
        try:
            return await self._client.call(verb, kind, name, body)
        except StoreError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                self._failed(claim, str(error))
        except _MALFORMED:
            self._failed(claim, f"an answer to {verb} that is not one of Kubernetes'")
        return None

    def _failed(self, claim: str, why: str) -> None:
        self._tell("failed", (self._facts("store", claim) if claim else {"namespace": self._settings.namespace}) | {"why": why})
        if claim:
            self._known[claim].tries.failed(self._reactor.seconds())

    def _facts(self, what: str, name: str) -> dict[str, Any]:
        return {what: name, "namespace": self._settings.namespace}


def _brief(thing: Thing) -> Thing:
    """The part of an object that is kept. There may be thousands of objects."""
    spec, metadata = thing.get("spec") or {}, thing["metadata"]
    fields = ("name", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")
    kept = {name: metadata[name] for name in fields if name in metadata}
    volumes = [each for each in spec.get("volumes") or () if "persistentVolumeClaim" in each]
    status = thing.get("status") or {}
    ours = claims.DRAINS in (metadata.get("labels") or {})
    return {"metadata": kept, "spec": {"volumes": volumes}, "status": status if ours else {"phase": status.get("phase")}}
