"""The accounting, without clients, clocks or files: `tally.py` has sets of numbers, `checker.py` checks each message,
`measures.py` has gaps and latencies, and `bodies.py` has ids and bodies of messages.
"""
