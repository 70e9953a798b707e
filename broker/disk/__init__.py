"""The store: what a broker has on disk.

Start with `store.py` (the folder, its identity, its lock), then `journal.py` (a log: append, truncate, read, checkpoint).
Below them: `writer.py` is the thread that writes the log, `holdings.py` knows its files and what is in them, `recovery.py` puts
a folder right at the start, `segments.py` is the format of the log's files and the argument why a crash cannot be taken for
damage or damage for a crash, `checkpoint.py` what replaces the log's beginning, `bodies.py` where messages lie and how they are
read back, `compaction.py` how files that hold little become few, `transfer.py` how a checkpoint and its files come to another
broker, `conversion.py` what becomes of a checkpoint of an older version, `preparation.py` the zeros that make syncs cheap, and
`durable.py` what it takes to survive a power cut. All of it stands on `files.py` (the file system) and `threads.py`, two
Protocols with their real implementations: no other module here calls either.

Nothing here knows Twisted: the journal has a thread of its own and calls back through a function that it is given.
"""
