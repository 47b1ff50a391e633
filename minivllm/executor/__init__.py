"""Executors: how the engine core reaches the worker that runs a plan."""
