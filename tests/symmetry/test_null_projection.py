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


def within(kit: Any, model: nn.Module, energies: dict[str, float], *, x: Any = None) -> NullProjection:
    """The projection by bases that hold so much of each layer's inputs."""
    x = kit.normal(3, 4, 1, 1) if x is None else x
    found = {energy: exact_bases(model, [x], energy=energy) for energy in set(energies.values())}
    scope = scope_of(model, {name: found[energy][name] for name, energy in energies.items()}, x, {})
    parameters = dict(model.named_parameters())
    return NullProjection(scope, {name: parameters[name] for name in scope.names})


def assert_same_projection(kit: Any, found: NullProjection, expected: NullProjection) -> None:
    vectors = kit.normal(2, expected.layout.length, seed=4)
    torch.testing.assert_close(found(vectors), expected(vectors), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found.reached(vectors[0]), expected.reached(vectors[0]), rtol=0, atol=0)


def test_a_projection_with_room_becomes_another_where_it_lies(kit: Any) -> None:
    """With more columns and with fewer."""
    model = kit.built(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)))
    x, names = kit.normal(7, 4, 4, 4), ("0.weight", "3.weight")
    usual, wide, narrow = (within(kit, model, dict.fromkeys(names, energy), x=x) for energy in (0.8, 0.95, 0.4))
    ranks = [sum(c.columns.shape[1] for blocks in p._blocks for c in blocks) for p in (narrow, usual, wide)]
    assert ranks[0] < ranks[1] < ranks[2]
    roomy = usual.with_room()
    assert_same_projection(kit, roomy, usual)
    lie = [columns.columns.data_ptr() for blocks in roomy._blocks for columns in blocks]
    for other in (wide, narrow, usual):
        assert roomy.take(other)
        assert_same_projection(kit, roomy, other)
    assert [columns.columns.data_ptr() for blocks in roomy._blocks for columns in blocks] == lie


def test_coordinates_that_are_reached_are_taken_with_the_columns(kit: Any) -> None:
    """Another input is dead."""
    model = kit.built(lambda: nn.Linear(6, 3, bias=False))
    x = kit.normal(2, 6)
    projections = []
    for dead in (0, 4):
        some = x.clone()
        some[:, dead] = 0
        projections.append(within(kit, model, {"weight": 0.9}, x=some))
    roomy = projections[0].with_room()
    for projection in (projections[1], within(kit, model, {"weight": 0.9}, x=x), projections[0]):
        assert roomy.take(projection)
        assert_same_projection(kit, roomy, projection)


def test_what_has_no_room_or_another_form_is_not_taken(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Linear(200, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)))
    x = kit.normal(150, 200)
    usual, wide = (within(kit, model, {"0.weight": energy}, x=x) for energy in (0.3, 0.95))
    roomy = usual.with_room()
    assert not roomy.take(wide)
    masked = x.clone()
    masked[:, 7] = 0
    assert not roomy.take(within(kit, model, {"0.weight": 0.3}, x=masked))
    both = within(kit, model, {"0.weight": 0.3, "2.weight": 0.3}, x=x)
    assert not roomy.take(both)
    co = within(kit, model, {"0.weight": 0.3}, x=x)
    co._blocks = [tuple(type(c)(c.columns, spanned=False) for c in blocks) for blocks in co._blocks]
    assert not roomy.take(co)
    # What was refused has left it as it was.
    assert_same_projection(kit, roomy, usual)
