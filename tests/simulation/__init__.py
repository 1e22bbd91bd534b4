"""The real library in simulated time: many processes, faults and clocks, everything random from one seed."""

import sys
from pathlib import Path

# `python -m simulation` has this package's folder on its path; pytest adds the modules that tests share
sys.path.append(str(Path(__file__).parents[1] / "support"))
