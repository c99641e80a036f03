"""Every message of the wire contract by name: what ``tidegate schema`` prints and the docs list."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel

from schemas import admission, caps, commands, records, results, system, views

Kind = Literal["command", "query", "result", "record", "fact", "view"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message.

    Attributes:
        name: Stable: ``<kind>.<plane>.<word>``.
        kind: What it is.
        where: Subject or key, with ``<…>`` for what varies.
        model: Its model.
    """

    name: str
    kind: Kind
    where: str
    model: type[BaseModel]

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema (draft 2020-12), titled with its name."""
        body = documented(self.model.model_json_schema())
        definitions = body.pop("$defs", None)
        schema = {
            "$schema": DIALECT,
            "title": self.name,
            "x-tidegate-kind": self.kind,
            "x-tidegate-where": self.where,
            **body,
        }
        if definitions is not None:
            schema["$defs"] = {name: documented(part) for name, part in definitions.items()}
        return schema


def documented(schema: dict[str, Any]) -> dict[str, Any]:
    """Move what a docstring says of each attribute to the property it describes."""
    summary, _, attributes = inspect.cleandoc(schema.get("description", "")).partition(
        "\n\nAttributes:\n"
    )
    said = {
        match["name"]: " ".join(match["text"].split())
        for match in _ATTRIBUTE.finditer(inspect.cleandoc("\n" + attributes))
    }
    shown = {key: value for key, value in schema.items() if key != "title"}
    if summary:
        shown["description"] = summary
    if properties := schema.get("properties"):
        shown["properties"] = {
            name: {
                **{key: value for key, value in part.items() if key != "title"},
                **(
                    {"description": words}
                    if (words := said.get(name, said.get(f"{name}_")))
                    else {}
                ),
            }
            for name, part in properties.items()
        }
    return shown


_ATTRIBUTE = re.compile(r"^(?P<name>\w+): (?P<text>.+(?:\n[ ]+.+)*)", re.MULTILINE)


def _commands() -> list[Entry]:
    return [
        Entry(
            f"command.{plane}.{verb}",
            "command",
            ", ".join(
                f"<root>.<space>.cmd.<principal>.<uid>.{plane}.{verb}{'.' if key else ''}{key}"
                for key in commands.KEYS[plane, verb]
            ),
            body,
        )
        for (plane, verb), body in commands.BODIES.items()
    ]


def _queries() -> list[Entry]:
    return [
        Entry(
            f"query.{plane}.{name}",
            "query",
            ".".join(
                (
                    f"<root>.<space>.qry.<principal>.<uid>.{plane}.{name}",
                    *(f"<{field}>" for field in commands.QUERY_KEYS.get((plane, name), ())),
                )
            ),
            model,
        )
        for (plane, name), model in commands.QUERIES.items()
    ]


def _record(name: str, where: str, model: type[BaseModel]) -> Entry:
    return Entry(f"record.cp.{name}", "record", where, model)


_TIMER = "<root>.<space>.ept.<endpoint>.<instance>.<epoch>.<token>"
_SYS = "<root>.<space>.fact.sys"
_FACT = "<root>.<space>.fact.cp.<kind>.<endpoint>.<token>.<generation>"


def _turns() -> list[Entry]:
    prefix, fact = "<root>.<space>", "<root>.<space>.fact.adm"
    lost = f"{prefix}.res.<principal>.<uid>.adm.lease_lost.<epoch>-<seq>-<n>"
    shown: dict[str, tuple[str, type[BaseModel]]] = {
        "outcome": ("data of a result", admission.TurnOutcome),
        "turn": ("data of query.adm.request, of a repeated enqueue", admission.TurnView),
        "policy": ("data of query.adm.policy, of policy and drain", admission.PolicyView),
        "place": ("data of query.adm.queue with a request id", admission.PlaceView),
        "queue": ("data of query.adm.queue without one", admission.QueueView),
        "leases": ("data of query.adm.leases", admission.LeasesPage),
        "recoverable": ("data of query.adm.recoverable", admission.RecoverablePage),
        "events": ("data of query.adm.events", admission.EventsPage),
        "payload": ("data of query.adm.payload", admission.SealedPayload),
    }
    return [
        *(Entry(f"view.adm.{name}", "view", *entry) for name, entry in shown.items()),
        Entry(
            "view.adm.grant",
            "view",
            f"{prefix}.grant.<principal>.<uid>.<request id>.<generation>, data of admit",
            admission.Grant,
        ),
        Entry(
            "fact.adm.lease_lost",
            "fact",
            f"{fact}.lease_lost.<request id>.<generation>.<epoch>-<seq>-<n>, {lost}",
            admission.LeaseLost,
        ),
        Entry(
            "fact.adm.journal",
            "fact",
            f"{fact}.journal.<kind>.<epoch>-<seq>-<n>",
            admission.JournalFact,
        ),
    ]


def _caps() -> list[Entry]:
    where = "<root>.<space>.fact.cap.<kind>.<user>.<epoch>-<seq>-<n>"
    shown: dict[str, type[BaseModel]] = {
        "cap": caps.CapView,
        "permit": caps.Permit,
        "stop": caps.StopView,
        "bump": caps.BumpView,
        "settings": caps.CapSettings,
        "import": caps.ImportView,
    }
    return [
        *(
            Entry(f"view.cap.{name}", "view", "data of a result", model)
            for name, model in shown.items()
        ),
        Entry("view.cap.show", "view", "data of query.cap.show", caps.CapDetail),
        Entry("view.cap.list", "view", "data of query.cap.list", caps.CapsPage),
        *(
            Entry(f"fact.cap.{kind}", "fact", where.replace("<kind>", kind), model)
            for kind, model in caps.FACTS.items()
        ),
    ]


def _system() -> list[Entry]:
    shown: dict[str, tuple[str, type[BaseModel]]] = {
        "status": ("data of query.sys.status", system.StatusView),
        "digest": ("data of query.sys.digest", system.DigestView),
        "snapshots": ("data of query.sys.snapshots", system.SnapshotsView),
        "snapshot": ("data of query.sys.snapshot", system.SnapshotView),
        "trim": ("data of query.sys.trim", system.TrimmedView),
        "sent": ("data of query.sys.prune, of query.sys.ruleset", system.SentView),
        "rebase": ("data of query.sys.rebase", system.RebaseView),
    }
    facts: dict[str, type[BaseModel]] = {
        "ruleset": system.RulesetFact,
        "rebased": system.RebasedFact,
        "clock_set_back": system.ClockSetBackFact,
    }
    return [
        *(Entry(f"view.sys.{name}", "view", *entry) for name, entry in shown.items()),
        *(
            Entry(f"fact.sys.{kind}", "fact", f"{_SYS}.{kind}.<epoch>-<seq>-<n>", model)
            for kind, model in facts.items()
        ),
    ]


CATALOG: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            *_commands(),
            Entry(
                "result",
                "result",
                "<root>.<space>.res.<principal>.<uid>.<plane>.<verb>.<id>",
                results.Result,
            ),
            *_queries(),
            Entry("view.cp.checkpoint", "view", "data of a result", views.CheckpointView),
            Entry("view.cp.show", "view", "data of query.cp.show", views.CheckpointDetail),
            _record("spec", "cp.<endpoint>.<token>.spec", records.SpecRecord),
            _record("status", "cp.<endpoint>.<token>.status", records.StatusRecord),
            _record("prompt", "prompt.<endpoint>.<token>", records.PromptRecord),
            _record("answer", "answer.<endpoint>.<token>.<answer id>", records.AnswerRecord),
            _record("timer", f"{_TIMER}.schedule, {_TIMER}.armed", records.TimerBody),
            Entry(
                "fact.cp.settle",
                "fact",
                "<root>.<space>.epf.<endpoint>.cp.<token>",
                records.SettleFact,
            ),
            Entry("fact.cp.checkpoint", "fact", _FACT, views.CheckpointFact),
            Entry(
                "fact.cp.repaired", "fact", _FACT.replace("<kind>", "repaired"), views.RepairedFact
            ),
            *_turns(),
            *_caps(),
            *_system(),
        )
    }
)
"""Every message by its name, commands first."""
