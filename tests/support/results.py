"""Results as tests look at them."""

from collections.abc import Mapping
from typing import Any


def code_of(result: Mapping[str, Any]) -> str:
    """The error code of a result; empty if all went well."""
    return str(result.get("error", {}).get("code", ""))
