"""What figures show: trained runs opened, test images chosen, and series of scores read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from protofed.analysis.comparison_table import records_by_metric
from protofed.analysis.finished_runs import (
    APART,
    RunRecord,
    check_comparable,
    differing_fields,
    label_experiments,
    read_record,
)
from protofed.analysis.statistics import SeedSpread
from protofed.core.method import AnyMethod
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset, ClientId
from protofed.core.training import torch_threads
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.local_models import replay_round
from protofed.experiment.result import ScoreRule, choose_rule
from protofed.experiment.trained_run import TrainedRun, open_trained_run
from protofed.federation.evaluation import DomainScores
from protofed.federation.score_metrics import METRIC_LABELS, MetricName
from protofed.figures.style import FigureOptions
from protofed.ops import prototype_collection
from protofed.spec.experiment_spec import Experiment

Chosen: TypeAlias = Mapping[str, ArrayDataset]  # by domain; grey and colour images do not mix


def open_runs(runs: Sequence[Path], finished: int | None) -> list[TrainedRun]:
    """Open the runs with their images, after round `finished`, or after their last if None.

    All runs must have the same data section, as a figure shows the same images for each.
    """
    opened = [open_trained_run(folder, finished) for folder in runs]
    for folder, other in zip(runs, opened, strict=True):
        if other.experiment.data != opened[0].experiment.data:
            raise ProtofedError(
                f"{runs[0]} and {folder} cannot stand in one figure: their data differ "
                f"({opened[0].experiment.data.label}, {other.experiment.data.label}, or how a net "
                f"sees them)\ngive runs with the same data section"
            )
    return opened


def single_round(kind: str, options: FigureOptions) -> int | None:
    """The round that was asked for, or None for the last one; raises if several were.

    For kinds of figures that show one round only; `kind` is named in the error.
    """
    if len(options.rounds) > 1:
        raise ProtofedError(f"{kind} shows one round, got {', '.join(map(str, options.rounds))}")
    return options.rounds[0] if options.rounds else None


def run_names(runs: Sequence[Path], opened: Sequence[TrainedRun]) -> list[str]:
    """A name for each run: the label of its method, and its folder where several share a label.

    ``["FedAvg", "FPL (a)", "FPL (b)"]`` for one run of FedAvg and two of FPL.
    """
    labels = label_experiments([run.experiment for run in opened])
    return [
        label if labels.count(label) == 1 else f"{label} ({folder.name})"
        for label, folder in zip(labels, runs, strict=True)
    ]


def open_local_models(
    runs: Sequence[Path], opened: Sequence[TrainedRun], words: Sequence[str]
) -> list[list[TrainedRun]]:
    """For each opened run, the models of some clients at the end of the round, before the merge.

    The round is trained again for them. `words` name the clients, see `find_clients`.
    """
    found = []
    for folder, run in zip(runs, opened, strict=True):
        replayed = replay_round(folder, run)
        found.append([replayed.local(client) for client in find_clients(run, words)])
    return found


def find_clients(run: TrainedRun, words: Sequence[str]) -> list[ClientId]:
    """The ids that some words name: a client's id, or a domain, which means its first client."""
    sites = run.federation.sites
    first = {site.domain: client for client, site in sorted(sites.items(), reverse=True)}
    known = {**{str(client): client for client in sites}, **dict(sorted(first.items()))}
    return [known[require_known_name("client or domain with clients", w, known)] for w in words]


def model_owner(run: TrainedRun) -> str:
    """The client whose model is shown; empty for the server's model.

    Personal methods leave each client with its own model; figures take the first client's.
    """
    if run.local:
        client = run.local.client
        return f"client {client} ({run.federation.sites[client].domain})"
    return f"client {min(run.federation.sites)}" if run.method.personal else ""


