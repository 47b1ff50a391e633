"""Exercise: the order in which free blocks are used again."""
