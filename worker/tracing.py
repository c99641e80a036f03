"""OpenTelemetry: the trace context a client sends and continues, and a span per command answered.

All of it needs the extra ``otel``, and none of it is imported before somebody uses it: a client
sends a context only if its own program has a span, a worker makes spans only if the ``OTEL_…``
variables name an exporter. No span decides or delays anything; a worker that cannot export its
spans serves on.
"""

import sys
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Final

from schemas import headers
from worker import logs
from worker.version import version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import TracerProvider as AnyProvider

NAME: Final = "tidegate"
"""Of our tracer, and of the service unless ``OTEL_SERVICE_NAME`` says otherwise."""

FLUSH_S: Final = 1.5
"""How long the end of a worker may be put off by spans that are still to be exported."""

_OTLP: Final = {"grpc": "otlp_proto_grpc"}
_OTLP_BY_DEFAULT: Final = "otlp_proto_http"

log = logs.get()


def current_traceparent() -> str | None:
    """The W3C trace context of the span that is active here; ``None`` if none is."""
    # Nobody has a span who has not imported this.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(headers.TRACEPARENT)


def context_of(traceparent: str | None) -> "Context":
    """The OpenTelemetry context in which whatever follows from a message belongs.

    Use it as ``tracer.start_as_current_span(name, context=context_of(result.traceparent))``.

    Args:
        traceparent: As a result, a grant or a fact carried it; ``None`` begins a new trace.

    Raises:
        ImportError: The extra ``otel`` is not installed.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return Context()
    return TraceContextTextMapPropagator().extract({headers.TRACEPARENT: traceparent}, Context())


class Spans:
    """Makes the spans of one worker.

    Args:
        provider: Where they go.
    """

    def __init__(self, provider: "AnyProvider") -> None:
        self._tracer = provider.get_tracer(NAME, version())

    def answered(
        self,
        space: str,
        plane: str,
        verb: str,
        *,
        status: str,
        outcome: str,
        sequence: int,
        traceparent: str | None,
        began_ns: int,
    ) -> None:
        """Make the span of one command that has been answered; it ends now.

        It holds words of closed sets and the sequence: no payload, no principal, no id.

        Args:
            space: The tenant.
            plane: ``cp``, ``adm``, ``cap`` or ``sys``.
            verb: The verb, one of the contract's.
            status: Of the result.
            outcome: Of the result.
            sequence: Of the command.
            traceparent: The command's; without one the span begins a trace.
            began_ns: When the command was taken up, as ``now_ns`` told then.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        # Spans may have been asked for since; and a clock that was set back must not let one end
        # before it begins.
        ended_ns = max(began_ns, time.time_ns())
        span = self._tracer.start_span(
            f"{plane}.{verb}",
            context_of(traceparent),
            SpanKind.CONSUMER,
            {
                "tidegate.space": space,
                "tidegate.plane": plane,
                "tidegate.verb": verb,
                "tidegate.status": status,
                "tidegate.outcome": outcome,
                "tidegate.sequence": sequence,
            },
            start_time=began_ns or ended_ns,
        )
        if status == "failed":
            span.set_status(StatusCode.ERROR)
        span.end(ended_ns)


_spans: Spans | None = None
_own: "TracerProvider | None" = None


def spans() -> Spans | None:
    """What makes this process's spans; ``None`` if nobody wants any."""
    return _spans


def now_ns() -> int:
    """This machine's clock, for ``began_ns``; 0 if nobody wants spans. It decides nothing."""
    return 0 if _spans is None else time.time_ns()


def use(provider: "AnyProvider | None") -> None:
    """Make spans with a provider of the embedding program's; ``None`` makes none from now on."""
    global _spans
    _spans = None if provider is None else Spans(provider)


def exporters(env: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters that the user's ``OTEL_…`` variables ask for; empty if tracing is off.

    Args:
        env: The environment.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = env.get("OTEL_TRACES_EXPORTER", "").strip()
    if named:
        words = (word.strip() for word in named.split(","))
        return tuple(_entry_point(word, env) for word in words if word and word != "none")
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return (_entry_point("otlp", env),) if any(env.get(name) for name in endpoints) else ()


def start(env: Mapping[str, str]) -> None:
    """Begin to make spans, if the user's ``OTEL_…`` variables ask for it.

    Args:
        env: The environment; the SDK reads what concerns it from the process's own.
    """
    global _own
    wanted = exporters(env)
    if not wanted:
        return
    try:
        _own = _provider(wanted)
    except Exception as error:
        # Whatever a library makes of the user's variables, the worker serves without spans.
        log.warning("traces_off", reason=type(error).__name__, exporters=list(wanted))
        return
    use(_own)
    log.info("traces_on", exporters=list(wanted))


def stop(limit_s: float = FLUSH_S) -> None:
    """Export what is left, for so long at most, and make no more spans."""
    global _own
    provider, _own = _own, None
    use(None)
    if provider is not None:
        # An exporter may wait for its endpoint far longer than a worker may take to end.
        flushing = threading.Thread(target=provider.shutdown, name="traces-flush", daemon=True)
        flushing.start()
        flushing.join(limit_s)


def _entry_point(word: str, env: Mapping[str, str]) -> str:
    if word != "otlp":
        return word
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((env[name] for name in names if env.get(name)), "")
    return _OTLP.get(protocol, _OTLP_BY_DEFAULT)


def _provider(wanted: tuple[str, ...]) -> "TracerProvider":
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource({SERVICE_VERSION: version()}).merge(Resource.create())
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: NAME}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in wanted:
        (found,) = metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
        provider.add_span_processor(BatchSpanProcessor(found.load()()))
    return provider
