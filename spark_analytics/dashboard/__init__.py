"""The presentation of a report: `text` for terminals, `page` for browsers. Both use the plain values of `jobs.summarise`,
without Spark.
"""
