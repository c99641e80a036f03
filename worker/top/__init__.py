"""``tidegate top``: what waits, what holds and what is wrong, gathered, judged and drawn."""
