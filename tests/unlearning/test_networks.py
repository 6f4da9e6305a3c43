"""Networks that users bring run through every method, alone and with a null-space defence."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.networks import VisionTransformer, gated
from torch import Tensor, nn

from warp_unlearning import compare, unlearn
from warp_unlearning.errors import InputError
from warp_unlearning.methods.registry import BUILT_IN

pytestmark = [
    pytest.mark.filterwarnings("ignore::warp_unlearning.errors.WarpWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # torch, of attention under vmap
]

SHORT: dict[str, dict[str, Any]] = {"srf_on": {"iterations": 3}, "langevin": {"epochs": 1}}


def hugging_face() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(**sizes, image_size=6, patch_size=3, num_channels=1, num_labels=3)
    return ViTForImageClassification(config)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "hugging face": hugging_face,
    "class token": VisionTransformer,
    "squeeze and excite": gated,
}


def sets(flat: bool = False) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(66) % 3
    x = torch.randn(66, 1, 6, 6, generator=generator) + 0.5 * y[:, None, None, None]
    x = x.flatten(1) if flat else x
    return {"forget": (x[:10], y[:10]), "retain": (x[10:50], y[10:50]), "test": (x[50:], y[50:])}


@pytest.mark.parametrize("defense", [None, "warp"])
@pytest.mark.parametrize("method", list(BUILT_IN))
@pytest.mark.parametrize("network", list(NETWORKS))
def test_every_method_runs_on_networks_of_others(network: str, method: str, defense: str | None) -> None:
    build = NETWORKS[network]
    model = build().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    options = SHORT.get(method, {"epochs": 2})
    result = unlearn(model, **sets(), method=method, options=options, defense=defense, untrained=build)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert type(result.model) is type(model)
    after = result.model.state_dict()
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    assert any(not torch.equal(t, before[n]) for n, t in after.items())
    assert [m.training for m in result.model.modules()] == [m.training for m in model.modules()]
    assert (len(result.teleports) > 0) == (defense == "warp")
    answer = result.model(sets()["test"][0])
    assert isinstance(answer, Tensor) == (network != "hugging face")
    assert (result.verdict.null == "ours") == (method == "retrain")


class Dictionary(nn.Module):
    """Its outputs are what `kind` makes of the logits."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.kind, self.hidden, self.head = kind, nn.Linear(36, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.kind(logits=self.head(torch.relu(self.hidden(x))))


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_outputs_with_logits_are_understood(kind: Callable[..., Any]) -> None:
    model = Dictionary(kind)
    plain = nn.Sequential(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    plain.load_state_dict(dict(zip(plain.state_dict(), model.state_dict().values(), strict=True)))
    found, expected = (unlearn(m, **sets(flat=True), method="ngp") for m in (model, plain))
    assert isinstance(found.model, Dictionary)
    assert isinstance(found.model(torch.zeros(1, 36)), kind)
    assert found.history == expected.history
    assert found.verdict == expected.verdict
    assert compare(model, found.model, **sets(flat=True)).verdict == found.verdict


@pytest.mark.parametrize("method", ["retrain", "bad_teacher"])
def test_a_new_network_must_be_given_where_no_layer_can_be_reset(method: str) -> None:
    torch.manual_seed(1)
    model, new = VisionTransformer(), VisionTransformer()
    with pytest.raises(InputError, match=r"nothing says how the parameter \w+ of a VisionTransformer starts"):
        unlearn(model, **sets(), method=method, options={"epochs": 1})
    with pytest.raises(InputError, match="has the weights of the model itself"):
        unlearn(model, **sets(), method=method, options={"epochs": 1}, untrained=model)
    one, other = (unlearn(model, **sets(), method=method, untrained=new, options={"epochs": 1}) for _ in range(2))
    assert all(torch.equal(t, other.model.state_dict()[n]) for n, t in one.model.state_dict().items())
    if method == "retrain":
        assert "the untrained network that was given" in " ".join(one.verdict.assumes)
