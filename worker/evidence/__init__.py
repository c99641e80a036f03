"""Evidence: who is alive on this host, as far as this host can prove it.

``procfs`` and ``procstat`` read Linux, ``identity`` names a process, ``verdicts`` and ``groups``
judge what is left of one, ``observe`` turns leases into bodies of ``sys.evidence``, ``reaper``
sends them. ``liveness`` and ``heartbeats`` are the weaker kind: who has fallen silent
(spec/admission.md, Recovery).
"""
