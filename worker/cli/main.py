"""The command ``tidegate``: what there is, and what each error means to a shell."""

import os
import sys
from typing import Annotated

import typer

from schemas.codes import BadInput
from worker.cli import (
    adm,
    bench,
    cap,
    common,
    completion,
    config,
    cp,
    demo,
    doctor,
    ending,
    identity,
    keys,
    ledger,
    repeating,
    run_worker,
    schema,
    setup,
    soak,
    status,
    top,
    witness,
)
from worker.errors import TidegateError

app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable checkpoints, fair admission and spending caps, on NATS JetStream.\n\n"
    + ending.EXIT_CODES,
    epilog=common.examples(
        "tidegate demo",
        "tidegate run",
        'tidegate cp mint runs.nightly deploy-42 -d +15m --title "Deploy build 42?"',
        "tidegate cp resume runs.nightly deploy-42 --answer yes",
        "tidegate doctor",
    ),
)
run_worker.register(app)
setup.register(app)
status.register(app)
top.register(app)
app.add_typer(cp.app, name="cp")
app.add_typer(adm.app, name="adm")
app.add_typer(cap.app, name="cap")
app.add_typer(ledger.app, name="ledger")
app.add_typer(identity.app, name="identity")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")
schema.register(app)
demo.register(app)
soak.register(app)
doctor.register(app)
witness.register(app)
completion.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from worker.version import version

        common.emit({}, False, f"tidegate {version()}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Entry point: run the command line and leave with a code that means something."""
    try:
        app(prog_name="tidegate")
    except (TidegateError, BadInput) as error:
        if "--json" in sys.argv:
            common.emit(ending.error_object(error), True, "")
        common.say(f"tidegate: {error.message}")
        if (hint := ending.hint(error)) is not None:
            common.say(f"  {hint}")
        sys.exit(ending.exit_code(error))
    except KeyboardInterrupt:
        _say_unanswered()
        sys.exit(ending.INTERRUPTED)
    except SystemExit as ended:
        if ended.code == ending.INTERRUPTED:  # as which an interrupt comes out of typer
            _say_unanswered()
        raise
    except ending.Ended as ended:
        _say_unanswered()
        sys.exit(128 + ended.number)
    except BrokenPipeError:
        common.discard_output()
        sys.exit(ending.FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        common.say(f"tidegate: {where}{os.strerror(error.errno or 0)}")
        common.discard_output()
        sys.exit(ending.FAILED)


def _say_unanswered() -> None:
    """An interrupt leaves open what became of a command, as a timeout does."""
    if (line := repeating.unanswered()) is not None:
        common.say("tidegate: interrupted; the outcome is unknown")
        common.say(f"  {ending.REPEAT}{line}")


if __name__ == "__main__":
    run()
