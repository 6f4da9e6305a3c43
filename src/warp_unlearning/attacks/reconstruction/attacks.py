"""The attacks by name: how each reads the difference of two models, and how it searches for the image.

- *inversion* minimises 1 − cos(∇θ ℓ(x, y), t) + tv · TV(x) over all parameters at once by signed Adam, pixels kept in
  [0, 1] (Geiping et al., 2020). Most attacks are an inversion of a difference from which a defence was removed.
- *joint* fits the factors of the channels too. A step taken in a basis with the factors τ is, in the original's
  coordinates, g_ij τ_j² / τ_i² for the weights from channel j to channel i. With x_c = −2 log τ_c it minimises the
  distance of g exp(Σ_c p_c x_c) from the difference, with a normal prior of standard deviation 2·`spread` on x.
- *adaptive* compares weights instead of differences. It moves the original by factors τ of its channels, takes one
  step with a dummy image and minimises ‖T_τ(θ_org) + η ∇ℓ(x; T_τ(θ_org)) − θ_u‖² / s² + tv · TV(x)
  + λ Σ_a (τ_a − 1)² / (2σ²) by steps on x and on τ in turn, with s the length of a step on probes and τ within 1 ± 3σ
  and above 0.05. The gradient at moved weights is the gradient at the original with inverse factors, so that the
  network runs at the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import vmap

from ...errors import InputError, nearest
from ..undo import default_steps
from ..undo.base import Held, NotApplicable, Weights, difference
from ..undo.channels import Channels, all_pinned, channels_of, rescaled
from ..undo.inputs import first_layers, implied_inputs
from ..undo.probes import single_gradients
from .generative import invert_through
from .search import Candidates, Search, SearchProblem, Values, Variable
from .targets import Distance, held_or_blank, readings
from .threat import KnownUnlearning, Threat

Order = Literal["before", "after"]

# The least factor of a channel, and the probes that the length of a step is measured on.
_LEAST, _POINTS = 0.05, 16


def invert(problem: SearchProblem) -> Candidates:
    """An image for every target and restart, by its distance from what was read alone."""
    found = problem.minimise(
        {"image": problem.image_variable()},
        lambda values: problem.matching(values["image"]) + problem.search.smoothness(values["image"]),
    )
    images = found.values["image"]
    return problem.candidates(images, found.losses - problem.search.smoothness(images))


def invert_jointly(
    problem: SearchProblem, *, spread: float = 1.0, pull: float = 1e-2, rate: float = 0.05
) -> Candidates:
    """An image for every target and restart; `rate` is that of the factors' logarithms, and `pull` the weight of their
    prior. Where no channel may be rescaled there are no factors to fit, which is an error.
    """
    if not spread > 0:
        raise InputError(f"the spread of the factors' prior is {spread}; give a number above 0")
    channels, image = _free_channels(problem.threats[0].held), problem.image_variable()

    def distance(values: Values) -> Tensor:
        each = vmap(lambda update, logs: rescaled(channels, update, channels.embedded(logs)))
        return problem.matching(values["image"], lambda updates: each(updates, values["logs"]))

    def loss(values: Values) -> Tensor:
        prior = pull * (values["logs"] / (2 * spread)).square().mean(1)
        return distance(values) + prior + problem.search.smoothness(values["image"])

    logs = Variable(image.start.new_zeros(len(image.start), channels.free), rate)
    found = problem.minimise({"image": image, "logs": logs}, loss)
    with torch.no_grad():
        return problem.candidates(found.values["image"], distance(found.values))


def invert_adaptively(
    problem: SearchProblem, *, sigma: float = 0.8, order: Order = "before", prior: float = 1e-3, rate: float = 0.01
) -> Candidates:
    """An image for every target and restart. The threats' schedule gives η; several steps are taken as one of their
    length.

    `order` is when the defender is assumed to move: before the step, as in the paper, or after it, as the defence "cob"
    does, T_τ(θ_org + η ∇ℓ). `rate` is that of τ, and `prior` the weight λ of its law. `sigma` = 0 fixes τ = 1, for an
    attacker who does not expect a move.
    """
    if not sigma >= 0:
        raise InputError(f"the attacker's sigma is {sigma}; give a number of at least 0")
    if order not in get_args(Order):
        raise InputError(f"order is {order!r}; {nearest(str(order), get_args(Order))}")
    first, n = problem.threats[0], problem.shape[0]
    step, held = _step(first), first.held
    channels, names = _free_channels(held), list(problem.targets.values)
    origin = {name: held.weights[name].to(first.dtype) for name in names}
    states = [t.unlearned.state_dict() for t in problem.threats]
    reached = {name: torch.stack([s[name] for s in states]).to(first.dtype) for name in names}
    usual = step**2 * _usual_energy(held, names)

    def distance(values: Values) -> Tensor:
        updates = problem.updates(values["image"])
        weights = vmap(lambda u, tau: stepped(channels, origin, u, tau, step=step, order=order))(updates, values["tau"])
        apart = [(weights[name].reshape(n, -1, *w.shape[1:]) - w[:, None]).flatten(2) for name, w in reached.items()]
        return torch.stack([part.square().sum(2) for part in apart]).sum(0).flatten() / usual

    def loss(values: Values) -> Tensor:
        pull = prior * ((values["tau"] - 1) / sigma).square().sum(1) / 2 if sigma else 0.0
        return distance(values) + pull + problem.search.smoothness(values["image"])

    image = problem.image_variable()
    ones = image.start.new_ones(len(image.start), channels.free)
    low, high = max(_LEAST, 1 - 3 * sigma), 1 + 3 * sigma
    if sigma:
        tau = Variable(ones, rate, project=lambda v: v.clamp(low, high))
        found = problem.minimise({"image": image, "tau": tau}, loss, in_turn=True)
    else:
        found = problem.minimise({"image": image}, lambda values: loss({**values, "tau": ones}))
    with torch.no_grad():
        return problem.candidates(found.values["image"], distance({"tau": ones, **found.values}))


def stepped(
    channels: Channels, origin: Weights, update: Weights, tau: Tensor, *, step: float, order: Order
) -> dict[str, Tensor]:
    """T_τ(θ_org) + η ∇ℓ at it, or T_τ(θ_org + η ∇ℓ)."""
    logs = channels.embedded(tau.log())
    if order == "after":
        return rescaled(channels, {name: origin[name] + step * update[name] for name in origin}, logs)
    moved, slope = rescaled(channels, origin, logs), rescaled(channels, update, -logs)
    return {name: moved[name] + step * slope[name] for name in moved}


def closed_form_image(threat: Threat) -> Tensor | None:
    """The image (channels, height, width) that the rows of a fully connected first layer imply, with no search.

    After an update on one example ΔW_i / Δb_i is that example, whatever a change of basis did to the row. It is the
    mean over rows, weighted by their energy in the bias; None where no such layer with a bias reads the image as it is.
    """
    held, state = held_or_blank(threat), threat.unlearned.state_dict()
    try:
        rows = implied_inputs(held, state)
    except NotApplicable:
        return None
    delta = difference(held.model, state)
    for weight in held.once(first_layers):
        implied = rows.get(weight.name)
        if implied is None or implied.shape[1] != threat.blank().numel():
            continue
        energy = delta[weight.bias or ""].square()
        seen = implied.isfinite().all(1) & (energy > 0)
        if not bool(seen.any()):
            continue
        mean = (implied[seen] * energy[seen, None]).sum(0) / energy[seen].sum()
        x = mean.reshape(threat.pixels.shape)
        if torch.equal(_entering(held, weight.layers[0], x), x.to(held.x).flatten()):
            return threat.pixels.images(x).clamp(0, 1)
    return None


@dataclass(frozen=True)
class ImageAttack:
    """`after` is how the difference is read, `distance` how updates are compared with it, and `run` the search, whose
    keyword-only arguments are the attack's options.
    """

    name: str
    about: str
    after: str = "naive"
    distance: Distance = "cosine"
    run: Callable[..., Candidates] = invert

    def search(self, **settings: Any) -> Search:
        """A search with these settings; "differencing" has no prior and steps by the gradient itself."""
        return Search(**settings, tv=0.0, signed=False) if self.name == "differencing" else Search(**settings)

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every option of the search, as given or by default; for an unknown one the error names the nearest."""
        parameters = signature(self.run).parameters.values()
        known = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        for name in given:
            if name not in known:
                hint = nearest(name, known) if known else "it has none"
                raise InputError(f"the attack {self.name!r} has no option {name!r}; {hint}")
        return {**known, **given}


