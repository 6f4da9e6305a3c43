from __future__ import annotations

import pickle

import pytest
import torch
from numpy.random import MT19937

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


def test_a_secret_is_drawn_anew_and_an_experiment_repeats() -> None:
    assert draw(Streams.secret(), "a") != draw(Streams.secret(), "a")
    assert draw(Streams.secret(7), "a", 1) == draw(Streams.secret(7), "a", 1)
    streams = Streams.secret(7)
    paths = [(streams, "a"), (streams.of("a"), "a"), (streams.of("a", "a"),), (streams.of("a").of("a"),), (streams,)]
    assert len({tuple(draw(*path)) for path in paths}) == len(paths)
    assert 2**200 < streams.number("x") < 2**256


def test_the_whole_state_of_a_secret_generator_is_its_own() -> None:
    states = [Streams.secret(seed).generator("x").get_state()[24 : 24 + 8 * 624].view(torch.int64) for seed in (1, 2)]
    assert all(len(state.unique()) > 620 for state in states)
    assert int((states[0] == states[1]).sum()) == 0
    # The layout is torch's: the words give back what a Mersenne Twister of another make draws from them.
    words = states[0].numpy().astype("uint32")
    twister = MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.rand(8, generator=Streams.secret(1).generator("x"))
    assert drawn.tolist() == (twister.random_raw(8) % 2**24 / 2**24).tolist()


def test_a_secret_is_not_printed_not_pickled_and_drawn_on_the_host() -> None:
    streams = Streams.secret(12345)
    assert "12345" not in repr(streams)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(streams)
    with pytest.raises(ValueError, match="draw on the CPU"):
        streams.generator("x", device="cuda")
