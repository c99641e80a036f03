"""Admission: turns queue for scarce seats, fairly, and none that may have run runs again."""
