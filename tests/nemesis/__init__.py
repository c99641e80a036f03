"""Long fault runs."""
