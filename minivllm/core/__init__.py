"""The control plane: which request gets how many tokens and which blocks. No torch, no IO, no clock."""
