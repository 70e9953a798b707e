"""The pure part of the broker: no clock, files, sockets or proton. The same batches give the same state on every broker.

Start with `records.py` (the format of a batch), then `state.py` (applying a batch) and `queues/` (the messages of queues without
an object for each, and their order). `commands.py` has the definitions as they are in the log, and only `definitions.py`
interprets them. `nodes.py` has the objects that clients can name, `planning.py` turns requests for queues and bindings into
commands, `exchange.py` routes messages, `message.py` reads the sections that routing needs, `links.py` does the accounting of a
link, `management.py` has the rules of management requests, `urls.py` the addresses of brokers, `limits.py` all limits.
"""
