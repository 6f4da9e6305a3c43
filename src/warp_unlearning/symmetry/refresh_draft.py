"""Refreshes of the bases of several layers, up to where numbers have to be read to judge them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ..linalg.blending import all_blended, blend_weights, missed_shares
from ..linalg.gram import mirrored
from ..linalg.proposal import Proposal
from ..linalg.repeated_proposal import Prepared, copy_ahead, handed_over
from ..linalg.side_streams import SideStreams
from .sampled_moment import SampledMoment
from .tracked_layer import TrackedLayer

Made = TypeVar("Made")


class Draft:
    """A refresh of one layer that is yet to be judged; `layer` is None where there is nothing to go on from."""

    def __init__(self, sample: SampledMoment, latest: Tensor, layer: TrackedLayer | None) -> None:
        self.sample, self.latest = sample, latest
        self.layer = layer if layer is not None and layer.within.shape == latest.shape else None
        self.moment: Tensor | None = None
        self.missed: Tensor | None = None
        self.proposals: list[Proposal | None] = []

    @property
    def asked(self) -> list[Tensor]:
        """What has to be read of it alone: the diagonal of the second moment, the largest number in coordinates never
        reached before, the shares missed, and the eigenvalues of columns that take turns.
        """
        diagonal = (self.latest if self.moment is None else self.moment).diagonal(dim1=1, dim2=2)
        return [diagonal, *(part for part in (self.sample.stray, self.missed, *self._sizes) if part is not None)]

    @property
    def numbers_asked(self) -> int:
        """How many tensors that is."""
        return 1 + sum(part is not None for part in (self.sample.stray, self.missed, *self._sizes))

    @property
    def _sizes(self) -> list[Tensor | None]:
        return [proposal.turned.sizes for proposal in self.proposals if proposal is not None]


def drafted(
    samples: Sequence[SampledMoment], layers: Mapping[str, TrackedLayer], *, blend: float | None, rounds: int
) -> list[Draft]:
    """Refreshes of layers on one device by so many `rounds` of subspace iteration; what is a number for each of them is
    computed for all at once. `blend` is the least weight of the sample; without it, second moments are those of the
    sample alone. The sums of the samples are written over; `layers` keep their moments and subspaces.
    """
    latest = [mirrored(sample.total) for sample in samples]
    torch._foreach_div_(latest, [float(sample.positions) for sample in samples])
    drafts = [Draft(*pair, layers.get(pair[0].weight.name)) for pair in zip(samples, latest, strict=True)]
    followed = [(draft, draft.layer) for draft in drafts if draft.layer is not None]
    if followed and blend is not None:
        _blend(followed, blend)
    _propose(followed, layers, rounds)
    return drafts


def make_ready(layers: Mapping[str, TrackedLayer]) -> None:
    """Have the proposals of the next refresh captured, on the streams that it will propose them on, where that is
    possible.
    """
    devices: dict[torch.device, dict[str, Callable[[], None]]] = {}
    for name, layer in layers.items():
        devices.setdefault(layer.within.device, {})[name] = partial(_make_ready, layer)
    for pieces in devices.values():
        _on_side_streams(pieces, layers)


def _on_side_streams(pieces: Mapping[str, Callable[[], Made]], layers: Mapping[str, TrackedLayer]) -> dict[str, Made]:
    """What the pieces for layers on one device give, each on the stream it has every time there are the same layers."""
    # The largest first, so that none is left over for the end.
    names = sorted(pieces, key=lambda name: (-layers[name].within.shape[-1], name))
    if not names:
        return {}
    with SideStreams(layers[names[0]].within.device) as sides:
        # Each is a few short calls, which threads would only wait for each other with.
        found = sides.each([pieces[name] for name in names], apart=False)
    return dict(zip(names, found, strict=True))


def _moments(draft: Draft) -> tuple[Tensor, ...]:
    """The second moment of each group, that of the sample alone where there is no other."""
    draft.moment = draft.latest if draft.moment is None else draft.moment
    return draft.moment.unbind()


def _make_ready(layer: TrackedLayer) -> None:
    for tracker, moment in zip(layer.trackers, layer.within, strict=True):
        tracker.make_ready(moment)


def _propose(followed: Sequence[tuple[Draft, TrackedLayer]], layers: Mapping[str, TrackedLayer], rounds: int) -> None:
    """Have every draft propose its subspaces. What is copied for all of them, before and after, is copied at once; and
    what a layer has to launch by itself is a graph, where there is one.
    """
    ready = _on_side_streams(
        {draft.sample.weight.name: partial(_prepared, layer, _moments(draft), rounds) for draft, layer in followed},
        layers,
    )
    prepared = [each for own in ready.values() for each in own if each is not None]
    copy_ahead(prepared)
    made = _on_side_streams({name: partial(_made, own) for name, own in ready.items()}, layers)
    found = iter(handed_over(prepared, [proposal for name in ready for proposal in made[name]]))
    proposals = {name: [None if each is None else next(found) for each in own] for name, own in ready.items()}
    for draft, _ in followed:
        draft.proposals = proposals[draft.sample.weight.name]


def _prepared(layer: TrackedLayer, moments: Sequence[Tensor], rounds: int) -> list[Prepared | None]:
    pairs = zip(layer.trackers, moments, strict=True)
    return [tracker.prepare(moment, rounds=rounds) for tracker, moment in pairs]


def _made(prepared: Sequence[Prepared | None]) -> list[Proposal]:
    return [each.make() for each in prepared if each is not None]


def _blend(followed: Sequence[tuple[Draft, TrackedLayer]], blend: float) -> None:
    """Take the latest second moments into those that are kept."""
    rows = [draft.sample.some_rows() for draft, _ in followed]
    counts = [len(some) for some in rows]
    pairs = [(layer.spans, some) for (_, layer), some in zip(followed, rows, strict=True)]
    shares = missed_shares(pairs)
    each = torch.split(shares, counts)
    worst = shares if set(counts) == {1} else torch.stack([share.max() for share in each])
    weights = blend_weights(worst, [layer.best for _, layer in followed], blend)
    latest = [draft.latest for draft, _ in followed]
    moments = all_blended([layer.within for _, layer in followed], latest, weights.to(latest[0].dtype))
    for (draft, _), missed, moment in zip(followed, each, moments, strict=True):
        draft.missed, draft.moment = missed, moment