def choose_test_images(kind: str, run: TrainedRun, domain: str | None) -> Chosen:
    """The test images by domain, of one domain or of all; domains without images are left out.

    `kind` is the kind of figure, for messages. Raises if no images are left.
    """
    tests = run.federation.tests
    if domain is not None:
        tests = {domain: tests[require_known_name("domain", domain, tests)]}
    found = {name: test for name, test in tests.items() if len(test)}
    if not found:
        raise ProtofedError(
            f"{kind}: no test images in {', '.join(tests)}", hint="choose another <domain>"
        )
    return found


def sample_images(tests: Chosen, most: int, *key: int | str) -> Chosen:
    """At most `most` images, drawn at random over all domains; their order is kept.

    `key` names the random stream.
    """
    total = sum(len(test) for test in tests.values())
    drawn = torch.randperm(total, generator=rng("figure", *key))[:most].sort().values
    chosen, start = {}, 0
    for name, test in tests.items():
        rows = drawn[(drawn >= start) & (drawn < start + len(test))] - start
        if len(rows):
            chosen[name] = test.take(rows)
        start += len(test)
    return chosen


def image_features(run: TrainedRun, chosen: Chosen) -> Tensor:
    """The features z [N, D] of images, one domain after the other.

    Computed in evaluation mode by the model that also makes the run's predictions.
    """
    return torch.cat([run.features(data) for data in chosen.values()])


def image_groups(run: TrainedRun, chosen: Chosen, by: str) -> tuple[Tensor, Sequence[str]]:
    """The class or domain of each image as a number [N], and the names of the numbers.

    `by` is "class" or "domain".
    """
    if by == "class":
        return torch.cat(
            [data.labels for data in chosen.values()]
        ), run.federation.benchmark.classes
    sizes = torch.tensor([len(data) for data in chosen.values()])
    return torch.arange(len(chosen)).repeat_interleave(sizes), tuple(chosen)


def client_prototypes(run: TrainedRun) -> dict[ClientId, Prototypes]:
    """The class means of each client's training images, by the model that the client has now.

    That is its own model in personal methods, else the server's. Prototypes that clients sent came
    from models they had just trained, which no checkpoint holds.
    """
    with torch_threads(run.experiment.threads):
        return {client: _means_at(run, client) for client in sorted(run.federation.sites)}


def _means_at(run: TrainedRun, client: ClientId) -> Prototypes:
    site = run.federation.sites[client]
    return prototype_collection.local_prototypes(site, run.model_at(site))


class RunSeries(NamedTuple):
    """Runs that differ only in their seed, and the label under which a figure shows them.

    A figure draws their mean, and the spread over seeds where there are several.
    """

    label: str
    records: tuple[RunRecord, ...]  # one per seed, in ascending order

    @property
    def method(self) -> AnyMethod:
        """The method of its runs."""
        return self.records[0].experiment.method

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(record.seed for record in self.records)


def read_run_records(runs: Sequence[Path]) -> list[RunRecord]:
    """Read some finished runs; raises if two folders hold the same run.

    Two runs are the same if their specs have the same digest.
    """
    if not runs:
        raise ProtofedError("no runs given\nname one or more run folders")
    records = [read_record(folder) for folder in runs]
    seen: dict[str, RunRecord] = {}
    for record in records:
        twin = seen.setdefault(record.result.digest, record)
        if twin is not record:
            two = f"{twin.result.folder} and {record.result.folder}"
            raise ProtofedError(f"{two} hold the same run: give one of them")
    return records


def compared_series(
    runs: Sequence[Path], metric: MetricName = "accuracy"
) -> tuple[list[RunSeries], list[str]]:
    """Read runs for a comparison: one series per method and setting, in the order given.

    Their scores are of `metric`. Also returns the footnotes, about missing seeds and different
    versions.
    """
    records = records_by_metric(read_run_records(runs), metric)
    notes = check_plottable(records)
    series = group_by_setting(records)
    return series, [*missing_seed_notes(series), *notes]


