"""What a line of telemetry is, for everybody who writes or reads one: brokers, the resource manager, and Spark.

`schema` declares the fields of each kind and the words that they may hold; `lines` makes JSON of them. Both are pure, need
nothing but the standard library, and import nothing else of the project. The meaning of each field is in
docs/reference/telemetry.md, which a test holds against this.
"""
