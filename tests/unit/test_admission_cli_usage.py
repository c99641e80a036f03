"""What ``tidegate adm`` refuses before it asks anybody."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from worker.cli.adm import app


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "a.b"),
        ("enqueue", "r1"),
        ("enqueue", "r1", "--agent", "a", "--provider", "p", "--model", "m", "--priority", "101"),
        ("complete", "r1", "--http-status", "500"),
        ("complete", "r1", "--failure", "weather"),
        ("policy", "--max-active-turns", "3"),
        ("policy", "--claim", "1", "--assert"),
        ("policy", "--claim", "1", "--silence", "long"),
        ("policy", "--resume"),
        ("policy", "--assert", "--resume"),
        ("policy", "--claim", "1", "--max-priority", "conn"),
        ("policy", "--claim", "1", "--max-priority", "=1"),
        ("policy", "--claim", "1", "--max-priority", "conn=1_0"),
        ("policy", "--claim", "1", "--max-priority", "conn=high"),
        ("cooldown", "acme", "m1", "--until", "soon"),
        ("resolve", "r1", "maybe", "--evidence", "e"),
        ("resolve", "r1", "confirmed_completed"),
        ("intent", "r1"),
        ("intent", "r1", "--connector", "not-json"),
        ("intent", "r1", "--connector", "[1]"),
        ("drain", "--", "-1"),
        ("leases", "--limit", "1001"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    # No broker is there: a command that got as far as asking it would not end with 2.
    env = {"TIDEGATE_NATS_URL": "nats://127.0.0.1:9", "TIDEGATE_DATA_DIR": str(tmp_path)}
    done = CliRunner().invoke(app, arguments, env=env)
    assert (done.exit_code, done.exception.__class__) == (2, SystemExit), done.output
