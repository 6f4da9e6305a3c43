from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from warp_unlearning import unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.models.own import (
    Logits,
    as_network,
    check_examples,
    check_network,
    file_digest,
    is_trusted,
    load_builder,
    load_function,
    trust,
    unwrap,
)
from warp_unlearning.models.weights import load_weights, model_digest

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
from warp_unlearning.errors import InputError

@dataclass
class Options:
    size: int = 3

def build(size: int = 3) -> nn.Module:
    return nn.Linear(Options(size).size, 2)

class Net(nn.Linear):
    pass

def listed():
    return [1]

def failing():
    raise RuntimeError("first\\n second")

def refusing():
    raise InputError("mine")

def lazy():
    return nn.LazyLinear(3)

number = 3
"""
VIT = ViTConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(GOOD)
    return path


def test_a_function_or_class_builds_and_files_of_one_name_stay_apart(tmp_path: Path, file: Path) -> None:
    assert load_builder(f"{file}:build")(size=5).in_features == 5
    assert type(load_builder(f"{file}:Net")(2, 4)).__name__ == "Net"
    assert load_function(f"{file}:listed", what="preprocessing")() == [1]
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
        text = f"from torch import nn\ndef build():\n    return nn.Linear({size}, 1)\n"
        (tmp_path / str(size) / "model.py").write_text(text)
    builders = [load_builder(f"{tmp_path}/{size}/model.py:build") for size in (1, 2)]
    assert [builder().in_features for builder in builders] == [1, 2]
    assert [sys.modules[builder.__module__].build().in_features for builder in builders] == [1, 2]


@pytest.mark.parametrize("spec", ["model.py", "model.py:", ":build", "model:build", "model.txt:build", ""])
def test_a_spec_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"names no preprocessing; write it as FILE\.py:NAME"):
        load_function(spec, what="preprocessing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("biuld", "has no model builder 'biuld'; did you mean 'build'"),
        ("number", "has no model builder 'number'; Known: .*build"),
        ("listed", r"listed returned a list; make it return an nn\.Module"),
        ("failing", "failing failed to build a model: RuntimeError: first second;"),
        ("refusing", "^mine$"),
        ("lazy", r"weight of what .*own\.py:lazy returned has no shape yet"),
    ],
)
def test_what_builds_no_network_is_refused(file: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_builder(f"{file}:{name}")()
    with pytest.raises(InputError, match="unexpected keyword argument 'sizes'"):
        load_builder(f"{file}:build")(sizes=2)


@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [
        ("raise ValueError('one\\n two')", ValueError, "ValueError: one two; make"),
        ("def (", SyntaxError, "SyntaxError: "),
        ("import no_such_module_anywhere", ModuleNotFoundError, "no_such_module_anywhere"),
        ("raise SystemExit", SystemExit, "SystemExit; make"),
    ],
)
def test_a_file_that_fails_is_an_error_of_one_line(
    tmp_path: Path, text: str, cause: type[BaseException], message: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(InputError, match=message) as caught:
        load_builder(f"{tmp_path}/bad.py:build")
    assert isinstance(caught.value.__cause__, cause)
    assert "\n" not in str(caught.value)
    assert not {name for name in set(sys.modules) - before if name.startswith("user_model_")}
    for name in ("absent.py", "folder.py"):
        (tmp_path / "folder.py").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=f"{name} is no file"):
            load_builder(f"{tmp_path}/{name}:build")


def test_a_file_is_trusted_as_it_was_when_it_was_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec, copy = f"{file}:build", tmp_path / "copy.py"
    assert not is_trusted(spec)
    trust(spec)
    trust(spec)
    copy.write_bytes(file.read_bytes())
    assert is_trusted(spec)
    assert is_trusted(f"{copy}:listed")
    listing = tmp_path / "state" / "warp" / "trusted"
    assert listing.read_text() == f"{file_digest(spec)}\n"
    assert stat.S_IMODE(listing.stat().st_mode) == 0o600
    file.write_text(GOOD + "#")
    assert not is_trusted(spec)
    trust(spec)
    assert is_trusted(spec)
    assert is_trusted(f"{copy}:build")
    file.unlink()
    with pytest.raises(InputError, match=r"own\.py cannot be read: No such file"):
        is_trusted(spec)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    trust(f"{copy}:build")
    assert (tmp_path / ".local" / "state" / "warp" / "trusted").is_file()


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_folder_gives_its_classifier_trained_or_not(tmp_path: Path) -> None:
    model = ViTForImageClassification(VIT).eval()
    model.save_pretrained(tmp_path / "whole")
    ViTModel(VIT).save_pretrained(tmp_path / "body")
    spec, x = f"hf:{tmp_path / 'whole'}", torch.ones(2, 3, 8, 8)
    found = load_builder(spec)()
    assert torch.equal(found.eval()(x), model(x).logits)
    assert model_digest(found) == model_digest(model)
    assert model_digest(load_builder(spec, untrained=True)()) != model_digest(model)
    # Its network needs no trust, for it runs no code; under that name nothing else is taken.
    assert not is_trusted(spec)
    assert len(file_digest(spec)) == 64
    model.half().save_pretrained(tmp_path / "half")
    assert next(load_builder(f"hf:{tmp_path / 'half'}")().parameters()).dtype == torch.float16
    with pytest.raises(InputError, match="lacks weights for classifier"):
        load_builder(f"hf:{tmp_path / 'body'}")()
    with pytest.raises(InputError, match=r"holds no config\.json; give the folder of a model's `save_pretrained`"):
        load_builder("hf:google/vit-base-patch16-224")()


class Answering(nn.Module):
    """A network whose output is a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout()
        self.last = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(1))
        self.note = "kept"

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.norm(self.first(x)))
        return {"logits": self.last(self.drop(hidden.mean((2, 3))))}


