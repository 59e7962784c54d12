"""A search for good settings: trials with paired seeds, pruned by rungs, on held-out images.

No trial sees a test image. Trials are asked for in batches of a constant size and all that is drawn
comes from a fixed seed, so the way of a search depends neither on the number of workers nor on how
often it was interrupted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, Protocol

from protofed.analysis.finished_runs import format_value, short_field_name
from protofed.analysis.parallel_runs import DEFAULT_OPTIONS, Watch, run_all
from protofed.analysis.run_process import RunOptions
from protofed.analysis.search_axes import SearchAxis, parse_axis
from protofed.analysis.sweep import GridCell, GridVariant, grid_cells
from protofed.errors import ProtofedError, count_noun
from protofed.experiment.result import ScoreRule, count_evaluations, read_evaluations
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import pause_round
from protofed.federation.evaluation import ENOUGH_FOR_MEAN, last_5_mean, score_rules
from protofed.runtime.text_tables import RankedCell, TableDocument, TextTable
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import Raw, choose_named, parse_experiment, set_value

VALIDATION = 0.2  # share of each client's images, where the spec names none
BATCH = 8  # trials that are asked for at a time, whatever the number of workers
PATIENCE = 100  # settings that were tried before, in a row, after which a search ends
ROUNDS = ("rounds", "evaluate_every")  # what rungs are counted in


@dataclass(frozen=True)
class SearchPlan:
    """A search after all checks: what is searched, and the protocol, which is the same for all.

    `rungs` are the rounds after which trials are compared: of all that have come so far, the best
    1/`eta` go on. The last rung is the whole run. `plan_search` makes it, `run_search` runs it.
    """

    method: str
    axes: tuple[SearchAxis, ...]
    raw: Raw  # what all trials share
    runs: Path
    experiment: Experiment  # as it is before anything is searched
    trials: int
    seeds: int
    rungs: tuple[int, ...]
    eta: int

    @property
    def combinations(self) -> int | None:
        """The number of different settings, if they can be counted."""
        values = [axis.every_value() for axis in self.axes]
        counts = [len(each) for each in values if each is not None]
        return math.prod(counts) if len(counts) == len(values) else None

    @property
    def exhaustive(self) -> bool:
        """Whether there are enough trials for every combination."""
        return self.combinations is not None and self.combinations <= self.trials


def plan_search(
    method: str,
    axes: Sequence[str],
    raw: Raw,
    runs: Path = Path("runs"),
    trials: int = 20,
    seeds: int = 1,
    rungs: int = 3,
    eta: int = 3,
) -> SearchPlan:
    """Check a search completely before anything runs.

    `method` is a command-line name, `axes` are texts for `parse_axis`, `raw` holds what all trials
    share. With one rung nothing is pruned. ::

        plan_search("fedprox", ["method.mu=0.001..1"], {"rounds": 18}, seeds=2)
    """
    shared = {"validation": VALIDATION, **choose_named(raw, "method", method)}
    experiment = parse_experiment(shared)
    made = tuple(parse_axis(text, shared) for text in axes)
    names = [axis.field for axis in made]
    if len(set(names)) < len(names):
        raise ProtofedError("search: a field is named more than once")
    if rungs > 1 and set(names) & set(ROUNDS):
        raise ProtofedError(
            f"search {' and '.join(sorted(set(names) & set(ROUNDS)))}: trials are pruned after the "
            "same rounds, so all of them must have the same",
            hint="<rungs=1> prunes nothing",
        )
    rounds = rung_rounds(experiment, rungs, eta)
    return SearchPlan(method, made, shared, runs, experiment, trials, seeds, rounds, eta)


def search_rule(plan: SearchPlan, asked: ScoreRule | None) -> ScoreRule:
    """The rule by which trials are scored: what was asked for, else what suits a whole run.

    Where the rounds are searched, some runs may be short, so it is the last round then.
    """
    if asked is not None:
        return asked
    if any(axis.field in ROUNDS for axis in plan.axes):
        return "last"
    evaluations = count_evaluations(plan.experiment.rounds, plan.experiment.evaluate_every)
    return "last_five" if evaluations >= ENOUGH_FOR_MEAN else "last"


def rung_rounds(experiment: Experiment, rungs: int, eta: int) -> tuple[int, ...]:
    """The rounds of up to `rungs` rungs, each `eta` times as many as the one before.

    18 rounds with 3 rungs and `eta` 3 give 2, 6 and 18. A rung is a round that is scored anyway, so
    short runs have fewer.
    """
    shares = [experiment.rounds / eta**up for up in reversed(range(rungs))]
    rounds = [pause_round(experiment, math.ceil(share)) for share in shares]
    return tuple(dict.fromkeys(rounds))


Settings = dict[str, object]  # values by field
TrialState = Literal["running", "finished", "pruned", "failed"]


@dataclass
class SearchTrial:
    """One trial: settings, a run per seed, and what became of it.

    `scores` are by seed, after the `rounds` that it has come to; `fault` says why it failed.
    """

    number: int
    settings: Settings
    cells: Sequence[GridCell]
    state: TrialState = "running"
    rounds: int = 0
    scores: list[float] = field(default_factory=list)
    by_rung: dict[int, float | None] = field(default_factory=dict)  # none where it failed
    fault: str = ""

    @property
    def mean(self) -> float | None:
        """The score: the mean over seeds; None if it has none, or failed later."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def label(self) -> str:
        """Its settings in short form, as ``mu=0.1, training.lr=0.03``."""
        return describe_settings(self.settings)

    def to_dict(self) -> dict[str, object]:
        """As plain data, ready for JSON."""
        return {
            "trial": self.number,
            "settings": self.settings,
            "state": self.state,
            "rounds": self.rounds,
            "score": self.mean,
            "sd": self.deviation,
            "scores": self.scores,
            "digests": [cell.experiment.digest for cell in self.cells],
            **({"fault": self.fault} if self.fault else {}),
        }


