"""Bounds of the wire contract, each with its unit in its name."""

from typing import Final

MAX_BODY_BYTES: Final = 64 * 1024
"""A command, query or record body larger than this is refused unread."""

MAX_RECORD_BYTES: Final = 256 * 1024
"""A stored record may be larger than the command it came with, since it says more."""

MAX_DEPTH: Final = 64
"""Levels of nesting a body may have; the body itself is level one."""

MAX_SUBJECT_BYTES: Final = 1024
"""Longest subject that is ever built or parsed."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""Largest integer every JSON reader agrees on (RFC 8785 section 3.2.2.3)."""

MAX_DEADLINE_AHEAD_MS: Final = 10 * 366 * 24 * 3600 * 1000
"""A deadline further ahead than ten (leap) years is refused.

The broker's schedules overflow in 2262 and then fire at once, so a deadline that far is an
accident that must not become an immediate expiry.
"""

ONE_SECOND_MS: Final = 1_000
