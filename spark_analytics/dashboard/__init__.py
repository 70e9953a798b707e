"""How a report looks: `text` for terminals, `page` for browsers. Both take the plain values of `jobs.summarise` and know no
Spark.
"""
