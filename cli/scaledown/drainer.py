"""The pod that drains a claim, made from the template of the set's broker pods. Pure.

It has the broker's image, environment (without QPID_CONFIG), volumes, security context, account and node placement, so it
can run wherever a broker can run. Its command is qpid-drain on the store of the claim. It has none of the broker's labels,
so no Service selects it and no set adopts it, and no ports, probes and hooks. It belongs to the claim, and is deleted with
it.

Invariant: no password is in its command, which everybody who may read pods can see.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any
from urllib.parse import quote

from broker.core import urls
from cli.scaledown.claims import DRAINS, MOMENT, TO, Brokers, Claim

Thing = dict[str, Any]
TERMINATION_LOG = "/dev/termination-log"
_AMQP = 5672
_GRACE_S = 10
_CONFIG = "QPID_CONFIG"
"""The variable that names a configuration file: the broker's has keys that qpid-drain does not know."""
_OF_THE_POD = (
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "os",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)
_OF_THE_CONTAINER = ("env", "envFrom", "image", "imagePullPolicy", "resources", "securityContext", "volumeMounts", "workingDir")


class Unfit(Exception):
    """The set does not allow a drainer: its template does not show where the store is, or a target is wrong. The text says
    what.
    """


def name_of(claim: str) -> str:
    """The drainer's name, one for each claim, at most 63 characters."""
    name = f"drain-{claim}"
    return name if len(name) <= 63 else f"{name[:54]}-{hashlib.sha256(claim.encode()).hexdigest()[:8]}"


def places(brokers: Brokers, namespace: str, given: Sequence[str], user: str = "") -> list[str]:
    """The targets of its messages: the controller's option, else the set's annotation, else the set's broker with the
    lowest ordinal, which is removed last; `user` logs in at the set's brokers. Unfit if one is no URL or has a password.
    """
    said = _said(brokers)
    for one in given or said:
        where = "--to" if given else f"the annotation {TO}"
        try:
            password = urls.parse(one).password
        except urls.BadUrl as error:
            raise Unfit(f"{where}: {error}") from None
        if password:
            raise Unfit(f"{where} has a password, which everybody who may read pods could see: give --password-file instead")
    login = f"{quote(user, safe='')}@" if user else ""
    return list(given) or said or [login + address(brokers, namespace, brokers.wanted.start)]


def annotated(brokers: Brokers) -> list[str]:
    """The targets that the set's annotation names, without those for which `places` finds it unfit."""
    found = []
    for one in _said(brokers):
        with suppress(urls.BadUrl):
            found += [] if urls.parse(one).password else [one]
    return found


def _said(brokers: Brokers) -> list[str]:
    return str((brokers.thing["metadata"].get("annotations") or {}).get(TO) or "").split()


def address(brokers: Brokers, namespace: str, ordinal: int) -> str:
    """The address of the broker with this ordinal, by the name that the set's Service gives its pod."""
    spec = brokers.thing["spec"]
    host = f"{brokers.name}-{ordinal}"
    if spec.get("serviceName"):
        host += f".{spec['serviceName']}.{namespace}"
    ports = [port for each in spec["template"]["spec"]["containers"] for port in each.get("ports") or ()]
    return f"{host}:{next((port['containerPort'] for port in ports if port.get('name') == 'amqp'), _AMQP)}"


def pod(brokers: Brokers, claim: Claim, to: Iterable[str], words: Iterable[str]) -> Thing:
    """The drainer of this claim. `to`: the targets; `words`: more options of qpid-drain. Unfit."""
    template = brokers.thing["spec"]["template"]["spec"]
    volume = str(brokers.thing["spec"]["volumeClaimTemplates"][0]["metadata"]["name"])
    container, folder = _container(template, volume)
    command = ["qpid-drain", "--store", folder, *(word for each in to for word in ("--to", each))]
    command += ["--format", "json", "--end-file", TERMINATION_LOG, *words]
    drains: Thing = {"name": "qpid-drain", "command": command, "terminationMessagePolicy": "FallbackToLogsOnError"}
    drains |= {part: deepcopy(container[part]) for part in _OF_THE_CONTAINER if part in container}
    env = [each for each in container.get("env") or () if each["name"] != _CONFIG]
    drains["env"] = [_as_of_the_broker(each, f"{brokers.name}-{claim.ordinal}") for each in env]
    drains["env"].append({"name": _CONFIG, "value": ""})  # `envFrom` may have it too
    spec: Thing = {part: deepcopy(template[part]) for part in _OF_THE_POD if part in template}
    if (affinity := (template.get("affinity") or {}).get("nodeAffinity")) is not None:
        spec["affinity"] = {"nodeAffinity": deepcopy(affinity)}
    mounted = {str(mount["name"]) for mount in drains["volumeMounts"]}
    volumes = [deepcopy(each) for each in template.get("volumes") or () if each["name"] in mounted - {volume}]
    spec |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [drains],
        "volumes": [*volumes, {"name": volume, "persistentVolumeClaim": {"claimName": claim.name}}],
    }
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name, "uid": claim.uid}
    metadata = {
        "name": name_of(claim.name),
        "labels": {DRAINS: claim.uid, "understudy-client": "yes"},
        "annotations": {MOMENT: brokers.moment},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(template: Thing, volume: str) -> tuple[Thing, str]:
    """The container that has the volume, and the folder of the store in it."""
    for container in template["containers"]:
        mounts = [str(mount["mountPath"]) for mount in container.get("volumeMounts") or () if mount["name"] == volume]
        if not mounts:
            continue
        folder = _data_dir(container)
        if folder and any(posixpath.join(folder, "").startswith(posixpath.join(mount, "")) for mount in mounts):
            return container, folder
        raise Unfit(f"its container {container['name']} has no --data-dir in {mounts[0]}, where the volume {volume} is")
    raise Unfit(f"no container of its template has the volume {volume}")


def _data_dir(container: Thing) -> str:
    """The data folder in qpidd's command line, or else in its environment."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word == "--data-dir":
            return str(value)
        if word.startswith("--data-dir="):
            return str(word.partition("=")[2])
    return next((str(each.get("value") or "") for each in container.get("env") or () if each["name"] == "QPID_DATA_DIR"), "")


def _as_of_the_broker(variable: Thing, name: str) -> Thing:
    """Replaces the pod's own name, where the template uses it, by the name of the broker's pod."""
    field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    return {"name": variable["name"], "value": name} if field == "metadata.name" else deepcopy(variable)
