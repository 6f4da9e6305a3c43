"""Steps of a walk downhill that are taken again and again on a GPU, each part of them as a captured graph.

A step is some four hundred small operations, which keep the host busier than the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..cuda_graphs import CudaGraph, capturable_stream, graphs_are_there
from .forget_energy import ReplayedEnergy, Slopes
from .null_projection import NullProjection, RoomyProjection
from .steps import Descent, Steps
from .walk_parts import Ground, Heading, Reach, Standing, Survey, heading, step, survey, term_names


class CapturedSteps:
    """`Steps` from parameters and slopes that lie where they lie at each of them."""

    @torch.no_grad()
    def __init__(self, ground: Ground, settings: Reach, found: Slopes) -> None:
        # What graphs read where it lies must not be let go of.
        self._ground, self._found = ground, found
        like = ground.reference
        self._noise = torch.zeros_like(like) if settings.dispersion != 0 else None
        self._weights = like.new_zeros(len(term_names(found, disperses=settings.dispersion != 0)), 1)
        self._share = torch.ones((), dtype=torch.float64, device=like.device)
        with capturable_stream(like.device, purpose="walk"):
            start = ground.standing()
            try:
                # What libraries allocate and choose at the first calls must not be captured.
                seen = self._survey()
                step(ground, seen.start, self._heading(settings, seen), self._share)
                self._surveyed: CudaGraph[Survey] = CudaGraph(self._survey)
                pool, seen = self._surveyed.pool, self._surveyed.output
                self._headed: CudaGraph[Heading] = CudaGraph(lambda: self._heading(settings, seen), pool=pool)
                way = self._headed.output
                self._stepped: CudaGraph[Standing] = CudaGraph(
                    lambda: step(ground, seen.start, way, self._share), pool=pool
                )
            finally:
                ground.put(start)

    def _survey(self) -> Survey:
        return survey(self._ground, self._found, self._noise)

    def _heading(self, settings: Reach, seen: Survey) -> Heading:
        # A term that has no share is not to be looked at: it may hold numbers that are not finite.
        shares = torch.where(self._weights != 0, seen.terms * self._weights, 0.0)
        return heading(self._ground, settings, seen, shares.sum(0))

    @property
    def begun(self) -> Tensor:
        """As the protocol says."""
        return self._surveyed.output.start

    def survey(self, found: Slopes, generator: torch.Generator) -> Tensor:
        """As the protocol says; what is `found` lies where it lay."""
        if self._noise is not None:
            self._noise.normal_(generator=generator)
        return self._surveyed.replay().numbers

    def head(self, weights: Sequence[float]) -> None:
        """As the protocol says."""
        self._weights.copy_(torch.tensor(weights, dtype=self._weights.dtype).unsqueeze(1), non_blocking=True)
        self._headed.replay()

    def go(self, share: float) -> Standing:
        """As the protocol says."""
        self._share.fill_(share)
        return self._stepped.replay()


class _Asked(NamedTuple):
    """All that decides which operations steps take, beside the network and its projection: slopes lie where the graph
    of the energies leaves them, and the weights that distances are taken from are told by their places and how often
    they were written to.
    """

    energy: object
    reference: tuple[tuple[int, int], ...]
    loss: bool
    disperses: bool
    step_size: float
    radius: float


class _Wanted(NamedTuple):
    asked: _Asked
    parameters: Mapping[str, nn.Parameter]
    projection: NullProjection
    settings: Reach
    descent: Descent


class WalksAgain:
    """Graphs for the steps of one network, captured on demand. They do for other bases than those of the walk before as
    long as these find room. Another network, or one that is built otherwise, takes another of these.
    """

    def __init__(self) -> None:
        self._wanted: _Wanted | None = None
        # How many walks in a row wanted graphs and had none.
        self._missed = 0
        self._captured: tuple[_Asked, RoomyProjection, CapturedSteps] | None = None
        # Whose places are part of what was asked, so that nothing else comes to lie there.
        self._reference: Mapping[str, Tensor] | None = None
        self._refused = False

    @property
    def captured(self) -> bool:
        """Whether there are graphs."""
        return self._captured is not None

    def steps(
        self, parameters: Mapping[str, nn.Parameter], projection: NullProjection, settings: Reach, descent: Descent
    ) -> Steps | None:
        """As the protocol of `steps` says. Where there are none, `capture` makes some for the next walk."""
        asked = None if self._refused else _asked(parameters, projection, settings, descent)
        if asked is None:
            return None
        if self._captured is not None and self._captured[0] == asked and self._captured[1].take(projection):
            self._missed = 0
            return self._captured[2]
        self._wanted = _Wanted(asked, parameters, projection, settings, descent)
        self._missed += 1
        return None

    def capture(self, *, after: int = 1) -> None:
        """Have graphs for walks like the last, where so many in a row had none and they are possible. What the last
        one left for this is let go of.
        """
        wanted, self._wanted = self._wanted, None
        if wanted is None or self._missed < after or not isinstance(wanted.descent.energy, ReplayedEnergy):
            return
        found = wanted.descent.energy.held_slopes(wanted.parameters, loss=wanted.asked.loss)
        reference = wanted.descent.reference
        if found is None or reference is None:
            return
        # The memory of those before is free for these.
        self._captured, self._reference = None, reference
        try:
            projection = wanted.projection.with_room()
            ground = Ground.of(wanted.parameters, projection, reference)
            self._captured = wanted.asked, projection, CapturedSteps(ground, wanted.settings, found)
        except RuntimeError:
            # A library that does not let itself be captured, or too little memory: operation by operation then.
            self._refused = True


def _asked(
    parameters: Mapping[str, nn.Parameter], projection: NullProjection, settings: Reach, descent: Descent
) -> _Asked | None:
    """What is asked for, where graphs could do it."""
    energy, reference = descent.energy, descent.reference
    if not isinstance(energy, ReplayedEnergy) or reference is None or not projection.layout.exact:
        return None
    if not graphs_are_there(energy.graph.device) or torch.is_inference_mode_enabled():
        return None
    values = [reference[name] for name in parameters]
    if any(value.is_inference() for value in values):
        # Nobody counts how often these are written to.
        return None
    places = tuple((value.data_ptr(), value._version) for value in values)
    disperses = settings.dispersion != 0
    return _Asked(energy.graph, places, descent.loss, disperses, settings.step_size, settings.radius)
