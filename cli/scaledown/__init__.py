"""qpid-scaledown: drains the stores that a scale-down leaves, and cancels drains if a broker is wanted again.

`steps` decides from the observed state what to do. `controller` runs the loop over a `place`, which observes and acts:
a `folder` of one machine, or a `namespace` of Kubernetes. For Kubernetes, `claims` interprets objects and decides what
to write to them, and `drainer` makes the pod that drains one claim; both are pure. `child` is a `qpid-drain` that ends
with the controller. Start reading at `steps`. Reasons: docs/adr/0044, docs/adr/0053.
"""
