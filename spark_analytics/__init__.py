"""Replication lag on Spark: telemetry files in, truthful summaries out. Nothing here imports the broker.

Start with `schemas` (what a line of telemetry is), then `transforms` (DataFrame in, DataFrame out: all the rules), then
`jobs.summarise` (one report of plain values), then `dashboard` (how a report looks). `session`, `sources` and `archive` start
Spark and find the files.
"""
