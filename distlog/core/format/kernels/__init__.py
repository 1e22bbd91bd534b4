"""Compiled kernels, which contain only loops. `native` has their decorators and intrinsics.

A `fill_kernel` is compiled for callers in Python, and fills their arrays; `inlined` and `called` are for subroutines.
Every kernel takes arrays and integers, and returns integers or a status. A kernel never raises, and never reads past
the end it is given. The caller turns a status into an error that names the file and position.
"""
