"""Mixed traffic over all three planes: everybody speaks through clients that record."""
