"""Benchmarks: figures beside the raw ceilings of the same broker, in the same run.

A ratio inside one run says something on any machine; a figure alone says something only on the
machine that made it.
"""
