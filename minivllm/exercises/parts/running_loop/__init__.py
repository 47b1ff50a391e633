"""Exercise: running requests first, and whom to preempt."""
