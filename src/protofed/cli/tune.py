"""``protofed tune``: the settings of several methods, found with the same budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.compare import Data, NetName, Rounds, Seeds, Spec, shared_spec
from protofed.cli.options import (
    FormatOption,
    JsonOption,
    RunsOption,
    ScoreOption,
    SetOption,
    StaleOption,
    WorkersOption,
    chosen_format,
    parse_workers,
    run_options,
)
from protofed.cli.sweep import RUNS, compare_words, search_with_progress

if TYPE_CHECKING:
    from protofed.analysis.tuning import TunedMethod
    from protofed.experiment.result import ScoreRule

FINAL_SEEDS = 3


def tune_command(
    methods: Annotated[list[str], typer.Argument(help="Methods by name.", show_default=False)],
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings tried for each method.")] = 9,
    rungs: Annotated[int, typer.Option(min=1, help="Stages; 1 prunes nothing.")] = 2,
    eta: Annotated[int, typer.Option(min=2, help="1 in ETA trials reaches the next stage.")] = 3,
    lr: Annotated[
        str | None, typer.Option(help="Learning rates, low..high, log:low..high or a,b,c.")
    ] = None,
    seeds: Seeds = 1,
    score: ScoreOption = None,
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = RUNS,
) -> None:
    """Find good settings for several methods, each with the same number of trials.

    The learning rate and the one or two fields that matter most to a method are searched, FedAvg's
    learning rate too. Scores are taken on images held out from each client, never on test images.
    It ends with the command that compares the tuned methods on the test images. After Ctrl-C the
    same command resumes.
    """
    from protofed.analysis.search import search_rule
    from protofed.analysis.tuning import LEARNING_RATES, TunedMethod, plan_tuning, tuning_document
    from protofed.cli.output import print_document

    form, how = chosen_format(form, as_json), run_options(stale, None, None)
    shared = shared_spec(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    plans = plan_tuning(methods, shared, runs, trials, seeds, rungs, eta, lr or LEARNING_RATES)
    rule = search_rule(plans[0], score)
    tuned = []
    for number, plan in enumerate(plans, start=1):
        typer.echo(f"{plan.method} ({number} of {len(plans)})", err=True)
        trials_made = search_with_progress(plan, rule, parse_workers(workers), how)
        tuned.append(TunedMethod(plan, trials_made))
    print_document(tuning_document(tuned, rule, final_comparison(tuned, rule)), form)
    if any(one.best is None for one in tuned):
        raise typer.Exit(1)


def final_comparison(tuned: Sequence[TunedMethod], score: ScoreRule) -> str:
    """The command that compares the tuned methods as they are to be reported: on test images."""
    plan = tuned[0].plan
    shared = {n: value for n, value in plan.raw.items() if n not in ("validation", "method")}
    seeds = ["--seeds", str(max(FINAL_SEEDS, plan.seeds))]
    rest = compare_words(shared, plan.experiment, score, plan.runs)
    return shlex.join(["protofed", "compare", *(one.word for one in tuned), *seeds, *rest])
