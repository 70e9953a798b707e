"""The store: the data of a broker on disk.

Start with `store.py` (the folder, its identity, its lock), then `journal.py` (a log: append, truncate, read, checkpoint). Below
them, `writer.py` is the thread that writes the log, `holdings.py` knows the files and their content, and `recovery.py` repairs
the folder at the start. `segments.py` has the format of the log's files, and the argument why a crash cannot be mistaken for
damage or damage for a crash. `checkpoint.py` replaces the beginning of the log, `bodies.py` reads messages, `compaction.py`
merges files with few live messages, `transfer.py` sends a checkpoint and its files to another broker, `conversion.py` converts
checkpoints of older versions, `preparation.py` writes the zeros that make syncs cheap, and `durable.py` has the steps to survive
a power failure. All modules use `files.py` (the file system) and `threads.py`: two Protocols with their real implementations,
the only modules that call the system.

Nothing here uses Twisted: the journal has its own thread and calls back through a function that it is given.
"""
