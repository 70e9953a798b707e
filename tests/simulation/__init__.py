"""The cluster in a simulated world: production code on a reactor, network and disks that a seed decides about."""
