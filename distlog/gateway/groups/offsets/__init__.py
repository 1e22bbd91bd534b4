"""How far groups have come: positions, and the topic that keeps them."""
