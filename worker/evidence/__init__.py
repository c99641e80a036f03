"""Evidence: who is alive on this host, as far as this host can prove it."""
