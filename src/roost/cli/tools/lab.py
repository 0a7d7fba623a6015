"""roost lab: this Roost under real faults, with real servers, agents and stores."""

import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from roost.cli.common.exit_codes import FAILED, Failure
from roost.cli.common.options import json_option
from roost.cli.common.output import echo_err, print_json, print_table

if TYPE_CHECKING:
    from roost_lab.chaos.run import ChaosReport

SECONDS = 30.0
SHOWN_MAX = 10  # failures of each check; the evidence has all
STORES = ("sqlite", "postgres", "etcd")


@click.group()
def lab() -> None:
    """Experiments with real servers and agents on this machine.

    Examples:
      roost lab chaos --store sqlite

    Next: `roost lab chaos --help`.
    """


@lab.command()
@click.option("--store", "stores", type=click.Choice(STORES), multiple=True, help="Store; repeatable. [default: all]")
@click.option("--seconds", type=click.FloatRange(1.0, 7 * 86_400), default=SECONDS, show_default=True,
              help="How long faults occur, for each store.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of faults and jobs. [default: a new one]")
@click.option("--rate", type=click.FloatRange(0.1, 1_000), default=3.0, show_default=True, help="Jobs per second.")
@click.option("--keep", is_flag=True, help="Keep the evidence also when all checks pass.")
@json_option
def chaos(stores: tuple[str, ...], seconds: float, seed: int | None, rate: float, keep: bool, as_json: bool) -> None:
    """Run jobs on real servers and agents while processes, connections, stores and disks fail, and check every answer.

    Jobs write down each start and end. Afterwards every answer that users got is checked: accepted jobs, runs,
    overlaps of fenced work, log bytes, streams of changes, `why`, and free capacity. The same seed gives the same
    faults. Exit code 1: a check failed; the evidence is kept in a directory.

    Examples:
      roost lab chaos                                    30 seconds on each store
      roost lab chaos --store sqlite --seconds 3600
      roost lab chaos --store etcd --seed 7 --json

    Next: every broken promise is printed; repeat it with the same `--seed`.
    """
    try:
        from roost_lab.chaos.run import run_chaos
        from roost_lab.components import Missing
    except ImportError:
        raise Failure("the lab is not installed", "Try: pip install 'roost[lab]'") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes and mounts do not outlive this command
    seed = int(time.time()) if seed is None else seed
    reports = []
    for store in stores or STORES:
        echo_err(f"{store}: seed {seed}, {seconds:g} s of faults")
        try:
            report = run_chaos(store, seed, seconds, _progress(), rate=rate, keep=keep)
        except Missing as missing:
            echo_err(f"{store}: skipped: {missing}")
            continue
        except TimeoutError as error:
            raise Failure(f"{store}: {error}", f"Repeat: roost lab chaos --store {store} --seed {seed}") from None
        reports.append(report)
        if not as_json:
            _show(report)
    if as_json:
        print_json({"reports": reports})
    sys.exit(0 if all(report.is_good for report in reports) else FAILED)


def _progress() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda line: echo_err(f"{time.monotonic() - began:6.1f} s  {line}")


def _show(report: "ChaosReport") -> None:
    done = [item for item in report.faults if not item.cannot]
    click.echo(f"{report.store}: {len(done)} faults in {report.seconds:g} s, {report.took_s:g} s in all")
    click.echo(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.counts.items()))
    for kind, cannot in sorted({(item.fault.kind, item.cannot) for item in report.faults if item.cannot}):
        click.echo(f"{kind} was not done: {cannot}")
    print_table(
        ("CHECK", "CHECKED", "WRONG"),
        [(result.check, f"{result.checked:,}", str(len(result.wrong))) for result in report.checks],
    )
    for result in report.checks:
        for line in result.wrong[:SHOWN_MAX]:
            click.echo(f"{result.check}: {line}")
        if len(result.wrong) > SHOWN_MAX:
            click.echo(f"{result.check}: and {len(result.wrong) - SHOWN_MAX} more")
    if report.evidence:
        click.echo(f"the evidence is in {report.evidence}")
