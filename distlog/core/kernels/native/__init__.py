"""What the loops of `distlog.core.kernels` are made with, the only modules that import numba: the decorators that
compile them, access to memory, the processor's instruction for checksums, and calls of the C library.
"""
