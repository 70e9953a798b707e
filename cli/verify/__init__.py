"""Workload and checker: real clients send and receive numbered messages, and the checker accounts for every message.

Start with `core/checker.py`: it defines lost, duplicated and reordered messages, with the reasons. It and the rest of `core/`
are pure. `clients.py` has the producer and the consumer, ordinary programs on python-qpid-proton, each in its own process;
`run.py` starts them, passes their reports to the checker, and lets them drain; `queues.py` creates the queues. `qpid-verify`,
the demo and the tests with real processes use this package.
"""
