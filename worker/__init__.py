"""The Tidegate daemon."""
