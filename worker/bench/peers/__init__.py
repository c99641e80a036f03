"""What one might pick instead: the same work, done by each in the way it recommends."""
