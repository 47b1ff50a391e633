"""Benchmarks: our own figures, each with the machine, the workload and, where there is one, the floor or a peer."""
