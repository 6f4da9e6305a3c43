"""`compare` against the same quantities computed one example at a time with numpy; the verdict on small networks."""

import json
from copy import deepcopy
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from warp_unlearning import unlearn
from warp_unlearning.errors import DataError, InputError, WarpWarning
from warp_unlearning.unlearning.judge import ModelComparison, compare, output_distance

CLASSES = 4
SIZES = {"forget": 37, "retain": 61, "test": 23}
Pair = tuple[Tensor, Tensor]


def network(seed: int, classes: int = CLASSES) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # In train mode both batch norm and dropout would change the outputs.
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes))


def examples(seed: int, count: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator) * 2
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    return {name: network(seed) for seed, name in enumerate(("original", "unlearned", "retrained"))}


@pytest.fixture(scope="module")
def sets() -> dict[str, Pair]:
    return {what: examples(seed, count) for seed, (what, count) in enumerate(SIZES.items())}


@pytest.fixture(scope="module")
def comparison(models: dict[str, nn.Module], sets: dict[str, Pair]) -> ModelComparison:
    return compare(models["original"], models["unlearned"], retrained=models["retrained"], **sets)


def probabilities(model: nn.Module, x: Tensor) -> NDArray[np.float64]:
    """The forward pass by hand, in eval mode, in double precision."""
    state = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    hidden = x.double().numpy() @ state["0.weight"].T + state["0.bias"]
    hidden = (hidden - state["1.running_mean"]) / np.sqrt(state["1.running_var"] + 1e-5)
    hidden = np.maximum(hidden * state["1.weight"] + state["1.bias"], 0)
    logits = hidden @ state["4.weight"].T + state["4.bias"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return result


def losses(model: nn.Module, pair: Pair) -> NDArray[np.float64]:
    p = probabilities(model, pair[0])
    return np.array([-np.log(p[i, int(label)]) for i, label in enumerate(pair[1])])


def steps_apart(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The largest difference of two empirical distribution functions, at every point where one jumps."""
    return max(abs(sum(v <= point for v in a) / len(a) - sum(v <= point for v in b) / len(b)) for point in (*a, *b))


def test_accuracy_and_losses_in_eval_mode(
    comparison: ModelComparison, models: dict[str, nn.Module], sets: dict[str, Pair]
) -> None:
    for name, scores in comparison.models.items():
        for what, (x, y) in sets.items():
            found = scores.accuracy[what]
            assert found.value == (probabilities(models[name], x).argmax(1) == y.numpy()).mean()
            assert 0 <= found.low < found.value < found.high <= 1
        expected, loss = losses(models[name], sets["forget"]), scores.forget_loss_mean
        assert loss.value == pytest.approx(expected.mean(), rel=1e-5)
        assert loss.low < loss.value < loss.high
        assert list(scores.forget_loss_quantiles) == ["0.05", "0.25", "0.5", "0.75", "0.95"]
        for q, value in scores.forget_loss_quantiles.items():
            between = np.interp(float(q) * (len(expected) - 1), range(len(expected)), sorted(expected))
            assert value == pytest.approx(between, rel=1e-5)


def test_gaps_to_the_retrained_model(
    comparison: ModelComparison, models: dict[str, nn.Module], sets: dict[str, Pair]
) -> None:
    assert set(comparison.gaps) == {"original", "unlearned"}
    x = sets["forget"][0]
    for name, gap in comparison.gaps.items():
        p, q = probabilities(models[name], x), probabilities(models["retrained"], x)
        assert gap.forget_output.value == pytest.approx(np.abs(p - q).sum() / 2 / len(p), rel=1e-5)
        assert gap.forget_output.low < gap.forget_output.value < gap.forget_output.high
        apart = steps_apart(losses(models[name], sets["forget"]), losses(models["retrained"], sets["forget"]))
        assert gap.forget_loss == pytest.approx(apart, abs=1e-12)
        for what in sets:
            scores = (comparison.models[n].accuracy[what].value for n in (name, "retrained"))
            assert gap.accuracy[what] == next(scores) - next(scores)


def test_sets_of_any_kind_and_models_that_come_back_as_they_were(
    comparison: ModelComparison, models: dict[str, nn.Module], sets: dict[str, Pair]
) -> None:
    copies = deepcopy(models)
    copies["unlearned"].eval()
    copies["retrained"][1].eval()  # type: ignore[index]
    modes = {n: [m.training for m in model.modules()] for n, model in copies.items()}
    forms = {"forget": DataLoader(TensorDataset(*sets["forget"]), 10), "retain": TensorDataset(*sets["retain"])}
    assert compare(**copies, **sets | forms) == comparison  # type: ignore[arg-type]
    assert {n: [m.training for m in model.modules()] for n, model in copies.items()} == modes
    for name, model in copies.items():
        assert all(torch.equal(t, models[name].state_dict()[k]) for k, t in model.state_dict().items())


def test_the_json_form(comparison: ModelComparison) -> None:
    data = json.loads(json.dumps(comparison.as_json(), allow_nan=False))
    assert (data["schema_version"], data["reference"], data["counts"]) == (2, "retrained model", SIZES)
    assert set(data) == {"schema_version", "reference", "models", "gaps", "counts", "verdict"}
    first = vars(comparison.models["original"].accuracy["forget"])
    assert data["models"]["original"]["accuracy"]["forget"] == first
    assert data["gaps"]["unlearned"]["forget_loss"] == comparison.gaps["unlearned"].forget_loss
    assert data["verdict"]["exit"] == comparison.verdict.exit
    told = {"accuracy": first["value"], "low": first["low"], "high": first["high"]}
    assert len(comparison.rows()) == 9
    assert comparison.rows()[0] == {"model": "original", "set": "forget", "rows": 37, **told}
    assert "ModelComparison(original, unlearned, retrained on 37 forget" in repr(comparison)
    assert "<td>retrained</td>" in comparison._repr_html_()


def test_one_forgotten_example_and_no_reference(models: dict[str, nn.Module], sets: dict[str, Pair]) -> None:
    one = (sets["forget"][0][:1], sets["forget"][1][:1])
    result = compare(models["original"], models["unlearned"], forget=one, retain=sets["retain"], test=sets["test"])
    bounds = result.models["original"].forget_loss_mean
    assert (bounds.low, bounds.high, result.gaps) == (-inf, inf, {})
    data = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert data["models"]["original"]["forget_loss_mean"] == {"value": bounds.value, "low": None, "high": None}
    assert data["reference"] == "none: no retrained model was given"


class Hollow(nn.Sequential):
    def __len__(self) -> int:  # so that it counts as false
        return 0


def test_several_references_and_no_test_rows(models: dict[str, nn.Module], sets: dict[str, Pair]) -> None:
    pair, part = (models["original"], models["unlearned"]), {w: sets[w] for w in ("forget", "retain")}
    result = compare(*pair, **part, retrained=[models["original"], network(7)])
    assert list(result.models) == ["original", "unlearned", "retrained 1", "retrained 2"]
    assert set(result.gaps) == {"original", "unlearned", "retrained 2"}
    gap = result.gaps["original"]
    assert (gap.forget_output.value, gap.forget_loss, set(gap.accuracy.values())) == (0, 0, {0})
    assert result.gaps["unlearned"].forget_output.value > 0.01
    assert result.verdict.reasons == ("no test rows", "no unseen rows")
    assert "retrained" in compare(*pair, **part, retrained=Hollow(network(9))).models


def test_output_distance_runs_from_equal_to_disjoint() -> None:
    sure = torch.tensor([[100.0, 0.0, 0.0], [0.0, 100.0, 0.0], [0.0, 0.0, 0.0]])
    other = torch.tensor([[0.0, 100.0, 0.0], [0.0, 90.0, 0.0], [np.log(2.0), np.log(1.0), np.log(1.0)]])
    assert output_distance(sure, other).tolist() == pytest.approx([1.0, 0.0, 1 / 6], abs=1e-6)


def test_what_cannot_be_compared_is_named(models: dict[str, nn.Module], sets: dict[str, Pair]) -> None:
    pair, broken = (models["original"], models["unlearned"]), deepcopy(models["unlearned"])
    with pytest.raises(DataError, match=r"cannot take an example of the test set, of shape \(6,\)"):
        compare(*pair, **sets | {"test": (torch.zeros(2, 6), torch.zeros(2).long())})
    with pytest.raises(DataError, match="the forget set is empty"):
        compare(*pair, **sets | {"forget": (torch.zeros(0, 5), torch.zeros(0).long())})
    with pytest.raises(InputError, match="the new model has 5 outputs, the original 4;"):
        compare(models["original"], network(3, classes=5), **sets)
    broken[0].weight.detach()[0, 0] = 3e38  # type: ignore[index,union-attr,operator]
    x = torch.zeros(10, 5).index_fill(0, torch.tensor([5]), 100.0)
    with pytest.raises(InputError, match=r"unlearned model's output is not finite on 1 of 10 forget rows \(first: 5\)"):
        compare(models["original"], broken, **sets | {"forget": (x, torch.zeros(10).long())})


# The verdict, on networks that learned digits.


@pytest.fixture(scope="module")
def digits() -> Pair:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return torch.from_numpy(x[order] / 8 - 1).float(), torch.from_numpy(y[order]).long()


def learned(x: Tensor, y: Tensor, *, seed: int = 0, steps: int = 150, start: nn.Module | None = None) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = start or nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def parts(digits: Pair, rows: int = 200, known: int = 700) -> dict[str, Pair]:
    x, y = digits
    cuts = {"forget": slice(rows), "retain": slice(rows, known), "test": slice(known, None)}
    return {what: (x[cut], y[cut]) for what, cut in cuts.items()}


@pytest.fixture(scope="module")
def original(digits: Pair) -> nn.Module:
    return learned(digits[0][:700], digits[1][:700])


class Augmented(Dataset[tuple[Tensor, int]]):
    """Noise from torch's and numpy's global generators on every input, another each time."""

    def __init__(self, pair: Pair) -> None:
        self.x, self.y = pair

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] + torch.randn(64) + float(np.random.randn()), int(self.y[i])  # noqa: NPY002


def test_nothing_done_does_not_hold(original: nn.Module, digits: Pair) -> None:
    with pytest.warns(WarpWarning, match=r"by finetune does not hold: outputs differ by \.0000 on average"):
        result = unlearn(original, **parts(digits), method="finetune", options={"lr": 1e-6, "epochs": 1})
    assert (result.verdict.exit, result.verdict.reasons) == (1, ("nothing moved",))
    assert compare(original, result.model, **parts(digits)).verdict == result.verdict
    # Models are compared on the same augmented inputs.
    data = {what: Augmented(pair) for what, pair in parts(digits).items()}
    assert ".0000 on average and no answer changed" in compare(original, deepcopy(original), **data).verdict.sentence


def test_our_own_retraining_holds_and_a_frozen_backbone_is_not_retrained(original: nn.Module, digits: Pair) -> None:
    retrain: dict[str, Any] = {"method": "retrain", "options": {"epochs": 20, "lr": 0.1}}
    result = unlearn(original, **parts(digits), **retrain)
    assert (result.verdict.exit, result.verdict.null) == (0, "ours")
    assert "forgotten by construction" in result.verdict.reasons
    assert result.record.deletions[0].recipe == "ours"
    frozen = deepcopy(original)
    frozen[0].requires_grad_(False)  # type: ignore[index]
    assert unlearn(frozen, **parts(digits), **retrain).verdict.null == "unseen"


def test_a_collapsed_model_is_harmed(original: nn.Module, digits: Pair) -> None:
    x, y = digits
    broken = learned(x[:50], (y[:50] + 1) % 10, steps=20, start=deepcopy(original))
    assert "harmed" in compare(original, broken, **parts(digits)).verdict.reasons


def test_what_learned_the_rows_better_does_not_hold(digits: Pair) -> None:
    x, y = digits[0], digits[1].clone()
    y[:60] = (y[:60] + 1) % 10  # labels that only memory knows
    data = parts((x, y))
    before = learned(x[200:700], y[200:700])
    after = learned(*data["forget"], steps=100, start=deepcopy(before))
    verdict = compare(before, after, **data).verdict
    assert "learned more" in verdict.reasons
    assert verdict.exit == 1


def test_rows_drawn_at_random_that_are_still_known_are_recognised(digits: Pair) -> None:
    x, y = digits[0], digits[1].clone()
    y[:140] = (y[:140] + 1) % 10
    knows = learned(x[:700], y[:700], steps=400)
    still = learned(x[200:700], y[200:700], steps=3, start=deepcopy(knows))
    verdicts = {drawn: compare(knows, still, **parts((x, y)), drawn=drawn).verdict for drawn in (True, False)}
    assert verdicts[True].claims[-1].outcome == "does not hold"
    assert verdicts[False].claims[-1].reason == "differs from unseen rows"
    references = [learned(x[200:700], y[200:700], seed=s) for s in (1, 2)]
    assert "recognised" in compare(knows, still, **parts((x, y)), retrained=references).verdict.reasons
    fake = compare(knows, still, **parts((x, y)), retrained=[references[0], knows]).verdict
    assert "no reference" in fake.reasons


def test_test_rows_that_were_seen_do_not_count(original: nn.Module, digits: Pair) -> None:
    data = parts(digits)
    retrained = learned(*data["retain"], seed=1)
    mixed = [torch.cat([data["test"][i], data["retain"][i][:30], data["forget"][i][:5]]) for i in (0, 1)]
    plain, found = (compare(original, retrained, **data | {"test": t}).verdict for t in (data["test"], mixed))
    assert found.claims == plain.claims
    assert "35 test rows are also forgotten or retained, and left out" in found.assumes


def test_test_rows_of_a_class_that_is_gone_do_not_count_for_accuracy(original: nn.Module, digits: Pair) -> None:
    x, y = digits
    gone = y[:700] == 3
    data = {"forget": (x[:700][gone], y[:700][gone]), "retain": (x[:700][~gone], y[:700][~gone])}
    retrained = learned(*data["retain"], seed=1)
    verdict = compare(original, retrained, **data, test=(x[700:], y[700:]), drawn=True).verdict
    assert verdict.claims[1].outcome == "holds"
    assert verdict.unseen == int((y[700:] == 3).sum())
    wrong = compare(original, retrained, **data | {"retain": (x[:700], y[:700])}, test=(x[700:], y[700:])).verdict
    assert wrong.claims[1].outcome == "does not hold"
