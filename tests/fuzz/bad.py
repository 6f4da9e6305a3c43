"""What people put in the wrong place, as expressions by what it should have been. Those after a ? may give a result;
any other must be refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import warp_unlearning

ROWS, FEATURES, CLASSES, NAN = 24, 4, 3, float("nan")
KINDS = (DataLoader, Subset, TensorDataset, WeightedRandomSampler, SimpleNamespace, warp_unlearning)  # said in texts


def made(expression: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression.removeprefix("?").strip(), globals())


def x(n: int = ROWS, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(seed))


def y(n: int = ROWS) -> torch.Tensor:
    return torch.arange(n) % CLASSES


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


class Own(Dataset):  # type: ignore[type-arg]
    """A data set of what a function gives."""

    def __init__(self, item: Callable[[int], Any], count: Any = ROWS) -> None:
        self.item, self.count = item, count

    def __getitem__(self, i: int) -> Any:
        return self.item(i)

    def __len__(self) -> Any:
        return self.count


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int = ROWS) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return zip(x(self.count), y(self.count), strict=True)


class Net(nn.Module):
    """A network whose output is what a function makes of the right one."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = network(), change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.inner(x))


def put(values: torch.Tensor, value: Any) -> torch.Tensor:
    changed = values.clone()
    changed[7] = value
    return changed


def typed(kind: torch.dtype, value: float | None = None) -> nn.Module:
    made = network()
    for layer in (made[0], made[2]):
        weight = layer.weight.data if value is None else torch.full_like(layer.weight, value)
        layer.weight = nn.Parameter(weight.to(kind), requires_grad=kind.is_floating_point or kind.is_complex)
    return made


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear})


def state(value: Any, name: str = "0.weight") -> dict[Any, Any]:
    return {**network().state_dict(), name: value}


def fail(*_: Any) -> Any:
    raise RuntimeError("first line\nsecond line " + "of many words " * 60)


