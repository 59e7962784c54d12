"""The model card: what a finished run is made of, good for, and not good for, on one page."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from protofed.data.partition import ClientPartRecord
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.experiment import run_records
from protofed.experiment.result import RunResult, check_finished, make_result, read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import DoneRecord, World, load_spec, notice_record
from protofed.federation.evaluation import DomainScores, Evaluation
from protofed.federation.notices import Notice
from protofed.federation.remote_sites import counts_kept_back
from protofed.federation.score_metrics import (
    METRIC_LABELS,
    METRICS,
    class_scores,
    estimate_metric,
    format_estimate,
)
from protofed.runtime.atomic_io import file_sha256, format_bytes, read_file_bytes
from protofed.runtime.module_files import MAIN
from protofed.runtime.text_tables import TextTable, escape_markdown, markdown_list, markdown_table
from protofed.spec.experiment_spec import ArrayData, Experiment, SiteData
from protofed.spec.method_lookup import method_name

MOST_CLASSES = 20  # each with its own rows
WAYS = {"up": "clients to coordinator", "down": "coordinator to clients"}


def mark_done(folder: RunDir, experiment: Experiment, notices: Sequence[Notice]) -> None:
    """Write the model card, then the file ``done`` that marks the run as finished.

    In this order no finished run lacks a card. ``done`` holds the digest of the scores, so files
    that are swapped later are noticed.
    """
    scores = file_sha256(folder.scores)  # to notice files that were swapped
    done: DoneRecord = {
        "digest": experiment.digest,
        "notices": [notice_record(notice) for notice in notices],
        "scores": scores,
    }
    folder.write_card(card_from_run(folder, experiment, make_result(folder, done)))
    folder.write("done", done)


def model_card(folder: RunDir) -> str:
    """The model card of a finished run as Markdown.

    It is read from ``card.md``, or made again from the run's other files if that is missing.
    """
    if not folder.done.exists():
        raise ProtofedError(f"{folder.path} holds no finished run, so there is no card yet")
    check_finished(folder)
    if folder.card.exists():  # unless somebody has removed it
        return read_file_bytes(folder.card).decode(errors="replace")
    return card_from_run(folder, load_spec(folder.path), read_result(folder))


def card_from_run(folder: RunDir, experiment: Experiment, result: RunResult) -> str:
    """Make the model card of a run as Markdown; its method need not be one of protofed's own.

    It states scores, training data, what was sent, limits, and how to repeat the run. All names in
    it are escaped, because folders of images may come from anyone.
    """
    world = run_records.read_record_file(run_records.WORLD, folder.path / "env.json")
    holdings = run_records.read_record_file(run_records.HOLDINGS, folder.path / "partition.json")
    sections = [
        _heading(experiment),
        _scores(result),
        _data(experiment, holdings),
        _traffic(folder),
        _limits(experiment, result),
        _repeat(folder, experiment, result, world),
    ]
    return "\n".join(line for section in sections for line in (*section, ""))


def repeat_command(folder: Path, experiment: Experiment) -> str:
    """The shell command that repeats a run in a folder beside it, for cards and reports.

    A run of a federation is submitted again, to the same sites.
    """
    spec, out = str(folder / "spec.json"), f"{folder}-again"
    if isinstance(experiment.data, SiteData):
        sites = ",".join(experiment.data.domains)
        return _shell_command(["submit", spec], {"sites": sites, "out": out})
    return _shell_command(["run"], {"spec": spec, "out": out})


def _shell_command(words: Sequence[str], options: Mapping[str, str]) -> str:
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return shlex.join(["protofed", *words, *flags])


def _heading(experiment: Experiment) -> list[str]:
    about, nets = experiment.method.info, " and ".join(dict.fromkeys(experiment.net_labels))
    paper = ", ".join(filter(None, [about.title, f"{about.venue} {about.year or ''}".strip()]))
    lines = [
        f"# {escape_markdown(about.label)} on {escape_markdown(experiment.data.label)}",
        "",
        f"A classifier of {_examples(experiment)}: the net {escape_markdown(nets)}, trained by "
        f"{escape_markdown(about.label)} in {count_noun(experiment.rounds, 'round')}. "
        f"The method: {escape_markdown(paper)}.",
        *_beginning(experiment),
    ]
    return lines + (
        [f"Note on the method: {escape_markdown(about.caveat)}."] if about.caveat else []
    )


def _beginning(experiment: Experiment) -> list[str]:
    """With which weights the net began, and what of it was not trained."""
    lines = []
    if experiment.pretrained:
        file = escape_markdown(experiment.pretrained_label)
        lines += [f"It began with the weights {file}, SHA-256 `{experiment.pretrained_sha256}`."]
    if experiment.train != "all":
        what = {"head": "its head", "neck": "its neck and head"}.get(experiment.train)
        what = what or f"head, neck and {experiment.train.replace('last:', 'the last ')} blocks"
        lines += [f"Only {what} were trained; the other parts were frozen, and nobody sent them."]
    return lines


def _examples(experiment: Experiment) -> str:
    """What the model takes, in one word."""
    return "rows of numbers" if isinstance(experiment.data, ArrayData) else "images"


def _scores(result: RunResult) -> list[str]:
    columns = [result.last, result.last_five]
    head = ["accuracy % on", result.rules["last"], result.rules["last_five"]]
    if result.largest_shares is not None:
        columns.append(result.largest_shares)
        head.append("largest class")
    rows = [
        [result.named(domain), *(_percent(scores.domains[domain]) for scores in columns)]
        for domain in result.last.domains
    ]
    rows += [[name, *(_percent(getattr(s, name)) for s in columns)] for name in ("mean", "worst")]
    lines = [
        "## How well it does",
        "",
        *_collapsed(result),
        markdown_table(TextTable(head, rows)),
        "",
        f"{_worst(result.last)}.",
        *_more_scores(result),
    ]
    if result.clients is not None:
        domains = list(result.last.domains)
        told = [[f"client {c}", *(_percent(row[d]) for d in domains)] for c, row in _of(result)]
        lines += ["", "Each client has a model of its own; the scores above are their mean.", ""]
        lines += [markdown_table(TextTable(["own model of", *domains], told))]
    return lines


def _collapsed(result: RunResult) -> list[str]:
    """The notices of a collapse, above the scores that look better than the model is."""
    found = [str(notice) for notice in result.notices if notice.kind == "collapse"]
    if not found:
        return []
    return ["**Do not use it before you have looked at this:**", "", markdown_list(found), ""]


def _more_scores(result: RunResult) -> list[str]:
    """All metrics with intervals by domain, and sensitivity and the like by class, last round."""
    last = result.history[-1] if result.history else None
    if last is None or not last.counts:
        return []
    rows = [
        [
            result.named(domain),
            *(format_estimate(estimate_metric(name, counts)) for name in METRICS),
            str(counts.total // counts.models),
        ]
        for domain, counts in last.counts.items()
    ]
    head = ["last round, %", *(METRIC_LABELS[name] for name in METRICS), "test images"]
    lines = ["", "With 95 % intervals over test images:", "", markdown_table(TextTable(head, rows))]
    if last.classes and len(last.classes) <= MOST_CLASSES:
        lines += ["", "Each class against all others:", "", _class_table(result, last)]
    return lines


def _class_table(result: RunResult, last: Evaluation) -> str:
    rows = []
    for domain, counts in last.counts.items():
        found = zip(last.classes, class_scores(counts), counts.images, strict=True)
        rows += [
            [
                result.named(domain),
                label,
                *(format_estimate(one) for one in scores),
                str(images // counts.models),
            ]
            for label, scores, images in found
        ]
    head = ["domain", "class", "sensitivity", "specificity", "PPV", "NPV", "AUROC", "test images"]
    return markdown_table(TextTable(head, rows))


def _of(result: RunResult) -> list[tuple[str, dict[str, float | None]]]:
    return [(client, dict(row)) for client, row in (result.clients or {}).items()]


def _worst(scores: DomainScores) -> str:
    known = {name: score for name, score in scores.domains.items() if score is not None}
    if not known:
        return "There were no test images, so its accuracy is unknown"
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    gap = (
        f", {known[high] - known[low]:.2f} points below {escape_markdown(high)}"
        if low != high
        else ""
    )
    return f"It does worst on **{escape_markdown(low)}**: {known[low]:.2f} %{gap} (last round)"


def _data(experiment: Experiment, holdings: Sequence[ClientPartRecord]) -> list[str]:
    data = experiment.data
    if isinstance(data, ArrayData):
        seen, what = f"of shape {' x '.join(map(str, data.shape))}", "rows"
    else:
        seen, what = f"at {data.side} x {data.side} pixels, {data.channels} channels", "images"
    rows = []
    for part in holdings:
        held = part["held"]
        counts = [
            str(len(held)),
            f"{min(held.values())} to {max(held.values())}" if held else "none",
        ]
        if counts_kept_back(held):
            counts = ["kept back", "kept back"]
        rows.append([str(part["client"]), str(part["domain"]), str(sum(held.values())), *counts])
    head = ["client", "domain", f"training {what}", "classes", f"{what} per class"]
    unseen = experiment.leave_out
    return [
        "## What it was trained on",
        "",
        f"{what.capitalize()} of {escape_markdown(data.label)} "
        f"(revision {escape_markdown(data.revision)}), "
        f"domains {escape_markdown(', '.join(data.domains))}, {seen}."
        + (f" Nobody trained on {escape_markdown(unseen)}." if unseen else ""),
        "",
        markdown_table(TextTable(head, rows)),
    ]


def _traffic(folder: RunDir) -> list[str]:
    """What was sent, and so what the coordinator can see."""
    sums = {way: Counter[str]() for way in WAYS}
    for line in folder.lines(folder.rounds):
        for way, total in sums.items():
            total.update(line["parts"][way] or {"all parts": line[f"bytes_{way}"]})
    rows = [
        [WAYS[way], name, format_bytes(n)]
        for way, found in sums.items()
        for name, n in found.items()
    ]
    up = escape_markdown(", ".join(name for name, n in sums["up"].items() if n) or "nothing")
    return [
        "## What was sent",
        "",
        markdown_table(TextTable(["direction", "part", "bytes in the whole run"], rows)),
        "",
        f"From each client in each round that it takes part in, the coordinator sees: {up}; how "
        "many images it has; and what it reports, such as its loss. No image is part of a message. "
        "There is no encryption against the coordinator and no noise for privacy: a determined "
        "attacker can recover information about training images from weights and prototypes.",
    ]


def _limits(experiment: Experiment, result: RunResult) -> list[str]:
    notes = [str(notice) for notice in result.notices if notice.kind != "collapse"]
    return [
        "## Limits",
        "",
        "- The scores hold for images like the test images of the domains above. Another camera, "
        "clinic or style is another domain, and its accuracy there is unknown"
        + (
            f" except for the score on {escape_markdown(experiment.leave_out)}."
            if experiment.leave_out
            else "."
        ),
        "- This is one run with one seed: another seed gives other scores.",
        "- It always predicts one of its classes, even for an image that shows none of them, and "
        "its probabilities are not calibrated.",
        "- It was not validated for any use where a mistake does harm, and is no medical device.",
        *([markdown_list(notes)] if notes else []),
    ]


def _repeat(folder: RunDir, experiment: Experiment, result: RunResult, world: World) -> list[str]:
    versions = ", ".join(f"{name} {world[name]}" for name in ("python", "torch") if name in world)
    # a damaged checkpoint does not move bits, but a missing reply or round does
    incomplete = any("client" in line for line in folder.lines(folder.events))
    promise = (
        "Some replies were refused or some rounds failed (see events.jsonl), so a repetition may "
        "give other scores:"
        if incomplete
        else "The same spec, code, torch and images give the same bits:"
    )
    version = escape_markdown(world.get("protofed", "?"))
    code = f"code `{str(world['fingerprint'])[:8]}`; " if "fingerprint" in world else ""
    return [
        "## How to repeat it",
        "",
        f"Spec digest `{result.digest}`; {code}protofed {version} "
        f"with {escape_markdown(versions)}. {promise}",
        "",
        f"    {printable_text(repeat_command(folder.path, experiment))}"
        if _can_be_named(method_name(experiment.method))
        else "From Python, where its method was defined.",
    ]


def _can_be_named(name: str) -> bool:
    """Whether a command can name a method: not one of a prompt, a notebook or a function."""
    return not name.startswith(f"{MAIN}:") and "<" not in name


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
