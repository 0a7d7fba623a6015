"""roost lab: this Roost under real faults, with real servers, agents and stores."""

import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from roost.cli.common.exit_codes import FAILED, Failure
from roost.cli.common.options import SIZE, json_option
from roost.cli.common.output import echo_err, print_json, print_table

if TYPE_CHECKING:
    from roost_lab.chaos.run import ChaosReport
    from roost_lab.recovery.run import RecoveryReport

SECONDS = 30.0
SHOWN_MAX = 10  # failures of each check; the evidence has all
STORES = ("sqlite", "postgres", "etcd")
RECOVERY_STORES = ("sqlite", "memory", "postgres", "etcd")
NOT_INSTALLED = "the lab is not installed", "Try: pip install 'roost[lab]'"


@click.group()
def lab() -> None:
    """Experiments with real servers and agents on this machine.

    Examples:
      roost lab chaos --store sqlite
      roost lab recovery --store sqlite

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
        raise Failure(*NOT_INSTALLED) from None
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


@lab.command()
@click.option("--store", "stores", type=click.Choice(RECOVERY_STORES), multiple=True,
              help="Store; repeatable. [default: all]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Rounds on each store.")
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of jobs and kills. [default: a new one]")
@click.option("--log-max", type=SIZE, default="50MiB", show_default=True, help="The largest log.")
@json_option
def recovery(stores: tuple[str, ...], rounds: int, seed: int | None, log_max: int, as_json: bool) -> None:
    """Kill processes while inputs, logs and outputs are on their way, and compare all bytes at every server.

    A round submits four jobs with inputs, logs of 1 KiB to 50 MiB and outputs. Meanwhile, others are read and deleted.
    At random moments the leader is killed with SIGKILL, and up to two others: agents, keepers, nodes, servers, S3.
    Then every server must have every byte of logs and outputs, or refuse them with the reason. The same seed gives
    the same jobs and kills. Exit code 1: bytes are missing, torn or wrong; the evidence is kept in a directory.

    Examples:
      roost lab recovery                                 20 rounds on each store
      roost lab recovery --store etcd --rounds 5 --seed 7

    Next: repeat a round that failed with the same `--seed`.
    """
    try:
        from roost_lab.components import Missing
        from roost_lab.recovery.run import run_recovery
    except ImportError:
        raise Failure(*NOT_INSTALLED) from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes do not outlive this command
    seed = int(time.time()) if seed is None else seed
    reports = []
    for store in stores or RECOVERY_STORES:
        echo_err(f"{store}: seed {seed}, {rounds} rounds")
        try:
            report = run_recovery(store, seed, rounds, _progress(), log_bytes_max=log_max)
        except Missing as missing:
            echo_err(f"{store}: skipped: {missing}")
            continue
        except TimeoutError as error:
            raise Failure(f"{store}: {error}", f"Repeat: roost lab recovery --store {store} --seed {seed}") from None
        reports.append(report)
        if not as_json:
            _show_recovery(report)
    if as_json:
        print_json({"reports": reports})
    sys.exit(0 if all(report.is_good for report in reports) else FAILED)


def _show_recovery(report: "RecoveryReport") -> None:
    click.echo(f"{report.store}: {report.good} of {len(report.rounds)} rounds without a fault, {report.took_s:g} s")
    click.echo(", ".join(f"{count:,} {name}" for name, count in sorted(report.counts.items())))
    for done in report.rounds:
        for line in (*done.wrong, *done.refused)[:SHOWN_MAX]:
            click.echo(f"round {done.number}: {line}")
    if report.evidence:
        click.echo(f"the evidence is in {report.evidence}")


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