def describe_settings(settings: Mapping[str, object]) -> str:
    """Values by field in short form, as ``mu=0.1, training.lr=0.03``."""
    return ", ".join(f"{short_field_name(f)}={format_value(v)}" for f, v in settings.items())


Play = Callable[[Sequence[GridCell]], Mapping[Path, float | str]]


def run_search(plan: SearchPlan, play: Play) -> Iterator[SearchTrial]:
    """Run a search; yield every trial as soon as it is finished, pruned or failed.

    `play` runs cells as far as they say, and returns for each folder the score to maximise, or what
    went wrong (`play_cells` with real runs). Finished runs are read and the sampler has a fixed
    seed, so an interrupted search takes the same way again.
    """
    sampler = _sampler(plan)
    seen: list[SearchTrial] = []
    while chosen := sampler.ask(min(BATCH, plan.trials - len(seen))):
        batch = [_make_trial(plan, len(seen) + n, own) for n, own in enumerate(chosen, start=1)]
        seen += batch
        yield from _climb(plan, batch, seen, play)
        sampler.tell(batch)
        if all(trial.state == "failed" for trial in seen):
            reasons = "\n".join(dict.fromkeys(trial.fault for trial in seen))
            raise ProtofedError(f"every trial failed:\n{reasons}")


def _make_trial(plan: SearchPlan, number: int, settings: Settings) -> SearchTrial:
    raw = plan.raw
    for name, value in settings.items():
        raw = set_value(raw, name, value)
    variant = GridVariant(f"trial {number}: {describe_settings(settings)}", raw)
    try:
        cells = grid_cells([variant], range(plan.seeds), plan.runs)
    except ProtofedError as fault:  # each value is right, but not beside the others
        return SearchTrial(number, settings, (), "failed", fault=str(fault))
    return SearchTrial(number, settings, cells)


