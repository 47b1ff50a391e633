"""Exercise: a kernel that reads keys and values through a block table."""
