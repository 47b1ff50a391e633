"""The trace: one event log, written by probes on a running engine, read by everything that draws."""
