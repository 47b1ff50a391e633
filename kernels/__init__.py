"""GPU kernels in Triton, each beside a plain PyTorch reference that says the same in a few lines.

Read the reference first, then the picture, then the kernel. Where Triton is not installed these modules still import,
and the references still run; only launching a kernel fails, with a message that says what to install.
"""
