"""Checkpoints: a run pauses; exactly one of resumed and expired ever happens."""
