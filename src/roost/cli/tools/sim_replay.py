"""roost sim replay: a recorded trace under one strategy or several, with the figures its papers report."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.common.options import json_option
from roost.cli.common.output import echo_err, print_json, print_table
from roost.core.placement.strategies import STRATEGIES
from roost.model.errors import Invalid, RoostError
from roost.model.spec.units import show_duration
from roost.server.plugins import load_plugins
from roost.sim.recordings.recording import RECORDED, read_history, replay_instead, replay_recorded
from roost.sim.report import EXTRA, Replay, can_draw, metric_names, show_figure, write_report

ALL = "all"
SEEDS = 3  # of openb: the standard deviation over seeds is below the differences that matter
PROGRESS_S = 2.0
OPTIONS = {
    "swf": {"file", "queues", "backfill", "protocol", "procs", "true_wait", "seed"},
    "openb": {"nodes", "workloads", "strategies", "seeds"},
    "azure-vm": {"file", "strategies"},
    "roost": {"file", "strategies"},
}
NAMES = {"file": "FILE", "queues": "--queue", "strategies": "--strategy"}  # where the option is called otherwise

Progress = Callable[[float], None]
Run = Callable[[str, Progress], Replay]

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_OR_FOLDER = click.Path(exists=True, path_type=Path)


@click.command()
@click.option("--trace", type=click.Choice(list(OPTIONS)), required=True, help="Kind of trace.")
@click.argument("file", type=EXISTING_OR_FOLDER, required=False)
@click.option("--nodes", type=EXISTING, help="openb: the list of nodes.")
@click.option("--workloads", type=EXISTING, help="openb: the list of pods.")
@click.option(
    "--strategy", "strategies", multiple=True, metavar="NAME", help="Placement strategy; repeatable, or `all`."
)
@click.option("--seeds", type=click.IntRange(1, 1_000), help=f"openb: how many runs to average. [default: {SEEDS}]")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="swf: queue order; repeatable, or `all`.")
@click.option("--backfill", is_flag=True, default=None, help="swf: EASY backfill.")
@click.option("--protocol", type=click.Choice(["windows", "log"]),
              help="swf: the whole log, or the ten windows of RLScheduler. [default: log]")  # fmt: skip
@click.option(
    "--procs", type=click.IntRange(1, 100_000_000), help="swf: processors, if the header is wrong or has none."
)
@click.option("--true-wait", is_flag=True, default=None, help="swf, windows: wfp3 and uni as meant, not as published.")
@click.option(
    "--seed", type=click.IntRange(0), help="swf, windows: which ten windows. [default: 1, the published ones]"
)
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write report.html and plots here.")
@json_option
def replay(trace: str, report: Path | None, as_json: bool, **given: Any) -> None:
    """Replay a trace of real work and print its metrics.

    Several strategies (or queue orders) are compared side by side. Exit code 2: the trace is invalid, or an option
    does not belong to it.

    Examples:
      roost sim replay --trace swf LOG.swf.gz --queue all --backfill
      roost sim replay --trace swf LOG.swf.gz --queue ours --backfill --protocol windows --json
      roost sim replay --trace openb --nodes NODES.csv --workloads PODS.csv --strategy fgd --seeds 3
      roost sim replay --trace azure-vm VMS.csv.gz --strategy best_fit --strategy first_fit --report out
      roost sim replay --trace roost DIR --json
      roost sim replay --trace roost DIR --strategy recorded --strategy best_fit

    Next: `--report DIR` draws the metrics.
    """
    if report and not can_draw():
        raise Failure(f"--report draws with {EXTRA}, which is not installed", "Try: pip install 'roost[plots]'")
    try:
        _check_options(trace, given)
        chosen, context, run = PREPARE[trace](given)
        replays = [run(name, ProgressPrinter(f"{trace} {name}")) for name in chosen]
        if report:
            about = ", ".join(f"{_option(name).strip('-').lower()} {value}" for name, value in context.items())
            written = write_report(report, f"{trace}: {about}", replays)
            echo_err(f"{written[0]} and {len(written) - 1} more files written")
    except (RoostError, OSError) as error:
        refuse(error, as_json)
    _show(replays, "queue" if trace == "swf" else "strategy", context, as_json)


def _prepare_swf(given: dict[str, Any]) -> tuple[list[str], dict[str, Any], Run]:
    from roost_lab.traces.swf import QUEUES, SEED, read_log, replay_swf

    chosen = _chosen("queue", given["queues"], QUEUES)
    protocol = given["protocol"] or "log"
    if protocol == "log":
        for name in ("true_wait", "seed"):
            if given[name] is not None:
                raise Invalid(_option(name), "belongs to --protocol windows")
    backfill, true_wait = bool(given["backfill"]), bool(given["true_wait"])
    seed = SEED if given["seed"] is None else given["seed"]
    log = read_log(_needed(given, "file"), given["procs"])
    context = {"file": log.name, "procs": log.procs, "protocol": protocol, "backfill": backfill}
    if protocol == "windows":
        context |= {"true_wait": true_wait, "seed": seed}
    return chosen, context, lambda name, answer: replay_swf(log, name, backfill, protocol, answer, true_wait, seed)


def _prepare_openb(given: dict[str, Any]) -> tuple[list[str], dict[str, Any], Run]:
    from roost_lab.traces.openb import OPENB_STRATEGIES, replay_openb

    chosen = _chosen("strategy", given["strategies"], (*OPENB_STRATEGIES, *load_plugins()))
    nodes, workloads = _needed(given, "nodes"), _needed(given, "workloads")
    seeds = given["seeds"] or SEEDS
    context = {"nodes": nodes.name, "workloads": workloads.name, "seeds": seeds}
    return chosen, context, lambda name, answer: replay_openb(nodes, workloads, name, seeds, answer)


def _prepare_azure(given: dict[str, Any]) -> tuple[list[str], dict[str, Any], Run]:
    from roost_lab.traces.azure import AZURE_STRATEGIES, replay_azure

    chosen = _chosen("strategy", given["strategies"], (*AZURE_STRATEGIES, *load_plugins()))
    file = _needed(given, "file")
    return chosen, {"file": file.name}, lambda name, answer: replay_azure(file, name, answer)


def _prepare_roost(given: dict[str, Any]) -> tuple[list[str], dict[str, Any], Run]:
    load_plugins()
    chosen = _chosen("strategy", given["strategies"] or (RECORDED,), (RECORDED, *STRATEGIES))
    file = _needed(given, "file")
    history = read_history(file, ProgressPrinter("roost: reading"))
    if history.same_decisions is None:
        echo_err("the recording begins in the middle of a life: decisions cannot be compared")
    elif not history.same_decisions:
        echo_err(f"entry {history.first_difference} is decided otherwise now than when it was recorded")

    def run(name: str, report: Progress) -> Replay:
        return replay_recorded(history) if name == RECORDED else replay_instead(history, name, report)

    return chosen, {"file": file.name, **history.facts()}, run


PREPARE = {"swf": _prepare_swf, "openb": _prepare_openb, "azure-vm": _prepare_azure, "roost": _prepare_roost}


def _check_options(trace: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value not in (None, ()) and name not in OPTIONS[trace]:
            homes = " and ".join(option for option in OPTIONS if name in OPTIONS[option])
            raise Invalid(_option(name), f"does not belong to the trace {trace}, but to {homes}")
    if given["file"] is not None and given["file"].is_dir() and trace != "roost":
        raise Invalid("FILE", f"{str(given['file'])!r} is a directory")


def _chosen(what: str, names: Sequence[str], existing: Sequence[str]) -> list[str]:
    if not names:
        raise Invalid(f"--{what}", f"is missing; one or more of {', '.join(existing)}, or {ALL}")
    for name in names:
        if name != ALL and name not in existing:
            code = "invalid_strategy" if what == "strategy" else ""
            raise Invalid(f"--{what}", f"no {what} is called {name!r}; there are {', '.join(existing)}", code=code)
    return list(existing) if ALL in names else list(dict.fromkeys(names))


def _needed(given: dict[str, Any], name: str) -> Path:
    path: Path | None = given[name]
    if path is None:
        raise Invalid(_option(name), "is missing; this trace needs it")
    return path


def _option(name: str) -> str:
    return NAMES.get(name, f"--{name.replace('_', '-')}")


class ProgressPrinter:
    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._last = time.monotonic()

    def __call__(self, share: float, done: str = "") -> None:
        now = time.monotonic()
        if now - self._last < PROGRESS_S or share <= 0:
            return
        self._last = now
        left = show_duration(int((now - self._began) * (1 - min(share, 1.0)) / share) * 1_000)
        echo_err(f"{self._what}: {done or f'{min(share, 1.0):.0%}'}, {left} left")


def _show(replays: list[Replay], axis: str, context: dict[str, Any], as_json: bool) -> None:
    if as_json:
        flat = [
            {"trace": run.trace, axis: run.strategy, **context, **run.metrics, **run.details, "spread": run.spread}
            for run in replays
        ]
        print_json(flat[0] if len(flat) == 1 else {"replays": flat})
        return
    names = metric_names(replays)
    rows = [
        (replay.strategy, *(show_figure(replay.metrics[name]) if name in replay.metrics else "-" for name in names))
        for replay in replays
    ]
    print_table((axis.upper(), *(name.upper() for name in names)), rows)
    for replay in replays:
        _show_details(replay)


def _show_details(item: Replay) -> None:
    for name, value in item.details.items():
        if not isinstance(value, list):
            click.echo(f"{item.strategy}: {name.replace('_', ' ')}: {_word(value)}")
        elif value:
            rows = [[_word(cell) for cell in row.values()] for row in value]
            print_table([column.upper() for column in value[0]], rows)


def _word(value: Any) -> str:
    return {True: "yes", False: "no", None: "-"}[value] if value is None or isinstance(value, bool) else str(value)


def refuse(error: RoostError | OSError, as_json: bool) -> NoReturn:
    if as_json:
        code, path = (error.code, error.path) if isinstance(error, RoostError) else ("unreadable", "")
        print_json({"error": {"code": code, "message": str(error), "path": path}})
    echo_err(str(error))
    sys.exit(USAGE)
