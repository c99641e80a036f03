"""The broker: connection, pulling, publishing, strict keys, its clock and its topology."""
