"""The cluster in a simulated world: production code on a reactor, network and disks that are controlled by a seed."""
