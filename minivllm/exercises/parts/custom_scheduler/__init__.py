"""Exercise: a scheduling policy of one's own."""
