from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from warp_unlearning.errors import DataError, DivergedError, InputError, WarpWarning
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, apply_move
from warp_unlearning.training.update import Update
from warp_unlearning.unlearning import DeletionRecord, Unlearned, unlearn


def build(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
        model(torch.randn(30, 5, dtype=dtype))
    return model


def points(count: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    return torch.randn(count, 5, generator=generator, dtype=dtype) + y.unsqueeze(1), y


def sets(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"forget": points(11, 1, dtype), "retain": points(27, 2, dtype), "validation": points(10, 3, dtype)}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("name", ["ngp", "scrub", "retrain"])
def test_the_original_comes_back_untouched(name: str) -> None:
    model, data = build().train(), sets()
    model[1].eval()
    model[1].bias.requires_grad_(False)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, float(i))
    before, given = state_of(model), {k: (x.clone(), y.clone()) for k, (x, y) in data.items()}
    result = unlearn(model, method=name, options={"epochs": 2}, **data)
    assert same(state_of(model), before)
    assert all(bool((p.grad == i).all()) for i, p in enumerate(model.parameters()))
    assert all(torch.equal(a, b) for k in data for a, b in zip(data[k], given[k], strict=True))
    assert not same(state_of(result.model), before)
    kept, new = ({p.data_ptr() for p in m.state_dict().values()} for m in (model, result.model))
    assert not kept & new
    for either in (model, result.model):
        assert [m.training for m in (either, *either)] == [True, True, False, True, True]
        assert [p.requires_grad for p in either.parameters()] == [True, True, False, True, True]
    assert all(p.grad is None for p in result.model.parameters())
    if name != "retrain":
        assert torch.equal(result.model[1].bias, model[1].bias)


def loader(*pair: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*pair), batch_size=4)


