"""Every method on a GPU: `python benchmarks/gpu_methods.py DATA.npz OUT.json`.

Trains ResNet-18 (CIFAR stem, bf16, channels-last, crop and flip) on the images of an .npz, forgets a random tenth by
each method at its published settings, and compares with retraining. Reports accuracies, the gap to the retrained model
and seconds, and where torchvision is installed, that its ResNet-18 has the same state dict as ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from warp_unlearning import compare, unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.methods import make_method
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import ResNet18
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Training, run_training

EPOCHS = 30
METHODS = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "finetune", "langevin")


def torchvision_agrees() -> str:
    try:
        from torchvision.models import resnet18
    except ImportError:
        return "torchvision is not installed"
    theirs = [(k, tuple(v.shape)) for k, v in resnet18(weights=None).state_dict().items()]
    ours = ResNet18(classes=1000, stem="imagenet")
    mine = [(k, tuple(v.shape)) for k, v in ours.state_dict().items()]
    reference = resnet18(weights=None).eval()
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        difference = float((ours.eval()(x) - reference(x)).abs().max())
    return f"same keys, order and shapes: {mine == theirs}; largest output difference {difference:.1e}"


def train(examples: TensorExamples, fill: tuple[float, ...]) -> tuple[nn.Module, float]:
    model = ResNet18(classes=10)
    reinitialise(model, generator=Streams(0).generator("weights"))
    recipe = Recipe(epochs=EPOCHS, batch_size=256, lr=0.1, crop_padding=4, flip=True)
    torch.cuda.synchronize()
    began = perf_counter()
    training = Training(model.cuda(), examples, recipe=recipe, streams=Streams(0, "training"), fill=fill)
    run_training(training)
    torch.cuda.synchronize()
    return model, perf_counter() - began


def main() -> None:
    data = load_data("npz", path=Path(sys.argv[1]))
    order = torch.randperm(len(data.train), generator=Streams(0).generator("order"))
    count = len(order) // 10
    validation, forget, retain = (
        data.train.select(i).to("cuda") for i in (order[:count], order[count : 2 * count], order[2 * count :])
    )
    known = data.train.select(order[count:]).to("cuda")
    test = data.test.to("cuda")
    original, seconds = train(known, data.fill)
    retrained, _ = train(retain, data.fill)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "torchvision": torchvision_agrees(),
        "training": {"seconds": seconds, "epochs": EPOCHS, "test accuracy": accuracy(original, test)},
    }
    print(json.dumps(results, indent=2), flush=True)
    for name in METHODS:
        torch.cuda.synchronize()
        began = perf_counter()
        done = unlearn(original, forget=forget, retain=retain, validation=validation, method=make_method(name))
        torch.cuda.synchronize()
        taken = perf_counter() - began
        c = compare(original, done.model, retrained=retrained, forget=forget, retain=retain, test=test)
        scores = {k: round(v.value, 4) for k, v in c.models["unlearned"].accuracy.items()}
        row = {"seconds": taken, "updates": len(done.history), "accuracy": scores}
        row |= {"gap": c.gaps["unlearned"].forget_output.value, "gap before": c.gaps["original"].forget_output.value}
        results[name] = row
        print(name, json.dumps(row), flush=True)
    Path(sys.argv[2]).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
