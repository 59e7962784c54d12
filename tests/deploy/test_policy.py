from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.answer_counts import reduce_tally, tally_answers
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod
from protofed.core.metrics import CorrectCount
from protofed.core.prototypes import Prototypes
from protofed.core.reply_validation import ReplyTemplate, rejection_reason
from protofed.core.site import ClientId, RoundContext
from protofed.deploy.policy import SitePolicy, read_policy
from protofed.engines.engine import RoundEvent, expected_reply, require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproc import FedProc
from protofed.methods.pgct import PGCT
from protofed.testing import toy_sites
from tests.methods.test_every_method import QUICK

MODES: dict[str, AnyMethod] = {
    f"pgct {mode}": PGCT(proto_mode=mode) for mode in ("uniform", "multi", "bootstrap")
}
ALL: dict[str, AnyMethod] = {name: QUICK.get(name) or METHODS[name]() for name in METHODS} | MODES


class Careful(LocalEngine[Any, Any]):
    """Sites that keep to a policy; notes what each reply was held against."""

    policy = SitePolicy(min_examples=1)

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        replies = require_replies(super().exchange(messages, context))
        return {client: self.policy.filtered(reply) for client, reply in replies.items()}


def played(method: AnyMethod, policy: SitePolicy, events: list[RoundEvent]) -> Any:
    """The server's state after two rounds with sites that all have one policy."""
    site, sites = toy_sites(method)
    engine, server = Careful(method, sites), method.init_server(site)
    engine.policy = policy
    for number in range(2):
        step = RoundContext(number, 2)
        server = run_round(
            method, site, server, engine, sorted(sites), step, note=events.append, least=1
        )
    return server


@cache
def letters(name: str) -> list[tuple[Message, ReplyTemplate]]:
    """All replies of a round with what each is held against."""
    method = ALL[name]
    site, sites = toy_sites(method)
    engine, found = LocalEngine(method, sites), []
    server, step = method.init_server(site), RoundContext(0, 2)
    for leg in range(method.exchanges):
        now = step._replace(exchange=leg)
        messages = method.send(site, server, sorted(sites), now)
        replies = require_replies(engine.exchange(messages, now))
        for client, reply in replies.items():
            found.append((reply, expected_reply(method, site, client, messages[client], now)))
        server = method.merge(site, server, replies, now)
    return found


def tables(message: Message) -> dict[str, Prototypes]:
    parts = {"protos": message.protos, **message.extras}
    return {name: part for name, part in parts.items() if isinstance(part, Prototypes)}


def untouched(name: str, policy: SitePolicy) -> bool:
    """Whether a method's replies pass a policy as they are, so that its rounds need no trial."""
    return all(tree.equal(policy.filtered(reply), reply) for reply, _ in letters(name))


def test_the_methods_that_send_prototypes_are_touched() -> None:
    touched = {name for name in METHODS if not untouched(name, SitePolicy(min_examples=7))}
    assert touched == {
        *("fedgh", "fedmlp", "fedproc", "fedproto", "fedseproto", "fedtgp", "fpl", "pgct")
    }


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(least=st.integers(1, 45), counts=st.booleans())
def test_a_filtered_reply_is_admitted_and_tells_no_more_than_it_may(
    name: str, least: int, counts: bool
) -> None:
    policy = SitePolicy(min_examples=least, send_counts=counts)
    for reply, held_against in letters(name):
        before, sent = tables(reply), policy.filtered(reply)
        assert tree.equal(sent.model, reply.model)
        for part, table in before.items():
            kept = table.counts >= least
            if not kept.any():
                assert part not in tables(sent)
                continue
            after = tables(sent)[part]
            assert torch.equal(after.vectors, table.vectors[kept])
            assert torch.equal(after.labels, table.labels[kept])
            told = table.counts[kept]
            assert torch.equal(after.counts, told if counts else torch.ones_like(told))
        whole = tables(sent).keys() == before.keys()
        assert (rejection_reason(sent, held_against) == "") == whole


@pytest.mark.parametrize("name", ALL)
def test_every_method_goes_on_with_what_sites_hold_back(name: str) -> None:
    events: list[RoundEvent] = []
    policy = SitePolicy(min_examples=7)
    if untouched(name, policy):
        return
    server = played(ALL[name], policy, events)
    assert tree.finite(server)
    assert not any(event.diverged for event in events)


@pytest.mark.parametrize("name", ALL)
def test_a_method_says_whether_it_weighs_by_counts(name: str) -> None:
    """The result is the same without the counts, or the policy refuses the method beforehand."""
    method, hiding = ALL[name], SitePolicy(min_examples=1, send_counts=False)
    if untouched(name, hiding):
        assert not method.payload.counts
        return
    plain = played(method, SitePolicy(min_examples=1), [])
    hidden = played(method, hiding, [])
    same = tree.equal(models(plain), models(hidden))
    assert same == (hiding.allows(method, 1) is None) == (not method.payload.counts)


