"""Imported by the process that forks programs without distlog: numba, and what a first compilation loads."""

import numba

numba.njit(lambda: 0)()
