"""The format of a telemetry line, for all writers and readers: brokers, the resource manager, and Spark.

`schema` declares the fields of each kind of line and their values; `lines` encodes them as JSON. Both are pure, need only the
standard library, and import nothing else of the project. docs/reference/telemetry.md explains each field, and a test compares it
with this package.
"""
