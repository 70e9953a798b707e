"""Connections from the daemon: `probe` keeps one to each broker, queries its state, and asks it to promote itself; `web` has
requests to etcd and Kubernetes.
"""
