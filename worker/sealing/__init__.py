"""Sealing: prompts never lie in the clear."""
