"""The real library in simulated time: many processes, faults and clocks, everything random from one seed."""
