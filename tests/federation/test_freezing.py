"""What is trained of a net, and that nothing else moves, travels or is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from protofed.core import tree
from protofed.core.freezing import whole_net
from protofed.core.model import ImageShape, Model, model_from_net
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.experiment.trained_run import open_trained_run
from protofed.export.inference_module import load_trained_model
from protofed.export.model_files import FORMATS, read_export, write_export
from protofed.federation.build import build_federation
from protofed.figures.gradcam import ExampleImage, explain_image
from protofed.methods import METHODS
from protofed.nets import build_net
from protofed.runtime.code_reference import OUR_CODE
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment
from tests.experiment.conftest import quick

Make = Callable[..., Experiment]
RULES = {
    "head": ["head"],
    "neck": ["neck", "head"],
    "last:1": ["encoder.fc2", "neck", "head"],
    "last:2": ["encoder.fc1", "encoder.fc2", "neck", "head"],
}


def trained_names(made: Experiment) -> set[str]:
    model = build_federation(made).server.initial_model()
    return {name.rpartition(".")[0] for name in {**model.weights, **model.buffers}}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_which_parts_are_in_the_model(rule: str, tiny: Make) -> None:
    net = build_net("moon-cnn", 10, ImageShape(1, 16), 0)
    whole = {name.rpartition(".")[0] for name in net.state_dict()}
    wanted = {name for name in whole if any(f"{name}.".startswith(f"{p}.") for p in RULES[rule])}
    assert trained_names(tiny(net="moon-cnn", train=rule)) == wanted < whole


def test_the_blocks_of_a_residual_net_are_its_blocks(tiny: Make) -> None:
    names = trained_names(tiny(net="resnet10", train="last:2"))
    assert {".".join(name.split(".")[:3]) for name in names} == {
        "encoder.layer3.0",
        "encoder.layer4.0",
        "head",
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"train": "heads"}, "train: must be all, neck, head, or last:"),
        ({"train": "last:0"}, "train: must be"),
        ({"feature_views": 1}, "feature_views: the encoder must be frozen"),
        ({"pretrained_sha256": "0" * 64}, "no file of pretrained weights"),
        ({"pretrained": "there/is/none"}, "does not exist"),
        ({"pretrained": "imagenet", "net": "moon-cnn"}, "no imagenet weights for net 'moon-cnn'"),
        ({"pretrained": "imagenet", "net": ["lsa-cnn", "moon-cnn"]}, "different nets"),
        (
            {"train": "head", "feature_views": 1, "net": ["lsa-cnn", "moon-cnn"]},
            "feature_views: clients have different nets",
        ),
    ],
)
def test_what_cannot_be_is_said_when_the_spec_is_read(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(ProtofedError, match=words):
        parse_experiment(fields)


def test_a_spec_from_somebody_else_opens_no_file(tmp_path: Path) -> None:
    raw = {"net": "moon-cnn", "pretrained": str(tmp_path / "none")}
    with pytest.raises(ProtofedError, match="pretrained_sha256: is required"):
        parse_experiment(raw, access=OUR_CODE)
    made = parse_experiment({**raw, "pretrained_sha256": "0" * 64}, access=OUR_CODE)
    with pytest.raises(ProtofedError, match="none does not exist"):
        build_federation(made)


def test_a_rule_that_leaves_nothing_frozen_is_refused(tiny: Make) -> None:
    with pytest.raises(ProtofedError, match="only 4 blocks, so last:4 freezes nothing"):
        build_federation(tiny(net="moon-cnn", train="last:4"))


def test_frozen_batch_norm_keeps_its_statistics_and_uses_them(tiny: Make, tmp_path: Path) -> None:
    made = tiny(net="resnet10", train="last:1", rounds=1)
    server = build_federation(made).server
    before = model_from_net(whole_net(server.net))
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    seen: list[torch.Tensor] = []
    server.net.encoder.get_submodule("layer3").register_forward_hook(
        lambda *call: seen.append(call[2])
    )
    server.forward_train(server.initial_model(), x)
    server.forward_eval(server.initial_model(), x)
    assert torch.equal(seen[0], seen[1])  # in training as in evaluation
    opened = open_trained_run(run(made, tmp_path / "a", workers=0).folder)
    site, model = opened.model()
    after = model_from_net(whole_net(site.net)) | model
    moved = {n for n in after.weights if not torch.equal(after.weights[n], before.weights[n])}
    assert moved == model.weights.keys()
    still = Model({}, {n: one for n, one in after.buffers.items() if n not in model.buffers})
    assert still.buffers
    assert all(torch.equal(one, before.buffers[n]) for n, one in still.buffers.items())


def test_only_the_trained_part_travels_and_is_counted(tiny: Make, tmp_path: Path) -> None:
    size = {}
    for rule in ("all", "neck", "head"):
        made = tiny(method="fpl", train=rule, rounds=1)
        folder = run(made, tmp_path / rule, workers=0).folder
        size[rule] = tree.nbytes(build_federation(made).server.initial_model())
        line = json.loads((folder / "rounds.jsonl").read_text())
        assert line["parts"]["up"]["model"] == line["parts"]["down"]["model"] == 3 * size[rule]
        assert line["parts"]["up"]["protos"] > 0
    assert size["head"] == 4 * (256 * 10 + 10) < size["neck"] < size["all"]


@pytest.mark.parametrize(
    ("net", "rule", "method", "told"),
    [
        ("moon-cnn", "head", "fpl", True),
        ("moon-cnn", "neck", "fpl", False),
        ("resnet10", "neck", "fpl", True),
        ("resnet10", "last:1", "fpl", False),
        ("resnet10", "neck", "fedavg", False),
        ("resnet10", "head", "fedseproto", False),
    ],
)
def test_prototypes_that_can_move_no_feature_are_told_of(
    net: str, rule: str, method: str, told: bool, tiny: Make
) -> None:
    notices = build_federation(tiny(net=net, train=rule, method=method)).notices
    assert any("all features are frozen" in notice.text for notice in notices) == told


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_what_is_left_to_train(name: str, tiny: Make, tmp_path: Path) -> None:
    more = {"public": {"samples": 8}} if "public images" in METHODS[name]().needs else {}
    made = tiny(method=quick(name), net="seproto-cnn2", train="neck", rounds=1, **more)
    stored = tiny(
        method=quick(name), net="seproto-cnn2", train="neck", rounds=1, feature_views=2, **more
    )
    for number, one in enumerate((made, stored)):
        result = run(one, tmp_path / str(number), workers=0)
        assert result.last.mean is not None
        opened = open_trained_run(result.folder)
        site, model = opened.model()
        assert not any(n.startswith("encoder") for n in {**model.weights, **model.buffers})
        assert opened.scores(opened.federation.tests["print"]).isfinite().all()
        assert site.net.encode(torch.zeros(1, 3, 16, 16)).shape == (1, 512)


@pytest.mark.parametrize("views", [0, 2])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_whole_model_is_exported_explained_and_read_without_the_file(
    kind: str, views: int, tiny: Make, tmp_path: Path
) -> None:
    weights = tmp_path / "secret-folder" / "w.safetensors"
    weights.parent.mkdir()
    source = build_net("moon-cnn", 10, ImageShape(3, 16), 5)
    save_file(source.state_dict(), weights)
    made = tiny(
        net="moon-cnn",
        method=quick("fedlsa"),
        pretrained=str(weights),
        train="neck",
        feature_views=views,
        rounds=1,
    )
    folder = run(made, tmp_path / "run", workers=0).folder
    opened = open_trained_run(folder)
    test = opened.federation.tests["print"]
    heat = explain_image(opened, ExampleImage("print", test.slice(0, 1)))
    assert heat.heat.shape == (16, 16)
    taken = load_trained_model(folder)
    out = tmp_path / f"model{FORMATS[kind].ending}"
    assert write_export(taken, FORMATS[kind], out).images > 0
    weights.unlink()
    product = read_export(out)
    assert torch.allclose(product.answer(taken.images).logits, taken.logits, atol=1e-3)
    assert b"secret-folder" not in out.read_bytes()
    assert product.facts.spec["pretrained"] == "w.safetensors"
    card = (folder / "card.md").read_text()
    assert "w.safetensors" in card
    assert "Only its neck and head were trained" in card


def test_weights_are_named_by_their_digest_not_by_their_place(tmp_path: Path) -> None:
    digests = []
    for number, seed in ((1, 5), (2, 5), (3, 6)):
        path = tmp_path / f"{number}.safetensors"
        save_file(build_net("moon-cnn", 10, ImageShape(3, 32), seed).state_dict(), path)
        made = parse_experiment({"net": "moon-cnn", "pretrained": str(path)})
        assert parse_experiment(made.to_dict()) == made
        digests.append(made.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_run_on_record_is_read_when_its_weights_are_gone_and_not_trained(
    tiny: Make, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    save_file(build_net("moon-mlp", 10, ImageShape(3, 16), 5).state_dict(), path)
    made = tiny(pretrained=str(path), rounds=1)
    first = run(made, tmp_path / "a", workers=0)
    path.unlink()
    again = parse_experiment(made.to_dict())
    assert run(again, tmp_path / "a", workers=0).last == first.last
    with pytest.raises(ProtofedError, match=r"w.safetensors does not exist"):
        run(again, tmp_path / "b", workers=0)
