"""The queues of a run: whose they are when a broker fails before it answers, and which are deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.core.sasl_client import Login
from cli.verify.queues import NotServed, NotSo, Queues
from tests.broker.management_peer import Peer, running_peer

NAME = "qpid-verify-1"
EXISTING = {"items": {"queue": [{"name": NAME, "replicate": "all", "messages": 0}]}}
EXISTS = {"answers": {"CREATE queue": [409, "there is a queue of this name", None]}}
GONE = {"items": {"queue": []}, "answers": {"DELETE queue": [404, "there is no queue of this name", None]}}


@contextmanager
def peer(folder: Path, **given: Any) -> Iterator[tuple[Peer, Queues]]:
    """A broker that has no queue, unless it is told otherwise, and the queues of a run on it."""
    with running_peer(**({"items": {"queue": []}, "record": str(folder / "asked")} | given)) as broker:
        queues = Queues([broker.name], [NAME], "all", login=Login(), timeout_s=5.0)
        yield broker, queues
        queues.close()


def deleted(folder: Path) -> list[str]:
    """The names of the queues for whose deletion the broker was asked."""
    said = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    return [each["name"] for each in said if each["what"] == "DELETE queue"]


def test_a_queue_is_deleted_whose_creation_was_not_answered_before_the_connection_ended(tmp_path: Path) -> None:
    """Breaks when a failover between the commit and the answer leaves the queue behind."""
    with peer(tmp_path, lost_once={"CREATE queue": EXISTING | EXISTS}) as (_, queues):
        queues.prepare()
        assert (queues.delete(), deleted(tmp_path)) == ([], [NAME])


def test_a_queue_that_may_have_been_created_is_deleted_although_the_run_does_not_begin(tmp_path: Path) -> None:
    refused = {"answers": {"CREATE queue": [403, "ann may not", None]}}
    with peer(tmp_path, lost_once={"CREATE queue": EXISTING | refused}) as (_, queues):
        with pytest.raises(NotSo, match="ann may not"):
            queues.prepare()
        assert (queues.delete(), deleted(tmp_path)) == ([], [NAME])


def test_it_is_told_that_a_queue_may_be_left_when_no_broker_comes_back(tmp_path: Path) -> None:
    with peer(tmp_path, lost_once={"CREATE queue": {"close": ["amqp:connection:forced", "it stops"]}}) as (_, queues):
        queues._timeout_s = 0.2
        for act in (queues.prepare, queues.delete):
            with pytest.raises(NotServed):
                act()


def test_a_queue_that_somebody_else_has_made_is_never_deleted(tmp_path: Path) -> None:
    """Before the run, also if it cannot be asked for; or between the question and the request."""
    with peer(tmp_path, **(EXISTING | EXISTS)) as (_, queues):
        queues.prepare()
        assert queues.delete() == []
    for given in (EXISTS, {"answers": EXISTS["answers"] | {"QUERY queue": [403, "ann may not", None]}}):
        with peer(tmp_path, **given) as (_, queues):
            with pytest.raises(NotSo):
                queues.prepare()
            assert queues.delete() == []
    assert deleted(tmp_path) == []


def test_who_may_create_a_queue_and_not_ask_for_it_still_has_one(tmp_path: Path) -> None:
    with peer(tmp_path, answers={"QUERY queue": [403, "ann may not", None]}) as (_, queues):
        queues.prepare()
        assert (queues.delete(), deleted(tmp_path)) == ([], [NAME])


def test_a_queue_whose_deletion_was_not_answered_is_not_said_to_be_left(tmp_path: Path) -> None:
    with peer(tmp_path, lost_once={"DELETE queue": GONE}) as (_, queues):
        queues.prepare()
        assert (queues.delete(), deleted(tmp_path)) == ([], [NAME, NAME])


def test_no_queue_is_deleted_that_was_never_asked_for() -> None:
    queues = Queues(["127.0.0.1:1"], [NAME], "all", login=Login(), timeout_s=0.1)
    with pytest.raises(NotServed, match="refuses the connection"):
        queues.prepare()
    assert queues.delete() == []
