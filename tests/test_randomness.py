from __future__ import annotations

import torch

from warp_unlearning.randomness import LayerDraws, Streams


def draw(streams: Streams, *path: str | int) -> list[float]:
    return torch.rand(4, generator=streams.generator(*path)).tolist()


def test_a_stream_depends_on_seed_and_path_alone() -> None:
    assert draw(Streams(1), "a", 2) == draw(Streams(1), "a", 2) == draw(Streams(1, "a"), 2)


def test_streams_of_other_seeds_names_or_counters_differ() -> None:
    paths = [(Streams(0), "a"), (Streams(1), "a"), (Streams(0), "b"), (Streams(0), "a", 0), (Streams(0), "a", "0")]
    drawn = [tuple(draw(streams, *path)) for streams, *path in paths]
    assert len(set(drawn)) == len(paths)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    draw(Streams(0), "a")
    assert torch.equal(before, torch.get_rng_state())


def test_layers_draw_from_the_seed_and_the_global_generator_is_put_back() -> None:
    def drawn(seed: int) -> list[float]:
        draws = LayerDraws(seed, device=torch.device("cpu"))
        found = []
        for _ in range(2):
            with draws:
                found.append(float(torch.rand(())))
            torch.rand(3)
        return found

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = drawn(5)
    torch.set_rng_state(before)
    with LayerDraws(5, device=torch.device("cpu")):
        torch.rand(7)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert drawn(5) == first
    assert drawn(6) != first
    assert first[0] != first[1]
