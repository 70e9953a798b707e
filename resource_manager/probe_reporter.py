"""Reports the results of the resource manager's probes to telemetry: once an interval, one line for each broker.

A probe asks several times a second. A line has the number of questions and answers, the response times, and the
broker's last answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from broker.telemetry import TelemetryWriter, delay_to_next_sample_s
from resource_manager.core.detector import Detector, Seen
from resource_manager.net.probe import Answers, Probe
from telemetry.lines import Probe as ProbeRow

_log = Logger(namespace="resource_manager")


class ProbeReporter:
    """Writes lines with `writer`, in its intervals."""

    def __init__(self, reactor: Any, writer: TelemetryWriter, probes: Mapping[str, Probe], detector: Detector) -> None:
        self.writer = writer
        self._reactor = reactor
        self._probes = probes
        self._detector = detector
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        """Begin."""
        delay_s = delay_to_next_sample_s(self.writer.wall(), self.writer.interval_ms)
        self._call = self._reactor.callLater(delay_s, self._report)

    def stop(self) -> None:
        """End. The collected results are written."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self.writer.close()

    def _report(self) -> None:
        self.start()
        news = self.writer.news_of_loss()
        if news:
            _log.warn("{news}", news=news)
        brokers = self._detector.sight(self._reactor.seconds()).brokers
        epoch = max((seen.view.epoch for seen in brokers if seen.view is not None), default=0)
        self.writer.probes(epoch=epoch, rows=[_row(seen, self._probes[seen.name].take_answers()) for seen in brokers])


def _row(seen: Seen, answers: Answers) -> ProbeRow:
    view, mean_s = seen.view, answers.mean_s
    return ProbeRow(
        broker=seen.name,
        reach=seen.reach.name.lower(),
        asked=answers.asked,
        answered=answers.answered,
        round_trip_ms=None if mean_s is None else mean_s * 1000,
        round_trip_max_ms=None if mean_s is None else answers.longest_s * 1000,
        state="" if view is None else view.status,
        primary="" if view is None else view.primary,
        broker_epoch=None if view is None else view.epoch,
        last_index=None if view is None else view.last_index,
        detail=seen.reason or None,
    )
