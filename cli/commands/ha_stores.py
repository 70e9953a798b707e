"""`qpid-ha store-info`: the content of stores, which of several is the newest, and how they are damaged."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cli import endings, options
from cli.commands.ha_cluster import ha_command, view_of
from cli.output import Column, flag, say, show_json, show_table, text

_OF_A_BROKER = ("brokerId", "clusterId", "epoch", "lastEpoch", "lastIndex", "commitIndex")
_ORDER = ("cluster", "local")
"""The log by which stores are compared: that of the cluster, if there is one."""


@ha_command("store-info")
@click.argument("folders", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@options.data_dir_option
def store_info(folders: tuple[Path, ...], data_dir: Path | None, form: str, **given: Any) -> None:
    """Print what stores hold, and which is the newest. Use it after an outage of all brokers.

    With folders (or --data-dir) the command reads these stores, whether their brokers run or not. It prints when each was last
    written, whether it is damaged, and which of several is the newest: the one with the highest epoch, then the highest index.
    Without a folder it asks the broker. Exit code 1 when a store is damaged.
    """
    looked_at = (*folders, *((data_dir,) if data_dir is not None else ()))
    if not looked_at:
        target = options.target(given, admin=True)
        view = endings.run(lambda reactor: view_of(target, reactor))
        _show_one({field: view.get(field) for field in _OF_A_BROKER} | dict(view.get("store") or {}), form)
        return
    stores = [_inspected(folder) for folder in looked_at]
    if len(stores) == 1:
        _show_one(stores[0], form)
    else:
        _show_several(stores, form)
    damaged = [store["data_dir"] for store in stores if store.get("error") or any(log["damage"] for log in store["logs"])]
    if damaged:
        raise endings.Refused(f"damaged: {', '.join(damaged)}")


def _show_one(found: dict[str, Any], form: str) -> None:
    if form == "json":
        show_json(found)
        return
    logs = [dict(log) for log in found.get("logs", [])]
    for field, value in found.items():
        if field == "logs":
            continue
        say(f"{field + ':':<20} {text(value)}".rstrip())
    if logs:
        fields = [field for field in logs[0] if field != "damage"]
        show_table(
            "Logs:", [Column(field, field, text, number=field not in ("name", "voted_for", "written")) for field in fields], logs
        )
    for log in logs:
        for line in log["damage"]:
            say(f"Damage:              {log['name']} log: {line}")


def _show_several(stores: list[dict[str, Any]], form: str) -> None:
    ends = [_end(store) for store in stores]
    for store, end in zip(stores, ends, strict=True):
        store["newest"] = end == max(ends)
    if form == "json":
        show_json(stores)
        return
    rows = [
        {
            "store": store["data_dir"],
            "newest": store["newest"],
            "cluster": store.get("cluster_id", ""),
            "epoch": end[0],
            "index": end[1],
        }
        | {"written": max((log["written"] for log in store["logs"]), default=""), "clean": store.get("clean", False)}
        for store, end in zip(stores, ends, strict=True)
    ]
    columns = (
        Column("store", "store", text),
        Column("newest", "newest", flag),
        Column("cluster", "cluster", text),
        Column("epoch", "epoch", text, number=True),
        Column("index", "index", text, number=True),
        Column("written", "written", text),
        Column("clean", "clean", flag),
    )
    show_table("Stores:", columns, rows)
    clusters = {store["cluster_id"] for store in stores if store.get("cluster_id")}
    if len(clusters) > 1:
        say(f"These stores are of {len(clusters)} clusters: only those of one can be compared")
    for store in stores:
        if store.get("error"):
            say(f"Damage:              {store['data_dir']}: {store['error']}")
        for log in store["logs"]:
            for line in log["damage"]:
                say(f"Damage:              {store['data_dir']}: {log['name']} log: {line}")


def _end(store: dict[str, Any]) -> tuple[int, int]:
    """The last epoch and index of the log by which stores are compared."""
    logs = {log["name"]: log for log in store["logs"]}
    name = next((name for name in _ORDER if name in logs), None)
    return (0, 0) if name is None else (logs[name]["last_epoch"], logs[name]["last_index"])


def _inspected(data_dir: Path) -> dict[str, Any]:
    from broker.disk import store
    from broker.disk.durable import DamagedStore, StorageError

    try:
        return asdict(store.inspect(data_dir))
    except DamagedStore as error:
        return {"data_dir": str(data_dir), "error": str(error), "logs": []}
    except (FileNotFoundError, StorageError, OSError) as error:
        raise endings.Refused(f"{data_dir}: {error}") from None
