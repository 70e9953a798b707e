"""What is seen of claims of StatefulSets, what is written to them, and that none goes that has a message, whoever dies when."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cli.scaledown import claims, drainer
from cli.scaledown.claims import Brokers, Claim, Drainer, brokers_of, claims_of
from cli.scaledown.steps import Do, decide
from tests.cli.scaledown_world import NAME, World, a_claim, a_pod, a_set
from tests.resource_manager.api_server import Thing, _validate

GIVEN = {"uid": "u", "resourceVersion": "7"}


def seen(thing: Thing, **metadata: Any) -> Thing:
    """An object as the server gives it."""
    return thing | {"metadata": thing["metadata"] | GIVEN | metadata}


def brokers(replicas: int = 2, generation: int = 1, **spec: Any) -> Brokers:
    thing = seen(a_set(replicas, **spec), generation=generation)
    return brokers_of(thing | {"status": {"replicas": replicas, "observedGeneration": generation}})


def the_claim(ordinal: int = 2, *pods: Thing, mark: str = "", **metadata: Any) -> Claim:
    notes = {"annotations": {claims.MARK: mark}} if mark else {}
    [found] = claims_of(brokers(), [seen(a_claim(ordinal), **notes, **metadata)], pods)
    return found


def drains(**status: Any) -> Thing:
    """The drainer of the claim with ordinal 2."""
    pod = seen(drainer.pod(brokers(), the_claim(), ["queues-0:5672"], ()))
    return pod | {"status": status} if status else pod


def ended(code: int, message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": message}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}


EMPTY = ended(0, json.dumps({"event": "end", "drain": "d", "empty": True, "queues": 1, "messages": 300, "bytes": 4096}))


# ---- what is seen


@pytest.mark.parametrize(
    "spec,wanted",
    [
        ({}, range(2)),
        ({"replicas": 0}, range(0)),
        ({"replicas": None}, range(1)),
        ({"ordinals": {"start": 5}}, range(5, 7)),
    ],
)
def test_the_wanted_ordinals_are_those_of_the_replicas_from_where_the_set_says(spec: Thing, wanted: range) -> None:
    assert brokers(**spec).wanted == wanted


def test_a_set_that_is_being_deleted_wants_nobody_so_nothing_is_drained() -> None:
    thing = seen(a_set(2), deletionTimestamp="now")
    assert not brokers_of(thing).wanted


@pytest.mark.parametrize(
    "spec,why",
    [
        ({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}, "set whenScaled to Retain"),
        ({"volumeClaimTemplates": []}, "it has 0 volumeClaimTemplates"),
        ({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}, ""),
    ],
)
def test_a_set_whose_stores_cannot_be_kept_or_told_is_left_alone(spec: Thing, why: str) -> None:
    assert why in brokers(**spec).unfit
    assert bool(why) == bool(brokers(**spec).unfit)


def test_claims_are_told_by_the_template_the_set_and_an_ordinal_with_gaps() -> None:
    names = ["store-queues-0", "store-queues-07", "store-queues-9", "other-queues-1", "store-queues-x", "store-queues-2-1"]
    things = [seen(a_claim(0), name=name) for name in names]
    assert [claim.ordinal for claim in claims_of(brokers(), things, ())] == [0, 9]


def test_a_claim_is_taken_while_its_broker_or_any_other_pod_has_it_and_not_by_its_drainer() -> None:
    gone = seen(a_pod(2), name="debug") | {"status": {"phase": "Succeeded"}}
    assert the_claim(2, seen(a_pod(2))).taken
    assert the_claim(2, seen(a_pod(2), name="debug")).taken
    assert the_claim(2, seen(a_pod(2)) | {"status": {"phase": "Failed"}}).taken, "its set will start it again, or delete it"
    assert not the_claim(2, gone, seen(a_pod(1)), drains()).taken
    assert the_claim(2, drains()).drainer is not None


def test_the_last_event_of_a_drainer_is_its_termination_message() -> None:
    found = the_claim(2, drains(**EMPTY)).drainer
    assert found is not None
    assert (found.status, found.says["messages"], found.why) == (0, 300, "")
    found = the_claim(2, drains(**ended(1, "Traceback\nqpid-drain: the store in /d is in use"))).drainer
    assert found is not None
    assert (found.status, found.says, found.why) == (1, {}, "qpid-drain: the store in /d is in use")
    found = the_claim(2, drains(phase="Failed", reason="Evicted")).drainer
    assert found is not None
    assert (found.status, found.why) == (-1, "Evicted")


@pytest.mark.parametrize(
    "status,why",
    [
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, ""),
        (
            {"phase": "Pending", "conditions": [{"status": "False", "message": "0/3 nodes are available"}]},
            "0/3 nodes are available",
        ),
        ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
    ],
)
def test_why_a_drainer_does_not_start_is_seen(status: Thing, why: str) -> None:
    found = the_claim(2, drains(**status)).drainer
    assert found is not None
    assert (found.status, found.why) == (None, why)


# ---- what is done


def store(claim: Claim, of: Brokers | None = None, **told: Any) -> Any:
    return claims.store(of or brokers(), claim, **told)


@pytest.mark.parametrize(
    "claim,steps",
    [
        pytest.param(the_claim(2), [(Do.DRAIN, 2)], id="an orphan is drained"),
        pytest.param(the_claim(1), [], id="a broker that is wanted and down is being restarted or upgraded"),
        pytest.param(the_claim(2, seen(a_pod(2))), [], id="not before its pod is gone"),
        pytest.param(the_claim(2, drains()), [], id="once"),
        pytest.param(the_claim(2, drains(**EMPTY)), [], id="what its drainer has emptied is to be marked"),
        pytest.param(the_claim(2, drains(**ended(0, ""))), [(Do.DRAIN, 2)], id="an exit status alone is not believed"),
        pytest.param(the_claim(2, drains(**ended(75, "{}"))), [(Do.DRAIN, 2)], id="what was not done in time goes on"),
        pytest.param(the_claim(2, mark=json.dumps({"moment": "u 1"})), [], id="what was released is left"),
        pytest.param(the_claim(2, mark=json.dumps({"moment": "u 0"})), [(Do.DRAIN, 2)], id="unless others were wanted since"),
        pytest.param(the_claim(2, mark="what"), [(Do.DRAIN, 2)], id="or the mark is none of ours"),
        pytest.param(the_claim(2, deletionTimestamp="now"), [], id="what is being deleted gets no pod"),
    ],
)
def test_what_is_seen_of_a_claim_decides_what_is_done(claim: Claim, steps: list[tuple[Do, int]]) -> None:
    assert decide(brokers().wanted, [store(claim)], 1) == steps


def test_nothing_begins_before_the_sets_controller_has_seen_what_is_wanted() -> None:
    assert store(the_claim(2), replace(brokers(), settled=False)).waits


def test_a_scale_up_in_the_middle_ends_the_drainer_and_it_counts_until_it_is_gone() -> None:
    up = brokers(3)
    assert decide(up.wanted, [store(the_claim(2, drains()), up)], 1) == [(Do.STOP, 2)]
    going = drains()
    going["metadata"]["deletionTimestamp"] = "now"
    assert decide(range(2), [store(the_claim(2, going)), store(the_claim(3))], 1) == []
    assert decide(up.wanted, [store(the_claim(2, seen(a_pod(2))), up, leaves=True)], 1) == [(Do.CALL_OFF, 2)]


# ---- what is written


def upkeep(claim: Claim, replicas: int = 2, *, deletes: bool = True) -> Any:
    return claims.upkeep(brokers(replicas), claim, deletes=deletes)


def test_an_emptied_claim_is_marked_with_counts_by_its_version() -> None:
    write = upkeep(the_claim(2, drains(**EMPTY)))
    metadata = write.body["metadata"]
    assert (write.verb, write.kind, write.event) == ("patch", "PersistentVolumeClaim", "released")
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u", "7")
    mark = json.loads(metadata["annotations"][claims.MARK])
    assert mark == {"drain": "d", "moment": "u 1", "queues": 1, "messages": 300, "bytes": 4096}


def test_what_a_drainer_found_before_others_were_wanted_is_no_mark() -> None:
    claim = the_claim(2, drains(**EMPTY))
    later = brokers(generation=2)
    assert claims.upkeep(later, claim, deletes=True) is None
    assert decide(later.wanted, [store(claim, later)], 1) == [(Do.DRAIN, 2)], "another one looks"


MARKED = json.dumps({"moment": "u 1"})


def test_a_marked_claim_loses_its_drainer_and_goes_only_if_that_is_asked_for_and_by_its_version() -> None:
    write = upkeep(the_claim(2, drains(**EMPTY), mark=MARKED))
    assert (write.verb, write.kind, write.body) == ("delete", "Pod", {"preconditions": {"uid": "u"}})
    assert upkeep(the_claim(2, mark=MARKED), deletes=False) is None
    write = upkeep(the_claim(2, mark=MARKED))
    assert (write.verb, write.kind) == ("delete", "PersistentVolumeClaim")
    assert write.body == {"preconditions": {"uid": "u", "resourceVersion": "7"}}
    assert upkeep(the_claim(2, seen(a_pod(2)), mark=MARKED)) is None, "a pod has it"


def test_a_claim_that_is_wanted_again_loses_its_mark_before_anybody_is_called_off() -> None:
    claim = the_claim(2, seen(a_pod(2)), mark=MARKED)
    assert not claims.may_call_off(claim)
    assert upkeep(claim, 3).body["metadata"]["annotations"] == {claims.MARK: None}
    assert claims.may_call_off(the_claim(2, seen(a_pod(2))))


def test_a_broker_that_came_back_to_a_claim_on_its_way_out_is_made_anew_with_it() -> None:
    """Its store is empty, and it would take no client; what it got after a calling off would go with the claim."""
    claim = the_claim(2, seen(a_pod(2)), mark=MARKED, deletionTimestamp="now")
    write = upkeep(claim, 3)
    assert (write.verb, write.kind, write.name) == ("delete", "Pod", "queues-2")
    assert not claims.may_call_off(claim)
    assert upkeep(replace(claim, mark={}), 3) is None, "somebody else deletes it"


def test_nothing_is_written_at_zero_replicas_and_a_failed_drainer_stays_to_be_looked_at() -> None:
    assert upkeep(the_claim(2, drains(**EMPTY), mark=MARKED), 0) is None
    assert upkeep(the_claim(2, drains(**ended(1, "no")))) is None
    assert upkeep(the_claim(2, drains(**ended(1, "no"))), 3).name == drainer.name_of("store-queues-2")
    assert claims.room(replace(the_claim(2), drainer=Drainer("d", "u", "m", going=True))) is None


# ---- the pod


def test_a_drainer_is_made_of_the_sets_template_for_the_claims_volume_and_none_of_its_services() -> None:
    pod = drainer.pod(brokers(), the_claim(2), ["queues-0.queues.shop:5672"], ("--username", "u"))
    _validate("pods", pod)
    template, [container] = a_set(2)["spec"]["template"]["spec"], pod["spec"]["containers"]
    assert container["image"] == template["containers"][0]["image"]
    assert container["securityContext"] == template["containers"][0]["securityContext"]
    assert container["volumeMounts"] == template["containers"][0]["volumeMounts"]
    words = ["qpid-drain", "--store", "/var/lib/qpidd", "--to", "queues-0.queues.shop:5672", "--format", "json"]
    assert container["command"] == [*words, "--end-file", drainer.TERMINATION_LOG, "--username", "u"]
    spec = pod["spec"]
    assert (spec["serviceAccountName"], spec["securityContext"]) == (template["serviceAccountName"], template["securityContext"])
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["volumes"][-1] == {"name": "store", "persistentVolumeClaim": {"claimName": "store-queues-2"}}
    assert [each["name"] for each in spec["volumes"]] == ["hook", "store"]
    assert "app" not in pod["metadata"]["labels"], "no Service leads to it, and its set does not take it for its own"
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PersistentVolumeClaim", "u")
    assert {"name": "POD_NAME", "value": "queues-2"} in container["env"], "as in the broker's own pod"
    assert not {"ports", "readinessProbe", "livenessProbe", "lifecycle"} & container.keys()


def test_a_drainer_does_not_read_the_configuration_file_of_the_broker() -> None:
    """The keys of that file are qpidd's: qpid-drain would refuse the first one, at each attempt."""
    thing = deepcopy(brokers().thing)
    container = thing["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "QPID_CONFIG", "value": "/etc/qpidd.conf"}, {"name": "QPID_SASL_MECHANISM", "value": "PLAIN"}]
    container["envFrom"] = [{"configMapRef": {"name": "may-have-it-too"}}]
    [drains] = drainer.pod(brokers_of(thing), the_claim(2), ["t:1"], ())["spec"]["containers"]
    assert drains["env"] == [{"name": "QPID_SASL_MECHANISM", "value": "PLAIN"}, {"name": "QPID_CONFIG", "value": ""}]


def test_each_claim_has_one_name_for_its_drainer_of_at_most_63_characters() -> None:
    assert drainer.name_of("store-queues-2") == "drain-store-queues-2"
    long = ["store-" + "q" * 80 + f"-{ordinal}" for ordinal in (1, 2)]
    assert len({drainer.name_of(name) for name in long}) == 2
    assert {len(drainer.name_of(name)) for name in long} == {63}


def test_messages_go_to_the_broker_that_is_the_last_to_go_unless_the_set_or_the_controller_says_where() -> None:
    thing = deepcopy(brokers(ordinals={"start": 5}).thing)
    assert drainer.places(brokers_of(thing), "shop", ()) == ["queues-5.queues.shop:5672"]
    assert drainer.places(brokers_of(thing), "shop", (), "an n") == ["an%20n@queues-5.queues.shop:5672"]
    thing["metadata"]["annotations"] = {claims.TO: "a:1,b:1  c:1"}
    assert drainer.places(brokers_of(thing), "shop", ()) == ["a:1,b:1", "c:1"]
    assert drainer.places(brokers_of(thing), "shop", ("x:1",), "ann") == ["x:1"]


@pytest.mark.parametrize(
    "given,annotation,why",
    [
        (("amqp:u/s3cret@x:1",), "", "--to has a password"),
        ((), "a:1 amqps:u:s3cret@b:1", f"the annotation {claims.TO} has a password"),
        ((), "amqp:u/s3cret@a:1:2:3", f'the annotation {claims.TO}: "a:1:2:3" has more than one ":"'),
    ],
)
def test_a_target_with_a_password_or_that_is_no_url_gets_no_drainer(given: tuple[str, ...], annotation: str, why: str) -> None:
    """Breaks when the command of a pod shows a password, or the pod can only fail."""
    thing = deepcopy(brokers().thing)
    thing["metadata"]["annotations"] = {claims.TO: annotation}
    with pytest.raises(drainer.Unfit) as found:
        drainer.places(brokers_of(thing), "shop", given)
    assert str(found.value).startswith(why)
    assert "s3cret" not in str(found.value)


@pytest.mark.parametrize(
    "change,why",
    [
        ({"args": []}, "its container qpidd has no --data-dir in /var/lib/qpidd, where the volume store is"),
        ({"args": ["--data-dir=/tmp"]}, "no --data-dir in /var/lib/qpidd"),
        ({"volumeMounts": []}, "no container of its template has the volume store"),
        ({"args": ["--data-dir", "/var/lib/qpidd/0"]}, ""),
        ({"args": [], "env": [{"name": "QPID_DATA_DIR", "value": "/var/lib/qpidd"}]}, ""),
    ],
)
def test_a_template_must_say_where_the_store_is(change: Thing, why: str) -> None:
    thing = deepcopy(brokers().thing)
    thing["spec"]["template"]["spec"]["containers"][0] |= change
    try:
        drainer.pod(brokers_of(thing), the_claim(2), ["t:1"], ())
        said = ""
    except drainer.Unfit as error:
        said = str(error)
    assert why in said
    assert bool(why) == bool(said)


# ---- whoever dies when

OFTEN = ("reconcile", "drain", "look", "arrive", "arrive")
"""What goes on if nothing happens."""
SOMETIMES = ("scale", "serve", "fail", "kill", "leave out", "later")


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_in_whatever_order_no_claim_goes_that_has_a_message_and_all_comes_to_its_end(
    seed: int, deletes: bool
) -> None:
    chance = Random(seed)
    last = chance.randint(0, 3)
    world = World(deletes=deletes)
    world.reconcile()
    world.serve()
    for _ in range(150):
        match chance.choice(OFTEN) if chance.random() < 0.6 else chance.choice(SOMETIMES):
            case "scale":
                world.scale(chance.randint(0, 3))
                world.reconcile()
            case "reconcile":
                world.reconcile()
            case "serve":
                world.serve()
            case "drain":
                world.drain()
            case "fail":
                world.drain(fails=True)
            case "look":
                world.look()
            case "arrive":
                world.arrive(0)
            case "later":
                world.arrive(chance.randint(0, 5))
            case "kill":  # what it has sent may still come, what it has not never does
                del world.on_the_way[1:]
            case _:
                world.leave_out()
        world.check()
    world.scale(last)
    world.settle()
    for claim, volume in world.orphans():
        assert not last or (not deletes and not volume.messages and volume.released), claim
    wanted = [world.volume_of(f"store-{NAME}-{ordinal}") for ordinal in range(last)]
    assert not any(volume.leaves for volume in wanted), "whoever is wanted serves"


def drained() -> World:
    """The claim of ordinal 2 was drained and marked, and its deletion is on its way."""
    world = World(deletes=True)
    world.reconcile()
    world.serve()
    world.scale(2)
    world.reconcile()
    while not any(write.event == "deleting" for write, _ in world.on_the_way):
        world.drain()
        for _ in range(len(world.on_the_way)):
            world.arrive(0)
        world.look()
    return world


def test_a_deletion_that_comes_late_finds_another_version_when_the_claim_was_wanted_since() -> None:
    world = drained()
    late = world.on_the_way.pop()
    world.scale(3)
    world.settle()
    world.serve()
    assert world.volume_of("store-queues-2").messages, "it serves again"
    world.on_the_way.append(late)
    world.arrive(0)
    world.scale(2)
    world.reconcile()
    world.check()


def test_no_broker_serves_again_while_its_claim_may_still_be_deleted_by_the_mark() -> None:
    world = drained()
    world.scale(3)
    world.reconcile()
    world.look()
    world.serve()
    world.arrive(0)  # the deletion, before the mark is taken away
    world.serve()
    world.settle()
    world.serve()
    assert world.volume_of("store-queues-2").messages, "in a claim that was made anew"
    world.check()


def test_what_a_drainer_said_before_somebody_scaled_up_and_called_off_by_hand_is_not_believed() -> None:
    world = World(deletes=True)
    world.reconcile()
    world.scale(2)
    world.reconcile()
    world.look()
    world.arrive(0)
    world.drain()  # it says that the store is empty, and no controller runs from now on
    world.scale(3)
    world.reconcile()
    volume = world.volume_of("store-queues-2")
    volume.leaves = volume.released = False
    world.serve()
    world.scale(2)
    world.reconcile()
    world.settle()
    assert 3 in world.moved
