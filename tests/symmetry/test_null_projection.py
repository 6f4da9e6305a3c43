from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warp_unlearning.symmetry.input_bases import exact_bases
from warp_unlearning.symmetry.null_projection import NullProjection
from warp_unlearning.symmetry.null_scope import scope_of


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=2),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def test_many_directions_are_projected_as_each_by_itself(kit: Any) -> None:
    model, x = kit.built(network), kit.normal(3, 4, 1, 1)
    model[5].bias.requires_grad_(False)
    scope = scope_of(model, exact_bases(model, [x], energy=0.9), x, {})
    parameters = dict(model.named_parameters())
    projection = NullProjection(scope, {name: parameters[name] for name in scope.names})
    vectors = kit.normal(3, projection.layout.length, seed=4)
    together = projection(vectors)
    for vector, found in zip(vectors, together, strict=True):
        expected = scope.project(projection.layout.scattered(vector))
        for name, value in projection.layout.scattered(found).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-13)
    reach = projection.reach
    assert reach is not None
    assert bool((together[:, ~reach] == 0).all())
    ones = scope.reached({name: torch.ones_like(parameters[name]) for name in scope.names})
    assert torch.equal(projection.layout.gathered(ones) == 1, reach)
    assert 0 < int(reach.sum()) < len(reach)


def test_each_direction_is_zero_where_only_rounding_is_left_of_it(kit: Any) -> None:
    """One lies in the span of the first layer's inputs and not of the last one's, one the other way round."""
    model, x = kit.built(lambda: nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 3))), kit.normal(4, 20)
    scope = scope_of(model, exact_bases(model, [x], energy=0.9999999), x, {})
    parameters = dict(model.named_parameters())
    projection = NullProjection(scope, parameters)
    first, last = projection.layout.places
    bases = [scope.bases[name].blocks[0].basis for name in ("0.weight", "2.weight")]
    vectors = kit.normal(2, projection.layout.length, seed=1)
    for vector, place, basis in zip(vectors, (first, last), bases, strict=True):
        inside = kit.normal(place.shape[0], basis.shape[1], seed=2) @ basis.mT
        vector[place.begin : place.end] = inside.flatten()
    found = projection(vectors)
    for vector, place, other in zip(found, (first, last), (last, first), strict=True):
        assert bool((vector[place.begin : place.end] == 0).all())
        assert float(vector[other.begin : other.end].norm()) > 0.1


def test_where_all_is_reached_there_is_nothing_to_mask(kit: Any) -> None:
    model, x = kit.built(lambda: nn.Linear(6, 3)), kit.normal(2, 6)
    scope = scope_of(model, exact_bases(model, [x], energy=1.0), x, {})
    projection = NullProjection(scope, dict(model.named_parameters()))
    assert projection.reach is None
    vector = kit.normal(projection.layout.length)
    assert projection.reached(vector) is vector
