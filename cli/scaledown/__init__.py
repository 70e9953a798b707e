"""qpid-scaledown: the stores that a scale-down leaves are drained, and drains are called off where a broker is wanted again.

`steps` decides what is to be done from what is seen; `controller` sees and does it; `child` is a `qpid-drain` that ends with the
controller. Start reading at `steps`. Why it is so: docs/adr/0044.
"""
