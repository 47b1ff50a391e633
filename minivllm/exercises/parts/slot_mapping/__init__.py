"""Exercise: from positions to slots, and which rows of logits are computed."""
