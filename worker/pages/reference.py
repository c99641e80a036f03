"""docs/reference/: every subject, message, result, fact and header, one page a plane."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from schemas import limits, outcomes, tokens
from schemas.catalog import CATALOG, Entry
from schemas.outcomes import Outcome
from schemas.roles import QUERY_ABOUT, QUERY_ROLES, VERB_ROLES, Role
from worker.pages import fields
from worker.pages.examples import EXAMPLES
from worker.pages.markdown import anchor, code, table
from worker.pages.wire import ENVELOPE, HEADERS, INTRO, SUBJECTS

PLANES: Final[Mapping[str, tuple[str, str]]] = {
    "cp": (
        "checkpoints",
        "A run pauses with a deadline; its holder lets it go on, or it expires. How it works: "
        "[checkpoints](../checkpoints.md).",
    ),
    "adm": (
        "admission",
        "Turns queue for seats; one that may have been dispatched never runs again. How it works: "
        "[admission](../admission.md).",
    ),
    "cap": (
        "caps",
        "A person's spending cap: reserved, confirmed, stopped. How it works: [caps](../caps.md).",
    ),
    "sys": (
        "system",
        "What workers and witnesses put into the log, and what an operator may ask a worker for. "
        "How it works: [the ledger](../ledger.md), [recovery](../recovery.md).",
    ),
}
"""Plane to the name of its page, and what it is about."""

_KINDS: Final = (
    ("command", "Commands", "Published to be stored; each gets one result for each delivery."),
    ("query", "Queries", "Request and reply; they change nothing but what they say."),
    ("view", "Data", "What `data` of results and answers holds."),
    ("record", "Records", "What is stored under a key or a subject."),
    ("fact", "Facts", "Published for whoever observes."),
)


def pages() -> dict[str, str]:
    """The pages by path."""
    return {
        "reference/README.md": _index(),
        **{f"reference/{name}.md": _plane(plane) for plane, (name, _) in PLANES.items()},
    }


def _index() -> str:
    return "".join(
        (
            INTRO,
            "## Pages\n\n",
            *(
                f"- [{name.capitalize()}]({name}.md): {_names(plane)}\n"
                for plane, (name, _) in PLANES.items()
            ),
            "- [Reasons](../reasons.md): codes and reasons of everything that is not ok\n\n",
            SUBJECTS,
            "\n## Names\n\n",
            "What may stand in a subject, a key or a header. All of it must match.\n\n",
            table(("name", "grammar"), _GRAMMARS),
            "\n",
            ENVELOPE,
            "\n## A result\n\n",
            *_message(CATALOG["result"]),
            "\n`code` and `reason`: [reasons](../reasons.md). The answer to a query is the same "
            "without `command_id`, `id`, `at_ms` and `chain`.\n",
            "\n## Limits\n\n",
            table(("what", "limit"), _LIMITS),
            "\n",
            HEADERS,
            "\n## Roles\n\n",
            "Who may send and ask what. A broker with users grants it by subject "
            "(`tidegate setup --print-conf`); the worker checks the reserved names again: "
            "`_worker…` and `_witness…` are the platform's own, `_op…` are operators.\n\n",
            table(("role", "may send", "may ask"), _role_rows()),
        )
    )


def _names(plane: str) -> str:
    verbs = [name.rpartition(".")[2] for name in CATALOG if name.startswith(f"command.{plane}.")]
    return ", ".join(map(code, verbs))


_GRAMMARS: Final = [
    ("root", code(tokens.ROOT_PATTERN)),
    ("space", f"{code(tokens.SPACE_PATTERN)}, not beginning with `REQ_`"),
    ("principal", f"{code(tokens.NAME_PATTERN)}; a leading `_` is reserved"),
    ("uid, instance", f"{code(tokens.UID_PATTERN)}; one life of a principal"),
    (
        "endpoint",
        f"{code(tokens.ENDPOINT_PATTERN)}, at most {tokens.MAX_ENDPOINT_CHARS} characters; "
        "in subjects and keys `.` is written `_`",
    ),
    ("token, request id, goal id, answer id, lease id", code(tokens.NAME_PATTERN)),
    ("command id", f"{code(tokens.COMMAND_ID_PATTERN)}, chosen by you, one for each intent"),
    ("user", code(tokens.USER_PATTERN)),
    ("mint key", code(tokens.MINT_KEY_PATTERN)),
    ("epoch", f"{code(tokens.EPOCH_PATTERN)}, at most 2^53-1"),
    (
        "id of a result",
        "`<epoch>-<seq>`; the epoch counts the ledger's logs, and of checkpoints it is when the "
        "stream of their commands was made, ms",
    ),
]

_LIMITS: Final = [
    ("body of a command or query", f"{limits.MAX_BODY_BYTES // 1024} KiB"),
    ("a stored record", f"{limits.MAX_RECORD_BYTES // 1024} KiB"),
    ("nesting", f"{limits.MAX_DEPTH} levels"),
    ("a subject", f"{limits.MAX_SUBJECT_BYTES:,} bytes"),
    ("an integer", "-(2^53-1)..2^53-1"),
    ("a deadline", "in the future, at most ten years ahead"),
]


def _role_rows() -> Iterator[tuple[str, str, str]]:
    for role in Role:
        sends = [f"`{plane}.{verb}`" for (plane, verb), may in VERB_ROLES.items() if role in may]
        asks = [f"`{plane}.{name}`" for (plane, name), may in QUERY_ROLES.items() if role in may]
        yield code(role.value), ", ".join(sends), ", ".join(asks)


def _plane(plane: str) -> str:
    name, about = PLANES[plane]
    parts = [f"# Reference: {name}\n\n{about} Shared by all planes: [subjects, names, the result, "]
    parts.append("limits, headers](README.md). Refusals: [reasons](../reasons.md).\n")
    for kind, title, meaning in _KINDS:
        entries = [e for e in CATALOG.values() if e.name.startswith(f"{kind}.{plane}.")]
        if not entries:
            continue
        parts.append(f"\n## {title}\n\n{meaning}\n\n")
        parts.append(table(("message", "what it is"), (_line(entry) for entry in entries)))
        for entry in entries:
            parts.append(f"\n### {_title(entry)}\n\n")
            parts.extend(_message(entry))
    return "".join(parts)


def _title(entry: Entry) -> str:
    """``mint`` for a command, else its kind as well, so that every anchor is its own."""
    word = entry.name.rpartition(".")[2]
    return code(word) if entry.kind == "command" else f"{entry.kind} {code(word)}"


def _line(entry: Entry) -> tuple[str, str]:
    title = _title(entry)
    return f"[{title}](#{anchor(title)})", _summary(entry)


def _summary(entry: Entry) -> str:
    said: str = entry.schema().get("description", "").partition("\n\n")[0]
    return " ".join(said.split()).replace("``", "`")


def _message(entry: Entry) -> Iterator[str]:
    said = entry.schema().get("description", "").replace("``", "`")
    yield "\n\n".join(" ".join(part.split()) for part in said.split("\n\n")) + "\n\n"
    yield _where(entry)
    rows = [
        (code(field.path), field.kind, field.default, field.meaning) for field in fields.of(entry)
    ]
    if rows:
        yield table(("field", "type", "default", "meaning"), rows) + "\n"
    elif entry.kind in ("command", "query"):
        yield "No field beside `v`.\n\n"
    yield f"```json\n{_json(EXAMPLES[entry.name])}\n```\n"
    _, plane, word = (*entry.name.split("."), "", "")[:3]
    if entry.kind == "command" and (plane, word) in outcomes.RESULTS:
        yield _outcomes(plane, outcomes.RESULTS[plane, word])
    elif entry.kind == "command":
        yield "\nIt gets no result.\n"
    elif entry.kind == "query":
        yield _outcomes(plane, outcomes.ANSWERS[plane, word])


def _where(entry: Entry) -> str:
    places = ", ".join(
        code(place) if "<" in place else place
        for place in entry.where.replace("``", "`").split(", ")
    )
    _, plane, word = (*entry.name.split("."), "", "")[:3]
    match entry.kind:
        case "command":
            return f"- Subject: {places}\n- From: {_roles(VERB_ROLES[plane, word])}\n\n"
        case "query":
            asks = (
                f"- From: {_roles(QUERY_ROLES[plane, word])}\n- About: {QUERY_ABOUT[plane, word]}"
            )
            return f"- Subject: {places}\n{asks}\n\n"
    return f"- Where: {places}\n\n"


def _roles(may: Iterable[Role]) -> str:
    return ", ".join(role.value for role in Role if role in set(may))


def _outcomes(plane: str, found: Iterable[Outcome]) -> str:
    rows = ((code(one.word), one.meaning, _data(plane, one.data)) for one in found)
    return "\n" + table(("ok outcome", "meaning", "`data`"), rows)


def _data(plane: str, data: str) -> str:
    name, _, more = data.partition(" ")
    if name not in CATALOG:
        return data
    title = _title(CATALOG[name])
    page = "" if name.startswith(f"view.{plane}.") else f"{PLANES[name.split('.')[1]][0]}.md"
    return f"[{title}]({page}#{anchor(title)}) {more}".strip()


def _json(value: object) -> str:
    """JSON for people: an object on one line where that fits."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 96 else _broken(value, 0)


def _broken(value: object, depth: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + 2 * depth <= 90 or not isinstance(value, dict | list) or not value:
        return text
    pad = "  " * (depth + 1)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(k)}: {_broken(v, depth + 1)}" for k, v in value.items()]
    else:
        inner = [f"{pad}{_broken(v, depth + 1)}" for v in value]
    opened, closed = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return "\n".join((opened, ",\n".join(inner), "  " * depth + closed))
