"""The runner of the pages finds what is wrong with one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.pages import BadPage, Block, agrees, blocks, commands
from tests.docs.session import PageFailed, Session

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def page(*blocks_: str) -> list[Block]:
    return list(blocks("\n".join(blocks_)))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(tmp_path, installed=False) as session:
        yield session


def test_blocks_share_one_shell(session: Session) -> None:
    for block in page("```bash\nexport A=1\nf() { echo $A$B; }\n```", "```sh\nB=2; f\n```"):
        session.run(block)
    assert session.printed == "12\n"


def test_a_block_stops_at_the_first_command_that_fails(session: Session) -> None:
    (block, after) = page("```bash\nfalse\necho too far\n```", "```bash\necho on\n```")
    with pytest.raises(PageFailed, match="ended with 1, not 0"):
        session.run(block)
    assert session.printed == ""
    session.run(after)
    assert session.printed == "on\n"


def test_a_stated_exit_code_must_come(session: Session) -> None:
    stated = page(
        "<!-- docs: exit 3 -->\n```bash\n(exit 3)\n```", "<!-- docs: exit 3 -->\n```sh\ntrue\n```"
    )
    session.run(stated[0])
    with pytest.raises(PageFailed, match="ended with 0, not 3"):
        session.run(stated[1])


def test_console_output_is_compared(session: Session) -> None:
    session.run(page("```console\n$ echo one\none\n$ echo two \\\n> three\ntwo three\n```")[0])
    with pytest.raises(PageFailed, match="but printed"):
        session.run(page("```console\n$ echo one\ntwo\n```")[0])


def test_python_runs_in_the_folder_and_environment_of_the_page(session: Session) -> None:
    for block in page(
        "```bash\npython3 -m venv .venv && . .venv/bin/activate && pip install -q -e .\n"
        "export HERE=$PWD\n```",
        "```python\nimport os\nassert os.getcwd() == os.environ['HERE']\nprint('so')\n```",
    ):
        session.run(block)
    assert session.printed == "so\n"


def test_what_runs_in_the_background_ends_with_the_page(tmp_path: Path) -> None:
    with Session(tmp_path, installed=False) as session:
        session.run(page("```bash\nsleep 600 &\necho $!\n```")[0])
        pid = int(session.printed)
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_nothing_outside_is_seen(session: Session, tmp_path: Path) -> None:
    session.run(page('```bash\necho "$HOME $XDG_STATE_HOME"; env | grep ^TIDEGATE_\n```')[0])
    first, *settings = session.printed.splitlines()
    assert all(place.startswith(str(tmp_path)) for place in first.split())
    assert [line.partition("=")[0] for line in settings] == ["TIDEGATE_HEALTH_PORT"]


@pytest.mark.parametrize(
    ("shown", "printed", "agree"),
    [
        ("a  b\n", "a b\n\n", True),
        ("a\nb", "a\nc\nb", False),
        ("a\n…\nb", "a\nc\nd\nb", True),
        ("a\n…\nb", "a\nb", True),
        ("a … c", "a b c", True),
        ("a … c", "a b\nc", False),
        ("it took 8.1 ms", "it took 1.2 s", True),
        ("it took 8.1 ms", "it took 8.1 kB", False),
        ("(in 14m59s)", "(in 3s)", True),
        ("at 2026-11-29T21:11:52.392Z", "at 2027-01-01T00:00:00Z", True),
        ("id ia3kzmtzlb6unsosfzjisyw4ky", "id 2zvxymttlu5gwvi2ch6ztjhilm", True),
        ("exit code 3", "exit code 0", False),
        ("0 danger", "10 danger", False),
    ],
)
def test_agreement(shown: str, printed: str, agree: bool) -> None:
    assert agrees(shown, printed) is agree


@pytest.mark.parametrize(
    "text",
    [
        "<!-- docs: skip -->\n```bash\ntrue\n```",
        "<!-- docs: skip no -->\n```bash\ntrue\n```",
        "<!-- docs: exit three -->\n```bash\ntrue\n```",
        "<!-- docs: exit 3 -->\n```text\nx\n```",
        "<!-- docs: file ../x -->\n```text\nx\n```",
        "<!-- docs: output -->\nwords\n```text\nx\n```",
        "<!-- docs: output -->\n<!-- docs: output -->\n```text\nx\n```",
        "<!-- docs: output -->",
        "```bash\ntrue\n",
    ],
)
def test_a_page_that_does_not_keep_to_the_convention_is_refused(text: str) -> None:
    with pytest.raises(BadPage):
        list(blocks(text))


def test_a_console_block_begins_with_a_command() -> None:
    with pytest.raises(BadPage):
        commands("output\n$ true\n")
