"""The wire contract: subjects, tokens, commands, results, facts, records, roles, error codes.

Imports nothing of the worker; everything here is pure.
"""
