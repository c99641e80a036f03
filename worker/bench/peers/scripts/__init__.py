"""Small programs that the peers' own environments run; each reads options, and prints figures.

They import nothing of ours. Options are a JSON object on standard input: ``folder`` (an empty one
of theirs), ``count`` (deadlines), ``answers``, ``jobs``, ``in_flight``, ``lead_ms`` and
``spread_ms`` (the deadlines lie within ``spread_ms`` after ``lead_ms``), and where to find a
server. What they print has ``durability``, and of ``lateness_ms``, ``settle_ms`` (lists),
``enqueued_per_s`` and ``done_per_s`` what they can do.
"""