def _climb(
    plan: SearchPlan, batch: Sequence[SearchTrial], seen: Sequence[SearchTrial], play: Play
) -> Iterator[SearchTrial]:
    """Play a batch from rung to rung; after each, yield those for which it was the last."""
    yield from (trial for trial in batch if trial.state == "failed")
    going = [trial for trial in batch if trial.state == "running"]
    for rung in plan.rungs:
        last = rung == plan.rungs[-1]
        stop = None if last else rung
        cells = [cell._replace(stop_after=stop) for trial in going for cell in trial.cells]
        found = play(cells) if cells else {}
        for trial in going:
            _record(trial, rung, stop, found)
        best = {trial.number for trial in best_of_rung(seen, rung, plan.eta)}
        for trial in going:
            if trial.state == "running" and (last or trial.number not in best):
                trial.state = "finished" if last else "pruned"
        yield from (trial for trial in going if trial.state != "running")
        going = [trial for trial in going if trial.state == "running"]


def _record(
    trial: SearchTrial, rung: int, stop: int | None, found: Mapping[Path, float | str]
) -> None:
    """Put down what a trial has come to at a rung; without one of its seeds it has failed."""
    results = [found[cell.folder] for cell in trial.cells]
    faults = [result for result in results if isinstance(result, str)]
    if faults:
        trial.state, trial.fault, trial.scores = "failed", faults[0], []
    else:
        trial.scores = [result for result in results if not isinstance(result, str)]
        trial.rounds = pause_round(trial.cells[0].experiment, stop)
    trial.by_rung[rung] = trial.mean


def best_of_rung(seen: Sequence[SearchTrial], rung: int, eta: int) -> list[SearchTrial]:
    """The trials that may go on after a rung: the best 1/`eta` of all that have come to it.

    The number is rounded up; those that failed there count, but never go on. Of equal scores, the
    earlier trial is the better.
    """
    scores = {trial.number: trial.by_rung[rung] for trial in seen if rung in trial.by_rung}
    scored = [trial for trial in seen if scores.get(trial.number) is not None]
    ranked = sorted(scored, key=lambda trial: (-(scores[trial.number] or 0.0), trial.number))
    return ranked[: math.ceil(len(scores) / eta)]


def rank_trials(trials: Sequence[SearchTrial]) -> list[SearchTrial]:
    """Trials from the best to the worst: more rounds before fewer, then by score.

    Scores after different rounds do not compare, so a pruned trial never stands above a finished
    one.
    """
    order = {"finished": 0, "pruned": 1, "running": 2, "failed": 3}

    def place(trial: SearchTrial) -> tuple[int, int, float, int]:
        rounds = 0 if trial.state == "finished" else -trial.rounds
        return order[trial.state], rounds, -(trial.mean or 0.0), trial.number

    return sorted(trials, key=place)


def best_trial(trials: Sequence[SearchTrial]) -> SearchTrial | None:
    """The finished trial with the best score; None if none was finished."""
    return next((trial for trial in rank_trials(trials) if trial.state == "finished"), None)


def play_cells(
    cells: Sequence[GridCell],
    workers: int,
    watch: Watch,
    rule: ScoreRule,
    options: RunOptions = DEFAULT_OPTIONS,
) -> dict[Path, float | str]:
    """Run cells as far as they say, side by side; return each folder's score or its fault.

    The score is the mean accuracy on the held-out images of all domains that clients train on.
    """
    faults = run_all(cells, workers, watch, options)
    return {
        cell.folder: faults[cell.folder] if cell.folder in faults else held_out_score(cell, rule)
        for cell in cells
    }


