"""qpid-scaledown: the stores that a scale-down leaves are drained, and drains are cancelled where a broker is wanted again.

`steps` decides what is to be done from what is seen; `controller` runs the loop over a `place`, which sees and does: a `folder`
of one machine, or a `namespace` of Kubernetes. Of the latter `claims` says what objects mean and what is written to them, and
`drainer` makes the pod that drains one; both are pure. `child` is a `qpid-drain` that ends with the controller. Start reading
at `steps`. Why it is so: docs/adr/0044, docs/adr/0053.
"""