def test_tensors_datasets_and_loaders_give_the_same_result() -> None:
    method = NegGradPlus(epochs=2, batch_size=8, saturate=True)
    first = unlearn(build(), method=method, **sets())
    for form in (TensorDataset, lambda *pair: Subset(TensorDataset(*pair), range(len(pair[1]))), loader):
        result = unlearn(build(), method=method, **{what: form(*pair) for what, pair in sets().items()})
        assert same(state_of(result.model), state_of(first.model))
        assert result.history == first.history
        done, expected = result.record.deletions[0], first.record.deletions[0]
        assert (done.requested, done.retained) == (11, 27)
        assert done.forget_digest == expected.forget_digest or done.forget_digest.startswith("labels:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "scrubb"}, r"unknown method 'scrubb'; did you mean 'scrub'\?"),
        ({"defense": "wrap"}, r"unknown defence 'wrap'; did you mean 'warp'\?"),
        ({"retain": None}, "the retain set is a NoneType"),
        ({"retain": points(11, 1)}, "11 examples of the retain set are also in the forget set"),
        ({"test": points(9, 1)[:1]}, "the test set is a tuple"),
        ({"model": build().requires_grad_(False)}, "no trainable parameter"),
        ({"model": build().bfloat16()}, r"0.weight is bfloat16, .* give model\.float\(\) .* --dtype float32"),
        ({"seed": 1.5}, "seed is 1.5; give a whole number"),
        ({"defense_seed": True, "defense": "cob"}, "defense_seed is True; give a whole number"),
        ({"options": {"alfa": 1.0}}, "ngp has no option 'alfa'; did you mean 'alpha'"),
        ({"options": {"alpha": 0.5}, "method": NegGradPlus()}, "options are given beside a NegGradPlus object"),
        ({"method": "nowhere.py:Own"}, "nowhere.py is no file"),
        ({"device": "cuda:99"}, "the device 'cuda:99' cannot be used"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": build(), "method": "ngp", **sets(), **options}
    with pytest.raises((InputError, DataError), match=message):
        unlearn(given.pop("model"), **given)


def test_a_method_may_be_a_class_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    own = "class Own(NegGradPlus):\n    pass\ndef other():\n    return 3\n"
    file.write_text(f"from warp_unlearning.methods import NegGradPlus\n{own}")
    options = {"epochs": 2, "alpha": 0.7}
    found = unlearn(build(), method=f"{file}:Own", options=options, **sets())
    named = unlearn(build(), method="ngp", options=options, **sets())
    made = unlearn(build(), method=NegGradPlus(epochs=2, alpha=0.7), device="cpu", seed=np.int64(0), **sets())
    assert all(same(state_of(found.model), state_of(other.model)) for other in (named, made))
    assert found.record.deletions[0].method["options"]["alpha"] == 0.7
    for spec, message in ((f"{file}:Nobody", "has no method 'Nobody'"), (f"{file}:other", "gives a int without")):
        with pytest.raises(InputError, match=message):
            unlearn(build(), method=spec, **sets())
    with pytest.raises(InputError, match=r"cannot be made with \{'alfa': 1\}"):
        unlearn(build(), method=f"{file}:Own", options={"alfa": 1}, **sets())


def test_the_result_shows_itself_and_is_saved_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = points(90, 5)
    result = unlearn(build(), method="ngp", options={"epochs": 2}, defense="cob", test=test, progress=True, **sets())
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("ngp: update 2 of 2, ")
    assert repr(result).startswith("Unlearned(ngp + cob: 11 rows forgotten, 27 kept, 2 updates, ")
    assert result.verdict.sentence in repr(result)
    assert "\n" not in repr(result)
    assert "Unlearned(ngp + cob" in result._repr_html_()
    assert result.rows() == result.history
    result.save(tmp_path / "new.safetensors")
    weights = read_weights(tmp_path / "new.safetensors")
    assert same(weights.state, state_of(result.model))
    assert DeletionRecord.from_json(weights.header["record"]) == result.record
    assert [f.name for f in tmp_path.iterdir()] == ["new.safetensors"]


def test_accuracies_and_verdict_are_those_of_the_weights_as_they_are_stored() -> None:
    x, y = points(90, 5)
    y[y == 2] = 1
    data = sets() | {"forget": (x[80:], y[80:]), "test": (x[:80], y[:80])}
    retain = data["retain"][1] == 0  # class 1 goes, class 2 was never tested
    data["retain"] = tuple(part[retain] for part in data["retain"])
    result = unlearn(build(), method="ngp", options={"epochs": 2, "lr": 0.1}, stored=torch.bfloat16, **data)
    for tensor in result.model.state_dict().values():
        assert not tensor.is_floating_point() or torch.equal(tensor, tensor.bfloat16().float())
    done = result.record.deletions[0]
    assert (done.unlearned, done.verdict) == (
        model_digest(result.model),
        json.loads(json.dumps(result.verdict.as_json())),
    )
    for model, shares in ((build(), result.before), (result.model, result.after)):
        with torch.no_grad():
            right = model.eval()(x).argmax(1) == y
        assert shares["forgotten"] == pytest.approx(float(right[80:].double().mean()))
        assert shares["test"] == pytest.approx(float(right[:80].double().mean()))
        assert shares["kept"] == pytest.approx(float(right[:80][y[:80] == 0].double().mean()))
        unseen = sum(float(right[:80][y[:80] == c].double().mean()) * int((y[80:] == c).sum()) for c in (0, 1))
        assert shares["unseen"] == pytest.approx(unseen / 10)
    without, seen = (unlearn(build(), method="ngp", **sets(), test=test) for test in (None, points(90, 5)))
    assert same(state_of(without.model), state_of(seen.model))
    assert (without.verdict.exit, without.verdict.reasons) == (3, ("no test rows", "no unseen rows"))
    assert [without.after[part] for part in ("unseen", "test", "kept")] == [None, None, None]
    assert seen.verdict.unseen == 90
    with pytest.raises(InputError, match="stored is 'bf16'; give a floating-point type"):
        unlearn(build(), method="ngp", stored="bf16", **sets())  # type: ignore[arg-type]


def test_history_and_record_tell_what_was_done() -> None:
    model, method, seen = build(), NegGradPlus(epochs=3, batch_size=8, alpha=0.7), list[Update]()
    result = unlearn(model, method=method, seed=9, on_update=seen.append, **sets())
    assert [u.step for u in seen] == list(range(1, 13))
    assert result.history == [
        {"update": u.step, "epoch": u.epoch, **{n: float(v) for n, v in u.losses.items()}} for u in seen
    ]
    assert (result.teleports, result.seconds > 0) == ([], True)
    (deletion,) = result.record.deletions
    assert (deletion.original, deletion.unlearned) == (model_digest(model), model_digest(result.model))
    assert deletion.original != deletion.unlearned
    assert (deletion.method["name"], deletion.method["options"]["alpha"]) == ("ngp", 0.7)
    assert (deletion.requested, deletion.retained, deletion.seed) == (11, 27, 9)
    assert (deletion.defense, deletion.experiment_only) == (None, False)
    assert deletion.request == {"how": "examples", "rows": 11, "copies": 0, "drawn": False}
    assert (deletion.device, deletion.threads, deletion.recipe) == ("cpu", torch.get_num_threads(), None)
    again = unlearn(result.model, method=method, **sets())
    assert len(result.record.then(again.record.deletions[0]).deletions) == 2
    terms = unlearn(model, method=Scripted(steps=3), **sets()).history
    assert [{k: v for k, v in row.items() if k != "epoch"} for row in terms] == [
        {"update": 1, "forget": 0.5},
        {"update": 2, "retain": 1.0, "anchor": -1.0},
        {"update": 3, "forget": 1.5},
    ]


@dataclass(frozen=True)
class Scripted:
    """Adds 1 to every weight a step; the loss of step `bad` is `value`."""

    name: ClassVar[str] = "scripted"
    norm_mode: ClassVar[str] = "eval"
    steps: int = 25
    bad: int = 1000
    value: float = torch.nan

    def updates(self, model: nn.Module, task: Any) -> Iterator[Update]:
        for step in range(1, self.steps + 1):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1.0)
            loss = torch.tensor(self.value if step == self.bad else 0.5 * step)
            # Terms may differ from one update to the next.
            losses = {"forget": loss} if step % 2 else {"retain": loss, "anchor": -loss}
            yield Update(step, self.steps, 0, False, losses)


@pytest.mark.parametrize(("bad", "checked"), [(3, 0), (10, 0), (11, 10), (25, 20)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_diverging_method_is_stopped_and_the_last_finite_weights_kept(bad: int, checked: int, value: float) -> None:
    model = build(torch.float64)
    with pytest.raises(DivergedError, match=f"a loss became .* after update {checked} ") as caught:
        unlearn(model, method=Scripted(bad=bad, value=value), **sets(torch.float64))
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(caught.value.state[name], tensor.detach() + checked)
    with pytest.raises(DivergedError) as caught:
        unlearn(build(), method=NegGradPlus(lr=1e30, alpha=0.1, epochs=20, momentum=0.0), **sets())
    assert all(bool(t.isfinite().all()) for t in caught.value.state.values())


class Shuffle:
    """A defence and its session, which reorders the hidden units after every update and at both ends."""

    name: ClassVar[str] = "shuffle"

    def __init__(self) -> None:
        self.log, self.certificates = list[str](), list[SimpleNamespace]()
        self.orders, self.modes = list[list[int]](), list[bool]()

    def start(self, model: nn.Module, task: Any, *, streams: Streams) -> Shuffle:
        self.log.append("start")
        self.model, self.generator = model, streams.generator("order")
        self._move()
        return self

    def between(self, update: Update) -> ChannelMove | None:
        self.log.append(f"between {update.step}")
        self.modes.append(self.model.training)
        if update.step % 3 == 0:
            return None
        # A defence may leave the model in a mode of its own.
        self.model.eval()
        self.certificates.append(SimpleNamespace(step=update.step, notes=("shuffled",)))
        return self._move()

    def finish(self) -> None:
        self.log.append("finish")
        self._move()

    def _move(self) -> ChannelMove:
        order = torch.randperm(6, generator=self.generator)
        self.orders.append(order.tolist())
        rows, columns = (AxisMap(0, order),), (AxisMap(1, order),)
        names = ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")
        move = ChannelMove(dict.fromkeys(names, rows) | {"3.weight": columns})
        apply_move(self.model, move)
        return move


def defended(defense_seed: int | None = 1) -> tuple[Unlearned, Shuffle]:
    defense, data = Shuffle(), sets(torch.float64)
    method = NegGradPlus(epochs=1, batch_size=8)
    return unlearn(build(torch.float64), method=method, defense=defense, defense_seed=defense_seed, **data), defense


def test_the_defence_is_called_between_updates_and_at_the_end() -> None:
    result, defense = defended()
    assert defense.log == ["start", "between 1", "between 2", "between 3", "between 4", "finish"]
    # The method's mode is put back after every move, whatever the defence left.
    assert defense.modes == [True, True, True, True]
    assert [certificate.step for certificate in result.teleports] == [1, 2, 4]
    (deletion,) = result.record.deletions
    assert deletion.defense == {"name": "shuffle", "options": {}}
    assert deletion.verdicts == {"defense": ["shuffled"]}
    assert deletion.original == model_digest(build(torch.float64))
    # The same function with other weights.
    plain = unlearn(build(torch.float64), method=NegGradPlus(epochs=1, batch_size=8), **sets(torch.float64))
    x = points(40, 9, torch.float64)[0]
    torch.testing.assert_close(result.model.eval()(x), plain.model.eval()(x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(result.model[0].weight, plain.model[0].weight)
    assert len(result.history) == len(plain.history)


def test_a_defence_draws_from_entropy_unless_told_otherwise() -> None:
    def orders(seed: int | None) -> list[list[int]]:
        result, defense = defended(seed)
        assert result.record.deletions[0].experiment_only == (seed is not None)
        return defense.orders

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    assert orders(None) != orders(None)


def test_a_buffer_that_retraining_keeps_is_not_forgotten_by_construction() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("seen", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.seen)

    x, y = torch.randn(30, 4), torch.arange(30) % 3
    rows = {"forget": (x[:5], y[:5]), "retain": (x[5:20], y[5:20]), "test": (x[20:], y[20:])}
    with pytest.warns(WarpWarning, match="retraining keeps the buffer seen"):
        kept = unlearn(Keeps(), method="retrain", options={"epochs": 1}, **rows)
    assert kept.verdict.null == "unseen"
    given = unlearn(Keeps(), method="retrain", options={"epochs": 1}, untrained=Keeps, **rows)
    assert given.verdict.null == "ours"