def held_out_score(cell: GridCell, rule: ScoreRule) -> float:
    """The score of a run after the rounds that its cell asks for, even if it has come further.

    A domain that is left out of training is not counted: it must not be tuned on either.
    """
    end = pause_round(cell.experiment, cell.stop_after)
    found = [one.scores for one in read_evaluations(RunDir(cell.folder)) if one.round <= end]
    scores = last_5_mean(found) if rule == "last_five" else found[-1]
    return scores.without(cell.experiment.leave_out).mean or 0.0


class SettingsSampler(Protocol):
    """Chooses the settings of trials and learns from what became of them."""

    def ask(self, count: int) -> list[Settings]:
        """Up to `count` settings that were not tried before; none if there are no more."""
        ...

    def tell(self, trials: Sequence[SearchTrial]) -> None:
        """Trials in the order in which they were asked for."""
        ...


def _sampler(plan: SearchPlan) -> SettingsSampler:
    return EveryCombination(plan.axes) if plan.exhaustive else OptunaSampler(plan.axes)


class EveryCombination:
    """All combinations in order, where there are trials enough; needs no Optuna."""

    def __init__(self, axes: Sequence[SearchAxis]):
        names = [axis.field for axis in axes]
        rows = product(*(axis.every_value() or () for axis in axes))
        self.left = (dict(zip(names, row, strict=True)) for row in rows)

    def ask(self, count: int) -> list[Settings]:
        """The next ones."""
        return list(islice(self.left, count))

    def tell(self, trials: Sequence[SearchTrial]) -> None:
        """Nothing can be learnt."""