def images(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_a_wrapped_model_has_the_names_modes_and_tensors_of_its_own() -> None:
    inner = Answering().eval()
    model = as_network(inner, example=images(2))
    assert isinstance(model, Logits)
    assert as_network(model) is model
    assert unwrap(model) is inner
    assert unwrap(inner) is inner
    assert list(model.state_dict()) == list(inner.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in inner.named_modules()]
    assert torch.equal(model(images(3)), inner(images(3))["logits"])
    assert (model.training, model.note) == (False, "kept")
    model.train()
    model(images(3))
    assert (inner.training, inner.drop.training) == (True, True)
    zeroed = torch.func.functional_call(model, {"last.bias": torch.zeros(3)}, images(3))
    assert not torch.equal(zeroed, model(images(3)))
    load_weights(model.double(), inner.state_dict())
    assert {p.dtype for p in inner.parameters()} == {torch.float64}
    with pytest.raises(AttributeError, match="absent"):
        model.absent
    x = images(3).double()
    inner.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    assert torch.equal(Logits(inner.eval())(x), inner(x)["logits"])


def test_a_wrapped_model_is_moved_and_unlearns_like_one_that_gives_logits() -> None:
    class Plain(Answering):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)["logits"]

    torch.manual_seed(0)
    inner, plain = Answering(), Plain()
    plain.load_state_dict(inner.state_dict())
    sets = {"forget": (images(6), torch.arange(6) % 3), "retain": (images(30, 1), torch.arange(30) % 3)}
    found = [
        unlearn(m, method="ngp", defense="cob", defense_seed=3, seed=2, **sets).model  # type: ignore[arg-type]
        for m in (as_network(inner, example=images(2)), plain)
    ]
    assert model_digest(found[0]) == model_digest(found[1])
    assert model_digest(found[0]) != model_digest(inner)
    assert isinstance(unwrap(found[0]), Answering)
    torch.testing.assert_close(unwrap(found[0]).eval()(images(4))["logits"], found[1].eval()(images(4)))


class Packed(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "it is a NoneType; give an nn.Module"),
        (lambda: nn.Linear, "it is a type; give an nn.Module"),
        (lambda: torch.jit.script(nn.Linear(2, 3)), "compiled RecursiveScriptModule; give the module"),
        (lambda: torch.compile(nn.Linear(2, 3)), "compiled OptimizedModule; give the module"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), r"1\.weight of it has no shape yet.*call"),
        (lambda: nn.Linear(2, 3, device="meta"), "weight of it is on the device meta"),
        (lambda: Packed(torch.int8), "codes of it is int8; give a network of floating-point weights"),
        (lambda: Packed(torch.bool), "codes of it is bool"),
        (lambda: Packed(torch.complex64), "codes of it is complex64"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2))),
            "0 is a quantised Linear; give",
        ),
        (nn.ReLU, "it is a ReLU with no parameters"),
    ],
)
def test_what_has_no_weights_to_change_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_network(make(), what="it")
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert as_network(model, example=torch.ones(1, 2)) is model


def examples(n: int = 4, *, value: float | None = None) -> TensorExamples:
    return TensorExamples(images(n) if value is None else torch.full((n, 1, 6, 6), value), torch.arange(n) % 3)


class Fixed(nn.Linear):
    """Gives the same output for every batch."""

    def __init__(self, output: object) -> None:
        super().__init__(2, 2)
        self.output = output

    def forward(self, x: Tensor) -> object:  # type: ignore[override]
        return self.output


@pytest.mark.parametrize(
    ("model", "found", "error", "message"),
    [
        (SmallResNet(classes=2), examples(), DataError, "the t set has the label 2 at row 2, but the model has 2 cl"),
        (SmallResNet(), examples(0), DataError, "the t set is empty"),
        (SmallResNet(in_channels=3), examples(), DataError, r"an example of the t set, of shape \(1, 6, 6\)"),
        (SmallResNet(), examples(value=torch.inf), DataError, "not finite at row 0"),
        (Fixed(torch.full((2, 3), torch.nan)), examples(), InputError, "output on the t set is not finite"),
        (Fixed(torch.ones(5, 3)), examples(), InputError, r"output is \(5, 3\); it must be a tensor of logits"),
        (Fixed({"logits": torch.ones(2, 3)}), examples(), InputError, r"output is dict; .*wrap the model: .*Logits"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    model: nn.Module, found: TensorExamples, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_examples(model, {"t": found})
    good = SmallResNet(width=2, classes=5)
    before = model_digest(good)
    assert check_examples(good, {"forget": examples(), "test": examples(1)}) == 5
    assert (good.training, model_digest(good)) == (True, before)