def check_plottable(records: Sequence[RunRecord], free: Sequence[str] = ()) -> list[str]:
    """Raise if runs cannot stand in one figure; returns footnotes.

    They may differ in method, seed and the sections that `free` lists.
    """
    # under one label no seed is missing: figures have their own note on missing seeds
    return check_comparable([record._replace(label="") for record in records], (*APART, *free))


def group_by_method(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The records by the label of their method, in the order given.

    Runs of one method with different settings share an entry; see `group_by_setting`.
    """
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        found.setdefault(record.experiment.method.info.label, []).append(record)
    return found


def group_by_setting(records: Sequence[RunRecord]) -> list[RunSeries]:
    """The records as series, one per method and setting.

    Labels name the settings only where a method has several: ``FPL (tau=0.5)``.
    """
    labels = label_experiments([record.experiment for record in records])
    found: dict[str, list[RunRecord]] = {}
    for label, record in zip(labels, records, strict=True):
        found.setdefault(label, []).append(record)
    ordered = {label: sorted(group, key=lambda r: r.seed) for label, group in found.items()}
    return [RunSeries(label, tuple(group)) for label, group in ordered.items()]


def missing_seed_notes(series: Sequence[RunSeries]) -> list[str]:
    """Footnotes on series that lack seeds which others have.

    Series with the same seeds share a line: ``only seed 0: FedAvg, FPL``.
    """
    every = {seed for one in series for seed in one.seeds}
    lacking: dict[str, list[str]] = {}
    for one in series:
        if set(one.seeds) != every:
            lacking.setdefault(", ".join(map(str, one.seeds)), []).append(one.label)
    return [f"only seed {seeds}: {', '.join(labels)}" for seeds, labels in lacking.items()]


def baseline_first(series: Sequence[RunSeries]) -> list[RunSeries]:
    """The same series, those of the baseline first.

    The baseline is the method that a spec has if it names none.
    """
    baseline = type(Experiment.model_fields["method"].default)
    return sorted(series, key=lambda one: not isinstance(one.method, baseline))


def record_accuracy(record: RunRecord, scores: DomainScores, domain: str | None) -> float:
    """The mean accuracy over domains, or that of one domain; raises if there is no such score.

    `scores` are some scores of the run `record`, which is named in errors.
    """
    if domain is not None:
        require_known_name("domain", domain, scores.domains)
    found = scores.mean if domain is None else scores.domains[domain]
    if found is None:
        where = "no domain has" if domain is None else f"{domain} has no"
        raise ProtofedError(f"{record.result.folder}: {where} test images, so there is no score")
    return found


def with_score_rule(options: FigureOptions, records: Sequence[RunRecord]) -> FigureOptions:
    """The options with the scoring rule of the whole figure, which all its runs share.

    A rule that was asked for is kept; see `choose_rule` for the default.
    """
    return replace(options, score=choose_rule((r.result for r in records), options.score))


def record_scores(record: RunRecord, options: FigureOptions) -> DomainScores:
    """A run's scores by domain, by the rule of the options.

    The rule ``last_five`` is the mean of the last five evaluations, ``last`` the last one.
    """
    return record.result.scores(choose_rule([record.result], options.score))


def accuracy_spread(records: Sequence[RunRecord], options: FigureOptions) -> SeedSpread:
    """Mean and standard deviation of the accuracy of runs that differ in their seed.

    `options` choose the domain (the mean over domains if None) and the scoring rule.
    """
    return SeedSpread.of(
        [record_accuracy(r, record_scores(r, options), options.domain) for r in records]
    )


def error_bars(spreads: Sequence[SeedSpread]) -> list[float] | None:
    """The standard deviations as error bars; None if there is only one seed everywhere.

    A single seed among others gets NaN, which matplotlib leaves out.
    """
    stds = [math.nan if spread.std is None else spread.std for spread in spreads]
    return None if all(map(math.isnan, stds)) else stds


def axis_label(options: FigureOptions) -> str:
    """The label of an axis of scores."""
    score = METRIC_LABELS[options.metric]
    return f"{score} on {options.domain} (%)" if options.domain else f"mean {score} (%)"


def figure_heading(
    records: Sequence[RunRecord], rule: ScoreRule | None = None, spread: str = ""
) -> str:
    """The title of a figure: benchmark, scoring rule and number of seeds.

    `spread` says how the spread over seeds is drawn.
    """
    first = records[0]
    count = len({record.seed for record in records})
    how = [first.result.rules[rule]] if rule else []
    seeds = [f"{count} seeds{spread}"] if count > 1 else []
    return ", ".join([first.experiment.data.label, *how, *seeds])


REDEAL = ("data", "partition")  # sections that change which images the clients hold
OWN = ("method.", "public.")  # sections whose fields belong to a method


def varied_fields(records: Sequence[RunRecord]) -> list[str]:
    """The fields in which runs of the same method differ, over all methods.

    These are the fields of a sweep. Differences between methods do not count.
    """
    found = [
        path
        for group in group_by_method(records).values()
        for path in differing_fields([record.experiment for record in group])
    ]
    return list(dict.fromkeys(found))


def require_varied_fields(
    kind: str, count: int, records: Sequence[RunRecord], hint: str
) -> list[str]:
    """The fields that vary, which must be `count` many; raises otherwise.

    Between different methods, runs may differ in nothing else but the methods' own fields. `hint`
    is appended to the error.
    """
    paths = varied_fields(records)
    if not paths:
        raise ProtofedError(f"{kind}: the runs differ in nothing but method and seed\n{hint}")
    if len(paths) != count:
        words = f"{count} field{'s' * (count > 1)} must differ between runs of one method"
        raise ProtofedError(
            f"{kind}: {words}, here {len(paths)}: {', '.join(paths)}\n{hint}",
            hint="choose among the runs with <where>" if len(paths) > count else "",
        )
    differing = differing_fields([record.experiment for record in records])
    others = [p for p in differing if p not in paths and not p.startswith(OWN)]
    if others:
        raise ProtofedError(
            f"{kind}: the runs of different methods also differ in {', '.join(others)}"
        )
    return paths


def check_sweep_records(records: Sequence[RunRecord], paths: Sequence[str]) -> list[str]:
    """Raise if the runs of a sweep differ in images or clients for no reason; returns footnotes.

    `paths` are the fields that vary. If one of them changes the partition, only runs with equal
    values are compared.
    """
    sections = [path.partition(".")[0] for path in paths]
    groups = [list(records)]
    if set(sections) & set(REDEAL):
        groups = list(group_by_value(records, paths).values())
    notes = [note for group in groups for note in check_plottable(group, sections)]
    return list(dict.fromkeys(notes))


def field_value(record: RunRecord, path: str) -> object:
    """The value of a field of a run's spec, by its path.

    Raises KeyError if the spec has no such field, as for another method's hyperparameter.
    """
    return record.experiment.flat_fields()[path]


def group_by_value(
    records: Sequence[RunRecord], paths: Sequence[str]
) -> dict[str, list[RunRecord]]:
    """The records by the values of some fields, which are the keys as JSON.

    A missing field counts as null, so runs without it form a group.
    """
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        fields = record.experiment.flat_fields()
        found.setdefault(json.dumps([fields.get(path) for path in paths]), []).append(record)
    return found


def sorted_values(values: Sequence[object]) -> list[object]:
    """The distinct values: numbers in ascending order, others in order of appearance."""
    once = list({json.dumps(value): value for value in values}.values())
    return sorted(once, key=float) if all_numeric(once) else once  # type: ignore[arg-type]


def all_numeric(values: Sequence[object]) -> bool:
    """Whether all values are numbers; true and false are not."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
