"""Workload and checker in one: real clients send and receive numbered messages, and every message is accounted for.

Start with `core/checker.py`: it says what counts as lost, duplicated, reordered, and why. It and the rest of `core/` are pure.
`clients.py` has the producer and the consumer, ordinary programs on python-qpid-proton, each in a process of its own; `run.py`
starts them, feeds what they tell to the checker, and lets them drain; `queues.py` asks a broker for queues. `qpid-verify`, the
demo and the tests with real processes all stand on this.
"""