class OptunaSampler:
    """Optuna's tree-structured Parzen estimator with a fixed seed.

    It ranks pruned trials below finished ones, by the rounds that they came to and their score
    there, and failed ones last.
    """

    def __init__(self, axes: Sequence[SearchAxis]):
        try:
            import optuna
        except ImportError:
            raise ProtofedError("a search needs Optuna: pip install 'protofed[sweep]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=0)
        self.axes, self.states = axes, optuna.trial.TrialState
        self.study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        self.known: set[str] = set()
        self.asked: list[Any] = []  # and not yet told of

    def ask(self, count: int) -> list[Settings]:
        """Settings that were not tried before: fewer than `count` if it finds no more."""
        chosen: list[Settings] = []
        misses = 0
        while len(chosen) < count and misses < PATIENCE:
            trial = self.study.ask()
            settings = {axis.field: axis.suggest(trial) for axis in self.axes}
            if repr(settings) in self.known:
                misses += 1
                self.study.tell(trial, state=self.states.FAIL)  # it learns nothing from it
            else:
                misses = 0
                self.known.add(repr(settings))
                self.asked.append(trial)
                chosen.append(settings)
        return chosen

    def tell(self, trials: Sequence[SearchTrial]) -> None:
        """Let it learn from all trials that it was asked for since the last time."""
        for trial, asked in zip(trials, self.asked, strict=True):
            if trial.state == "finished":
                self.study.tell(asked, trial.mean)
                continue
            if trial.mean is not None:
                asked.report(trial.mean, step=trial.rounds)
            self.study.tell(asked, state=self.states.PRUNED)
        self.asked.clear()


def search_document(
    plan: SearchPlan, trials: Sequence[SearchTrial], rule: ScoreRule, command: str | None
) -> TableDocument:
    """All trials from the best to the worst, the protocol, and the command of the final test run.

    `command` is None if no trial was finished. CSV has the rule of each score in a column.
    """
    ranked = rank_trials(trials)
    axes = [short_field_name(axis.field) for axis in plan.axes]
    head = ["trial", *axes, "held-out accuracy %", "rounds", "state"]
    rows = [_row(plan, trial, place) for place, trial in enumerate(ranked)]
    ruled = [[*row, words_of_rule(t, rule)] for t, row in zip(ranked, rows, strict=True)]
    best = best_trial(trials)
    content = {
        "method": plan.method,
        "protocol": protocol_record(plan, trials, rule),
        "trials": [trial.to_dict() for trial in ranked],
        "best": best.to_dict() if best else None,
        "command": command,
    }
    notes = [*_protocol_notes(plan, trials, rule), *_fault_notes(ranked)]
    if best and command:
        digests = ", ".join(cell.experiment.digest[:12] for cell in best.cells)
        notes += [f"best: trial {best.number}, {best.label} (digest {digests})"]
        notes += ["its final run, scored on the test images:", command]
    else:
        notes += ["no trial was finished, so there are no best settings"]
    records = TextTable([*head, "rule"], ruled)
    return TableDocument([TextTable(head, rows)], content, notes=notes, records=records)


def _row(plan: SearchPlan, trial: SearchTrial, place: int) -> list[str | RankedCell]:
    values = [format_value(trial.settings[axis.field]) for axis in plan.axes]
    won = trial.state == "finished"
    score = RankedCell(
        format_score(trial),
        "best" if won and place == 0 else "second" if won and place == 1 else "",
    )
    return [str(trial.number), *values, score, str(trial.rounds), trial.state]


def format_score(trial: SearchTrial) -> str:
    """The mean over seeds with its standard deviation, ``91.20 ± 0.45``, or a dash."""
    if trial.mean is None:
        return "-"
    return f"{trial.mean:.2f}" + ("" if trial.deviation is None else f" ± {trial.deviation:.2f}")


def words_of_rule(trial: SearchTrial, rule: ScoreRule) -> str:
    """How the score of a trial was taken, in words; empty if it has none."""
    if not trial.scores:
        return ""
    every = trial.cells[0].experiment.evaluate_every
    return score_rules(count_evaluations(trial.rounds, every))[rule]


def describe_rule(trials: Sequence[SearchTrial], rule: ScoreRule) -> str:
    """How the scores of all trials were taken, in words; by rounds where these differ."""
    scored = sorted({(t.rounds, words_of_rule(t, rule)) for t in trials if t.scores})
    words = list(dict.fromkeys(each for _, each in scored))
    if len(words) < 2:
        return "".join(words)
    return ", ".join(f"{each} after round {rounds}" for rounds, each in reversed(scored))


def protocol_record(
    plan: SearchPlan, trials: Sequence[SearchTrial], rule: ScoreRule
) -> dict[str, object]:
    """How a search chose, as plain data: what a paper must state of its tuning."""
    return {
        "axes": [axis.to_dict() for axis in plan.axes],
        "sampler": "every combination" if plan.exhaustive else "TPE (Optuna), seed 0",
        "trials": len(trials),
        "batch": BATCH,
        "seeds": list(range(plan.seeds)),
        "rounds": plan.experiment.rounds,
        "rungs": list(plan.rungs),
        "eta": plan.eta,
        "rounds_played": sum(trial.rounds for trial in trials) * plan.seeds,
        "validation": plan.experiment.validation,
        "score": rule,
        "rule": describe_rule(trials, rule),
    }


def _protocol_notes(
    plan: SearchPlan, trials: Sequence[SearchTrial], rule: ScoreRule
) -> Iterator[str]:
    yield f"scored on {plan.experiment.validation_images}, not on test images"
    seeds = "seed 0" if plan.seeds == 1 else f"mean ± standard deviation of {plan.seeds} seeds"
    if words := describe_rule(trials, rule):
        yield f"score: {words}; mean over domains; {seeds}"
    how = "every combination" if plan.exhaustive else "sampled by TPE (Optuna), seed 0"
    yield f"{count_noun(len(trials), 'trial')}, {how}"
    if len(plan.rungs) > 1:
        *early, last = map(str, plan.rungs)
        after = " and ".join(early)
        yield f"pruned after round {after} of {last}: the best 1/{plan.eta} so far went on"


def _fault_notes(trials: Sequence[SearchTrial]) -> list[str]:
    return [
        f"trial {trial.number} failed: {trial.fault.splitlines()[0]}"
        for trial in trials
        if trial.fault
    ]
