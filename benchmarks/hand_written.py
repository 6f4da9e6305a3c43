"""The six methods as plain loops, the way one would write them for a single experiment: no checks, no history, no
moves.

Each takes the model to change, the frozen original, and the tensors, and draws the same batches as the package does, so
that the final weights can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.methods.recipes import small_data_method
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.randomness import Streams

Pair = tuple[Tensor, Tensor]
Loop = Callable[[nn.Module, nn.Module, Pair, Pair, Streams], None]


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    parts = math.ceil(count / size)
    length = count // parts
    order = torch.randperm(count, generator=generator)
    return [order[i * length : (i + 1) * length] for i in range(parts)]


def forever(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from batches(count, size, generator)


def sgd(model: nn.Module, lr: float, momentum: float = 0.9, decay: float = 0.0) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay, fused=True)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def kl(teacher: Tensor, student: Tensor, t: float) -> Tensor:
    return (
        t
        * t
        * F.kl_div((student / t).log_softmax(1), (teacher / t).log_softmax(1), reduction="batchmean", log_target=True)
    )


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(512)])


def ngp(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("ngp")
    model.train()
    optimizer = sgd(model, s.lr)
    (xf, yf), (xr, yr) = forget, retain
    forget_order = forever(len(yf), s.batch_size, streams.generator("forget"))
    steps, done = s.epochs * math.ceil(len(yr) / s.batch_size), 0
    for e in range(s.epochs):
        for i in batches(len(yr), s.batch_size, streams.generator("retain", e)):
            j = next(forget_order)
            ascent = F.cross_entropy(model(xf[j]), yf[j])
            descent = F.cross_entropy(model(xr[i]), yr[i])
            optimizer.param_groups[0]["lr"] = s.lr * 0.5 * (1 + math.cos(math.pi * done / steps))
            step(optimizer, s.alpha * descent - (1 - s.alpha) * ascent)
            done += 1


def scrub(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("scrub")
    model.train()
    optimizer = sgd(model, s.lr, decay=s.weight_decay)
    (xf, yf), (xr, yr) = forget, retain
    tf, tr = outputs(original, xf), outputs(original, xr)
    for e in range(s.epochs):
        optimizer.param_groups[0]["lr"] = s.lr * 0.1 ** sum(e / s.epochs > m for m in (0.5, 0.8, 0.9))
        if e < s.max_epochs:
            for i in batches(len(yf), s.forget_batch_size, streams.generator("forget", e)):
                step(optimizer, -kl(tf[i], model(xf[i]), s.temperature))
        for i in batches(len(yr), s.retain_batch_size, streams.generator("retain", e)):
            out = model(xr[i])
            step(optimizer, s.gamma * F.cross_entropy(out, yr[i]) + s.alpha * kl(tr[i], out, s.temperature))


def salun(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("salun")
    (xf, yf), (xr, yr) = forget, retain
    parameters = list(model.parameters())
    model.eval()
    gradients = torch.autograd.grad(F.cross_entropy(model(xf), yf, reduction="sum"), parameters)
    flat = torch.cat([g.abs().flatten() for g in gradients])
    threshold = flat.kthvalue(flat.numel() - round(s.keep * flat.numel())).values
    masks = [g.abs() > threshold for g in gradients]
    start = [p.detach().clone() for p in parameters]
    model.train()
    optimizer = sgd(model, s.lr, decay=s.weight_decay)
    labels = streams.generator("labels")

    def masked_step(loss: Tensor) -> None:
        step(optimizer, loss)
        with torch.no_grad():
            for p, mask, before in zip(parameters, masks, start, strict=True):
                p.copy_(torch.where(mask, p, before))

    for e in range(s.epochs):
        for i in batches(len(yf), s.batch_size, streams.generator("forget", e)):
            random = torch.randint(0, 10, (len(i),), generator=labels).to(yf.device)
            masked_step(F.cross_entropy(model(xf[i]), random))
        for i in batches(len(yr), s.batch_size, streams.generator("retain", e)):
            masked_step(F.cross_entropy(model(xr[i]), yr[i]))


def pgu(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("pgu")
    (xf, yf), (xr, _) = forget, retain
    model.eval()
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    moments: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def record(module: nn.Module, args: tuple[Tensor]) -> None:
            x = args[0]
            if isinstance(module, nn.Conv2d):
                x = F.unfold(x, module.kernel_size, padding=module.padding, stride=module.stride).transpose(1, 2)
            x = x.reshape(-1, x.shape[-1]).double()
            moments[name] = moments.get(name, 0) + x.T @ x

        return record

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in layers.items()]
    order = torch.randperm(len(xr), generator=streams.generator("samples"))[: s.samples]
    with torch.no_grad():
        for i in order.split(256):
            model(xr[i])
    for handle in handles:
        handle.remove()
    bases = {}
    for name, moment in moments.items():
        values, vectors = torch.linalg.eigh(moment)
        roots = values.clamp(min=0).flip(0).sqrt()
        k = int((roots.cumsum(0) / roots.sum() < s.energy).sum()) + 1
        bases[name] = vectors.flip(1)[:, :k].to(xf.dtype)
    for e in range(s.epochs):
        lr = s.lr * (s.last_lr / s.lr) ** (e / (s.epochs - 1))
        for i in batches(len(yf), s.batch_size, streams.generator("forget", e)):
            logp = model(xf[i]).log_softmax(1)
            p = logp.exp()
            own = p.gather(1, yf[i, None]).squeeze(1)
            loss = (-torch.log1p(s.offset - own) + s.entropy_weight * (p * logp).sum(1)).mean()
            weights = [m.weight for m in layers.values()]
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for name, w, g in zip(layers, weights, gradients, strict=True):
                    flat = g.flatten(1)
                    w -= lr * (flat - (flat @ bases[name]) @ bases[name].T).reshape(w.shape)


def bad_teacher(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("bad_teacher")
    (xf, _), (xr, yr) = forget, retain
    bad = deepcopy(original)
    reinitialise(bad, generator=streams.generator("untrained"))
    kept = torch.randperm(len(yr), generator=streams.generator("part"))[: round(s.retain_share * len(yr))]
    x = torch.cat([xf, xr[kept]])
    target = torch.cat([outputs(bad.eval(), xf), outputs(original, xr[kept])])
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=s.lr, fused=True)
    for e in range(s.epochs):
        for i in batches(len(x), s.batch_size, streams.generator("mixed", e)):
            step(optimizer, kl(target[i], model(x[i]), s.temperature))


def srf_on(model: nn.Module, original: nn.Module, forget: Pair, retain: Pair, streams: Streams) -> None:
    s = small_data_method("srf_on")
    (xf, yf), (xr, yr) = forget, retain
    parameters = list(model.parameters())
    model.eval()

    def fisher(x: Tensor, y: Tensor) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in parameters]
        parts = list(zip(x.split(s.batch_size), y.split(s.batch_size), strict=True))
        for a, b in parts:
            for t, g in zip(total, torch.autograd.grad(F.cross_entropy(model(a), b), parameters), strict=True):
                t += g.square()
        return [t / len(parts) for t in total]

    masks = [(f + 1e-15) / (r + 1e-15) >= s.ratio for f, r in zip(fisher(xf, yf), fisher(xr, yr), strict=True)]
    model.train()
    forgetting, repairing = (sgd(model, s.lr, decay=s.weight_decay) for _ in range(2))
    forget_order = forever(len(yf), s.batch_size, streams.generator("forget"))
    retain_order = forever(len(yr), s.batch_size, streams.generator("retain"))
    for t in range(s.iterations):
        fade = 0.5 * (1 + math.cos(math.pi * t / s.iterations))
        forgetting.param_groups[0]["lr"] = repairing.param_groups[0]["lr"] = s.lr * fade
        if t % s.forget_every == 0:
            i = next(forget_order)
            each = F.cross_entropy(model(xf[i]), yf[i], reduction="none")
            weights = 1 / (each.detach().clamp(min=0) ** s.reweighting + 1e-15)
            forgetting.zero_grad(set_to_none=True)
            (-s.strength * fade * (weights / weights.mean() * each).mean()).backward()
            with torch.no_grad():
                for p, mask in zip(parameters, masks, strict=True):
                    p.grad.mul_(mask)
                nn.utils.clip_grad_norm_(parameters, s.max_norm)
                before = [p.clone() for p in parameters]
                forgetting.step()
                for p, mask, b in zip(parameters, masks, before, strict=True):
                    p.copy_(torch.where(mask, p, b))
        i = next(retain_order)
        step(repairing, F.cross_entropy(model(xr[i]), yr[i]))


LOOPS: dict[str, Loop] = {
    "ngp": ngp,
    "scrub": scrub,
    "salun": salun,
    "pgu": pgu,
    "bad_teacher": bad_teacher,
    "srf_on": srf_on,
}
