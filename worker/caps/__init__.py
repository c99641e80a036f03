"""Caps: a person's spending cap, where Stop beats anything in flight."""
