"""The ledger: one ordered log, folded into SQLite."""
