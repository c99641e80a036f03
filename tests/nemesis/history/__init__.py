"""What clients did and were told, and what the broker stored: recorded, kept in a file, judged."""