def full(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity of")


TEXT = r"""
examples:
    None; 5; "text"; x(); (); (x(), y(), y()); (None, None); (x(), None); (y(), x()); {"a": x(), "b": y()}; {"x": x()};
    (put(x(), NAN), y()); (put(x(), NAN).numpy(), y().numpy()); (put(x(), float("inf")), y().numpy());
    Own(lambda i: (put(x(), NAN)[i], i % 3)); (x().to(torch.complex64), y()); (x().numpy().astype(complex), y());
    (x() > 0, y()); (x().numpy() > 0, y()); (np.array([[None] * FEATURES] * ROWS), y()); (y(), y());
    (np.full((ROWS, FEATURES), "1"), y()); (np.zeros((ROWS, FEATURES), "M8[s]"), y()); ([[1.0], [1.0, 2.0]], [0, 1]);
    (x().long(), y()); (x().double().numpy() * 1e300, y()); (torch.tensor(1.0), torch.tensor(1)); (x()[:, :2], y());
    (x().flatten()[:ROWS], y()); (x()[:, :0], y()); (x(), y()[:5]); (x()[:0], y()[:0]); ([], []); (x().to("meta"), y());
    (x(), y().to("meta")); (x().to_sparse(), y()); (x(), y().to_sparse()); (x(), np.array(["cat", "dog", "cow"] * 8));
    (torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8), y()); Own(lambda i: (x()[i], "cat")); (x(), y()[:, None]);
    (x(), nn.functional.one_hot(y())); (x(), y() + 0.5); (x(), y().float()); (x(), put(y().float(), NAN));
    (x(), put(y(), -1)); (x(), put(y(), -100)); (x(), put(y(), CLASSES)); (x(), put(y(), 2**62)); (x(), y() > 0);
    Own(lambda i: (x()[i], i % 4)); (x().numpy(), np.full(ROWS, 2**63, np.uint64)); (x(), y().to(torch.complex64));
    (x(), [None] * ROWS); Own(lambda i: (x()[i], 0), 0); Stream(); Own(fail); Own(lambda i: None); DataLoader(x());
    Own(lambda i: (x()[i], 0, 1)); Own(lambda i: (x()[i, : 1 + i % 3], i % 3)); DataLoader(Own(fail), batch_size=4);
    Own(lambda i: (x()[i, : 3 + (i < 20)], i % 3)); Own(lambda i: {"pixels": x()[i], "labels": 0}); Own(full);
    Own(lambda i: (x()[i], i % 3), ROWS + 4); Own(lambda i: (x()[i], 0), 2.5); (i for i in range(3));
    Subset(TensorDataset(x(), y()), [0, 1, 99]); DataLoader(TensorDataset(x(), y()), batch_size=5, drop_last=True);
    DataLoader(TensorDataset(x(), y()), sampler=WeightedRandomSampler([1.0] * ROWS, ROWS));
    DataLoader(TensorDataset(x(), y()), sampler=range(ROWS - 2)); DataLoader(Stream(0), batch_size=5);
    DataLoader(TensorDataset(x(), y()), batch_sampler=[[0, 1], [2, 3]]); TensorDataset(x(), y(), y()); TensorDataset(x());
    DataLoader(TensorDataset(x(), y()), sampler=["a"] * ROWS); DataLoader(Stream(), batch_size=5, drop_last=True);
    DataLoader(TensorDataset(x(), y()), batch_size=4, collate_fn=lambda items: items[0]);
    DataLoader(TensorDataset(x(), y()), batch_size=4, collate_fn=lambda items: None);
    ?DataLoader(Stream(), batch_size=5); ?(x().tolist(), y().tolist()); ?Subset(TensorDataset(x(), y()), [0, 0, 1, 2]);
    ?Own(lambda i: {"pixel_values": x()[i], "labels": i % 3}); ?(x().double(), y()); ?(x() * 1e38, y());
    ?(x().half(), y()); ?(x().bfloat16(), y()); ?(x().requires_grad_(), y())
networks:
    None; "model"; nn.Linear; torch.relu; network().state_dict(); torch.jit.script(network()); torch.compile(network());
    nn.ReLU(); nn.Sequential(); network().to("meta"); nn.Sequential(nn.LazyLinear(CLASSES)); quantised();
    typed(torch.int8); typed(torch.bool); typed(torch.complex64); typed(torch.float64); network().double();
    typed(torch.float32, NAN); Net(lambda z: z * NAN); Net(lambda z: z / 0); Net(lambda z: z[:, 0]); Net(lambda z: z[:1]);
    Net(lambda z: torch.where(torch.arange(len(z))[:, None] > 2, z * NAN, z)); Net(lambda z: z[:, :, None]);
    Net(lambda z: (z, z)); Net(lambda z: {"scores": z}); Net(lambda z: SimpleNamespace(logits=None)); Net(full);
    Net(lambda z: None); Net(lambda z: z.detach().numpy()); Net(lambda z: z[:, :2]); Net(lambda z: z[:, :0]); Net(fail);
    Net(lambda z: z.long()); Net(lambda z: z > 0); Net(lambda z: z.to(torch.complex64)); Net(lambda z: z.to("meta"));
    Net(lambda z: z.to_sparse()); Net(lambda z: z if len(z) < 3 else fail()); nn.Linear(FEATURES + 2, CLASSES);
    nn.BatchNorm1d(FEATURES, affine=False); nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(3));
    nn.Linear(FEATURES, 1); Net(lambda z: z if len(z) < 3 else z[:, :2]); Net(lambda z: z if len(z) < 3 else z[:3]);
    Net(lambda z: z if len(z) < 3 else full());
    ?typed(torch.float16); ?network().half(); ?network().bfloat16(); ?Net(lambda z: SimpleNamespace(logits=z));
    ?Net(lambda z: z.half()); ?Net(lambda z: z.detach()); ?network().requires_grad_(False); ?Net(lambda z: z * 1e30);
    ?Net(lambda z: z if z.requires_grad else z * 2); ?Net(lambda z: full() if z.requires_grad else z);
    ?Net(lambda z: fail() if z.requires_grad else z)
more_references:
    [None]; [network(), 5]; {'a': network()}; [nn.Linear(FEATURES, 5)]; 3; (); []
seeds:
    None; 1.5; 2.0; NAN; "0"; True; [0]; torch.tensor([1, 2]); 1j; np.float32(1); ?np.int64(3); ?-1; ?2**70
odd:
    5; 0.5; [1, 'a']; {1: 2}; dict; network(); x(); np.arange(3); b'a'; NAN; 'a\nb' * 300; object(); fail
methods:
    None; ""; "npg"; "NGP"; "missing.py:Own"; 5; warp_unlearning.methods.neg_grad_plus.NegGradPlus; ["ngp"]; "a\nb" * 300
settings:
    ["epochs"]; "epochs=1"; {"epoch": 1}; {1: 2}; {"lr": NAN}; {"lr": "fast"}; {"lr": -1.0}; {"lr": None}; {"epochs": 0};
    {"epochs": 1.5}; {"epochs": True}; {"batch_size": 0}; {"lr": torch.ones(2)}; {"lr": [0.1]}; {"lr": float("inf")}; 5;
    ?{"batch_size": 10**9, "epochs": 1}; ?{"lr": 1e30, "epochs": 1}; ?{"lr": 0, "epochs": 1}
defenses:
    'wrap'; 5; ''; warp_unlearning.Warp; ['warp']; False; ?'warp'; ?'conjugate'; ?None; object()
devices:
    'cuda:9'; 'tpu'; ''; 5; torch.device('meta'); 'cpu:x'; 'mps'; [1]; ?'cpu'; ?'auto'
states:
    None; [1]; {}; network(); state(network()[0].weight.data.long()); state(network()[0].weight.data > 0);
    state(network()[0].weight.data.to(torch.complex64)); {k: v.half() for k, v in network().state_dict().items()};
    network().to("meta").state_dict(); nn.LazyLinear(3).state_dict(); state(network()[0].weight.data.to_sparse());
    state(torch.quantize_per_tensor(torch.ones(5, 4), 0.1, 0, torch.qint8)); quantised().state_dict();
    state(torch.ones(5, 3)); state(torch.ones(5), "3.weight"); {"0.weight": torch.ones(5, 4)}; {1: torch.ones(2)};
    {k: v.numpy() for k, v in network().state_dict().items()}; ?state(torch.full((5,), NAN), "0.bias");
    ?{f"module.{k}": v for k, v in network().state_dict().items()}
paths: 5; 0.5; [1, 'a']; {1: 2}; dict; x(); b'a'; NAN; 'a\nb' * 300; object(); 'missing'; '.'; '/dev/null'; ''; 'a\0b'
rows: []; [90]; [-1]; [0.5]; [NAN]; ['zz']; [None]; [[1]]; None; 5; [2**70]; {1: 2}; object(); x(); [1, [2]]
numbers: [90]; [-1]; [0.5]; [NAN]; ['zz']; [None]; [[1]]; 5; [2**70]; {1: 2}; object(); x()
no_tables: 'data'; 5; {}; [1]; [None]; network()
no_networks: None; 5; 'x'; nn.Linear; {}; nn.Linear(2, 2); network().to('meta')
watchers: 5; 'x'; [1]
words: 5; NAN; object(); []; ?'a\nb'; ?True; None
untrained: ?5; ?'x'; ?nn.Linear(9, 9); ?(lambda: None); ?fail; ?(lambda a: a); ?network
functions: 5; (lambda a: None); (lambda a: a[:3]); (lambda a: a * NAN); fail; (lambda: 1); 'x'
readings: 5; 'x'; [1]; {'a': 5}; ?{'a': lambda a: a[:, :1]}; ?{1: fail}
shares: 2; -1; NAN; 'x'; [1]; True; 0.5
overrides: 5; 'a'; ['a']; ['a.b=1']; [1]; ['seed=x']; {1: 2}
kinds: 5; 0.5; [1]; 'npx'; 'csv'; 'folder'; 'npy'; 'cifar10'; 'digits'; 'fashion_mnist'; x(); 'a\nb' * 300
holdouts: 0; 1; -1; NAN; 'x'; [1]; True; 1e-9; ?0.5
sizes: 5; (0, 4); (2.5, 2); 'ab'; (-1, -1)
classes: 0; -1; 2; 2.5; 'abc'; [1, 2]; []; ['a']; {1: 2}; ['a', 'a', 'a']; NAN; ?5
names: ?'salun'; ?'pgu'; ?'bad_teacher'; ?'srf_on'; ?'retrain'; ?'finetune'
"""


def _pools() -> dict[str, list[str]]:
    texts = re.findall(r"^(\w+):(.*(?:\n .*)*)", TEXT, re.MULTILINE)
    found = {name: [" ".join(one.split()) for one in text.split(";") if one.strip()] for name, text in texts}
    found["sets"], found["seeds_or_none"] = found["examples"][1:], found["seeds"][1:]
    found["references"] = [*found["networks"][1:], *found["more_references"]]
    return found


POOLS = _pools()
