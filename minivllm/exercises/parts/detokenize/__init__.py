"""Exercise: text out of tokens that come one by one."""
