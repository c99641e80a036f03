"""Sealing: a prompt never lies in the clear, nor in the log (spec/admission.md, Payloads).

Whoever enqueues seals; the worker holds no payload key. ``keyfiles`` keeps keys on disk,
``keyring`` derives what is needed from them, ``sealer`` seals and opens, ``payloads`` keeps what
was sealed in the payload bucket, ``coredumps`` keeps it out of a crash's remains.
"""
