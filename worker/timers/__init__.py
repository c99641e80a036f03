"""Timers: arming deadlines on the broker and hearing them fire."""
