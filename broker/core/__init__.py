"""The broker's pure part: no clock, no files, no sockets, no proton. The same batches give the same state everywhere.

Start with `records.py` (what a batch is), then `state.py` (what applying it does) and `queues/` (how a queue knows of a million
messages without an object for each, and which comes next). `commands.py` is what a definition looks like in the log,
`definitions.py` the one place that interprets it. `nodes.py` is what clients can name, `planning.py` what a wish for a queue or a
binding means as a command, `exchange.py` how messages are routed, `message.py` the few sections of a message that routing looks
at, `links.py` the account of a link, `management.py` what management asks and means, `urls.py` how brokers are addressed,
`limits.py` every bound there is.
"""