_SEARCHES = (
    ImageAttack("differencing", "the image whose step is nearest to the difference, no prior", distance="euclidean"),
    ImageAttack("inversion", "the image whose gradient points along the difference, by cosine and total variation"),
    ImageAttack("generative", "inversion through a generator, from latents on to features", run=invert_through),
    ImageAttack("adaptive", "image and change of basis fitted to the unlearned weights", run=invert_adaptively),
    ImageAttack("joint", "image and channel factors of the update fitted together", run=invert_jointly),
)
# Every other way to read the difference is an attack too: inversion of what it leaves.
ATTACKS: Mapping[str, ImageAttack] = {attack.name: attack for attack in _SEARCHES} | {
    name: ImageAttack(name, f"inversion; before it, {about}", name)
    for name, about in readings().items()
    if name != "naive"
}
# What undoes a defence by a search of its own.
_BESIDE: Mapping[str | None, tuple[str, ...]] = {"cob": ("adaptive",), "conjugate": ("joint",), None: ("joint",)}


def find_attack(name: str, *, after: str | None = None) -> ImageAttack:
    """The attack of that name, or the attack and the reading of the difference in "attack@reading", such as the paper's
    combination "generative@filtered". `after` is the same as "@".
    """
    base, at, reading = name.partition("@")
    if base not in ATTACKS:
        raise InputError(f"there is no attack {base!r}; {nearest(base, ATTACKS)}")
    if at and after is not None:
        raise InputError(f"{name!r} names how the difference is read; leave after={after!r} out")
    after = reading if at else after
    if after is None:
        return ATTACKS[base]
    if after not in readings():
        raise InputError(f"there is no way {after!r} to read a difference; {nearest(after, readings())}")
    if ATTACKS[base].run is invert_adaptively:
        raise InputError(f"the attack {base!r} compares weights and reads no difference; leave {after!r} out")
    return replace(ATTACKS[base], after=after)