def models(server: Any) -> object:
    """A server's state without the counts of its tables, which nobody reads."""
    leaves = dict(tree.named_leaves(server))
    return {name: leaf for name, leaf in leaves.items() if not name.endswith("counts")}


def test_what_a_policy_allows() -> None:
    policy = SitePolicy(methods=("fedproto", "pgct"), max_rounds=10)
    assert policy.allows("fedproto", 10) is None
    assert policy.allows("pgct", 10) is None
    assert policy.allows("fedproto", 11) == "11 rounds, but this site's policy allows 10"
    reason = "this site's policy does not allow fpl (allowed: fedproto, pgct)"
    assert policy.allows("fpl", 1) == reason
    assert "does not allow fedavg" in str(policy.allows(PGCT(base=FedAvg()), 1))
    assert "unknown name 'fedprot'" in str(policy.allows("fedprot", 1))
    assert all(SitePolicy().allows(name, 10**6) is None for name in METHODS)
    hiding = SitePolicy(send_counts=False)
    refused = [name for name in METHODS if hiding.allows(name, 1)]
    assert refused == ["fedproc"]
    assert hiding.allows(FedProc(style="rethink"), 1) is None
    assert "pgct with fedproc weighs" in str(hiding.allows(PGCT(base=FedProc()), 1))
    assert SitePolicy(methods=()).allows("fedavg", 1) is not None


def test_answers_counted_by_class_stay_where_the_policy_says_so() -> None:
    y = torch.arange(6) % 3
    answers = reduce_tally(tally_answers(torch.eye(3)[y], y))
    counts = {"": CorrectCount(6, 6, answers), "other": CorrectCount(2, 6)}
    assert SitePolicy().filtered_counts(counts) == counts
    bare = {"": CorrectCount(6, 6), "other": CorrectCount(2, 6)}
    assert SitePolicy(send_answers=False).filtered_counts(counts) == bare
    assert SitePolicy(send_counts=False).filtered_counts(counts) == bare  # they count classes, too


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('methods = ["fpl"]\nmin_examples = 20\nsend_counts = false\nmax_rounds = 50\n')
    policy = read_policy(path)
    assert policy == SitePolicy(methods=("fpl",), min_examples=20, send_counts=False, max_rounds=50)
    assert policy.describe() == [
        "runs: fpl; up to 50 rounds per run; any number of runs per day",
        "sent: models; prototypes of 20 or more examples, without their counts; the number of all "
        "examples; one score per round",
        "limits: 100 epochs and 2 repeats per round; messages of 512 MB; memory 80 % of the "
        "machine's",
    ]
    tight = SitePolicy(methods=(), max_rounds=1, max_runs_per_day=1, max_scores=1, max_memory_gb=8)
    assert tight.describe()[0] == "runs: no method; up to 1 round per run; up to 1 run per day"
    assert tight.describe()[1].endswith(
        "with their counts; the number of all examples; up to 1 score per run, with answers "
        "by class"
    )
    assert tight.describe()[2].endswith("memory 8 GB")
    assert SitePolicy(max_scores=0).describe()[1].endswith("no scores")
    counted = "one score per round, with answers by class"
    assert SitePolicy().describe()[1].endswith(counted)
    assert SitePolicy(send_answers=False).describe()[1].endswith("one score per round")
    assert read_policy(None) == SitePolicy() == SitePolicy(min_examples=5)
    with pytest.raises(ValidationError):
        policy.min_examples = 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("min_example = 3", "no such field; did you mean 'min_examples'? (known: methods,"),
        ("min_examples = 0", "policy.min_examples: input should be greater than or equal to 1"),
        ("min_examples = true", "policy.min_examples: input should be a valid integer"),
        ("min_examples = 5.5", "policy.min_examples: input should be a valid integer"),
        ('send_counts = "no"', "policy.send_counts: input should be a valid boolean"),
        ('methods = "fpl"', 'policy.methods: write a list, ["first", "second"], got \'fpl\''),
        ('methods = ["fpll"]', "unknown name 'fpll'; did you mean 'fpl'?"),
        ("max_rounds = -1", "policy.max_rounds: input should be greater than or equal to 1"),
        ("a\x00", "not valid TOML"),
        ("min_examples = 0\nsend_counts = 0", "\n"),
    ],
)
def test_a_faulty_file_is_refused_in_words(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ProtofedError) as fault:
        read_policy(path)
    assert told in str(fault.value)
    assert all(line.startswith(str(path)) for line in str(fault.value).splitlines())


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="No such file"):
        read_policy(tmp_path / "policy.toml")
