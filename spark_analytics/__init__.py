"""Replication lag on Spark: summaries of telemetry files. Nothing here imports the broker.

Start with `schemas` (the fields of a telemetry line), then `transforms` (DataFrame in, DataFrame out: all rules), then
`jobs.summarise` (one report of plain values), then `dashboard` (the presentation of a report). `session`, `sources` and
`archive` start Spark and find the files.
"""
