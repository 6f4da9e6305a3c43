"""*adaptive*: image and change of basis fitted together, by weights instead of differences.

The attacker moves the original by factors τ of its channels, takes one step with a dummy image and compares with the
unlearned weights: min ‖T_τ(θ_org) + η ∇ℓ(x; T_τ(θ_org)) − θ_u‖² / s² + tv · TV(x) + λ Σ_a (τ_a − 1)² / (2σ²), with s
the length of a step on probes, by steps on x and on τ in turn, τ kept within 1 ± 3σ and above 0.05. The gradient at
moved weights is the gradient at the original with inverse factors, so that the network is run where it is. σ = 0 fixes
τ = 1, an attacker who knows of no move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.func import vmap

from ...errors import InputError, nearest
from ..undo.base import Held
from ..undo.channels import Channels, all_pinned, channels_of, rescaled
from ..undo.probes import single_gradients
from .descent import Values, Variable, descend
from .predicted import Weights
from .problem import Candidates, Problem, Search, smoothness
from .threat import Threat

Order = Literal["before", "after"]

_LEAST = 0.05
_POINTS = 16


def invert_adaptively(
    problem: Problem,
    search: Search,
    threats: Sequence[Threat],
    *,
    sigma: float = 0.8,
    order: Order = "after",
    prior: float = 1e-3,
    rate: float = 0.01,
) -> Candidates:
    """An image for every target and restart. `threats` are those of the problem's targets; their schedule tells η.

    `order` is when the defender is taken to move: before the step, as above and in the paper, or after it, as the
    defence "cob" does, T_τ(θ_org + η ∇ℓ). Several steps are taken as one of their length, without retained examples.
    `rate` is that of τ, and `prior` the weight λ of its law.
    """
    if not sigma >= 0:
        raise InputError(f"the attacker's sigma is {sigma}; give a number of at least 0")
    if order not in get_args(Order):
        raise InputError(f"order is {order!r}; {nearest(str(order), get_args(Order))}")
    held, step = threats[0].held, _step(threats[0])
    channels = held.once(channels_of)
    if channels.free == 0:
        raise all_pinned(held)
    n, _, count = problem.shape
    names = list(problem.targets.values)
    kind = next(iter(problem.targets.values.values()))
    origin = {name: held.weights[name].to(kind) for name in names}
    states = [t.unlearned.state_dict() for t in threats]
    reached = {name: torch.stack([s[name] for s in states]).to(kind) for name in names}
    usual = step**2 * _usual_energy(held, names)

    def distance(values: Values) -> Tensor:
        updates = problem.predictor(problem.pixels.inputs(values["image"]), problem.labels.reshape(-1, count))
        stepped = vmap(lambda u, tau: _stepped(channels, origin, u, tau, step, order))(updates, values["tau"])
        return _apart(stepped, reached, n) / usual

    def loss(values: Values) -> Tensor:
        pull = prior * ((values["tau"] - 1) / sigma).square().sum(1) / 2 if sigma else 0.0
        return distance(values) + pull + smoothness(values["image"], search)

    low, high = max(_LEAST, 1 - 3 * sigma), 1 + 3 * sigma
    image = problem.image_variable(search)
    ones = image.start.new_ones(len(image.start), channels.free)
    variables = {"image": image}
    if sigma:
        variables["tau"] = Variable(ones, rate, project=lambda v: v.clamp(low, high))
        found = descend(variables, loss, iterations=search.iterations, in_turn=True, watch=problem.watch)
    else:
        found = descend(
            variables, lambda v: loss({**v, "tau": ones}), iterations=search.iterations, watch=problem.watch
        )
    with torch.no_grad():
        losses = distance({"tau": ones, **found.values})
    return problem.candidates(found.values["image"], losses)


def _step(threat: Threat) -> float:
    if threat.schedule is None:
        raise InputError("the adaptive attack compares weights, so it must know the step; give the threat a schedule")
    sign = 1 if threat.ascent else -1
    return sign * sum(threat.schedule.rates) * threat.schedule.ascent


def _usual_energy(held: Held, names: list[str]) -> float:
    """The mean squared length of a probe's gradient, by which squared distances are measured."""
    found = single_gradients(held.model, held.x[:_POINTS], held.y[:_POINTS])
    return float(torch.stack([found[name].flatten(1).square().sum(1) for name in names]).sum(0).mean())


def _stepped(channels: Channels, origin: Weights, update: Weights, tau: Tensor, step: float, order: Order) -> Weights:
    """T_τ(θ_org) + η ∇ℓ at it, or T_τ(θ_org + η ∇ℓ)."""
    logs = channels.embedded(tau.log())
    if order == "after":
        return rescaled(channels, {name: origin[name] + step * update[name] for name in origin}, logs)
    moved, slope = rescaled(channels, origin, logs), rescaled(channels, update, -logs)
    return {name: moved[name] + step * slope[name] for name in moved}


def _apart(stepped: Weights, reached: Weights, n: int) -> Tensor:
    """Squared distances (n·r,) from weights (n, *parameter)."""
    parts = [
        (stepped[name].reshape(n, -1, *value.shape[1:]) - value[:, None]).flatten(2).square().sum(2)
        for name, value in reached.items()
    ]
    return torch.stack(parts).sum(0).flatten()
