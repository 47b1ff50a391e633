"""Kernels against their references over grids of shapes: one module a kernel, each with a `run`.

    TRITON_INTERPRET=1 python -m tests.kernels.grids              the quick grid, on a CPU
    TRITON_INTERPRET=1 python -m tests.kernels.grids --full       the whole grid
    python -m tests.kernels.grids --device cuda --full            the same on a GPU, in bf16 too

The interpreter is chosen when a kernel is decorated, so grids run in a process of their own.
"""