def default_attacks(known: KnownUnlearning, *, prior: bool) -> tuple[str, ...]:
    """Inversion and those that know the defence, all where nobody says what that was, and with a prior the generative
    one.
    """
    chosen = ["inversion" if step == "naive" else step for step in default_steps(known.defense)]
    chosen += [name for name in _BESIDE.get(known.defense, ()) if name != "adaptive" or known.schedule is not None]
    return (*chosen, *(("generative",) if prior else ()))


def _free_channels(held: Held) -> Channels:
    channels = held.once(channels_of)
    if channels.free == 0:
        raise all_pinned(held)
    return channels


def _step(threat: Threat) -> float:
    if threat.schedule is None:
        raise InputError("the adaptive attack compares weights, so it must know the step; give the threat a schedule")
    return threat.schedule.length if threat.ascent else -threat.schedule.length


def _usual_energy(held: Held, names: Sequence[str]) -> float:
    """The mean squared length of a probe's gradient, by which squared distances are measured."""
    found = single_gradients(held.model, held.x[:_POINTS], held.y[:_POINTS])
    return float(torch.stack([found[name].flatten(1).square().sum(1) for name in names]).sum(0).mean())


def _entering(held: Held, layer: torch.nn.Module, x: Tensor) -> Tensor:
    """What the layer reads, flat, where the network reads x; empty unless it is called once."""
    got: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: got.append(args[0].flatten()))
    try:
        with torch.no_grad():
            held.model(x.to(held.x)[None])
    finally:
        handle.remove()
    return got[0] if len(got) == 1 else x.new_empty(0)
