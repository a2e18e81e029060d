"""The flat vector: layout, round trips, what is refused, which layer classifies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import LARGEST_COUNTER, FlatModel, spec_of


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )


class Tied(nn.Module):
    """A language model in small: the decoder's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.decoder = nn.Linear(3, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.embedding(tokens).mean(dim=1))


def test_layout_is_parameters_then_buffers_then_counters():
    spec = spec_of(convolutional())
    assert [e.name for e in spec.parameters] == ["0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias"]
    assert [e.name for e in spec.buffers] == ["1.running_mean", "1.running_var"]
    assert [e.name for e in spec.counters] == ["1.num_batches_tracked"]
    trainable = 4 * 27 + 4 + 4 + 4 + 5 * 16 + 5
    assert spec.trainable == slice(0, trainable)
    assert spec.averaged == slice(0, trainable + 8)
    assert spec.counted == slice(trainable + 8, trainable + 9)
    assert spec.size == trainable + 9
    assert spec.bytes == 4 * spec.size


def test_entries_cover_the_vector_without_gaps():
    spec = spec_of(convolutional())
    at = 0
    for entry in spec.entries:
        assert entry.start == at
        assert entry.stop - entry.start == np.prod(entry.shape, dtype=int)
        at = entry.stop
    assert at == spec.size
    assert spec.entry("5.bias").slice == slice(spec.trainable.stop - 5, spec.trainable.stop)


def test_vector_holds_tensors_in_logical_order_whatever_their_memory_format():
    module = convolutional()
    weight = module[0].weight.detach().clone()
    model = FlatModel(module)
    assert model.memory_format is torch.channels_last
    assert not model.module[0].weight.is_contiguous()
    flat = model.vector()
    np.testing.assert_array_equal(flat[model.spec.entry("0.weight").slice], weight.numpy().ravel())


def test_load_writes_every_tensor_and_keeps_the_memory_format():
    model = FlatModel(convolutional())
    wanted = torch.arange(model.spec.size, dtype=torch.float32)
    model.load(wanted)
    np.testing.assert_array_equal(model.vector(), wanted.numpy())
    assert model.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model.module[0].weight[1, 2, 0, 1] == 1 * 27 + 2 * 9 + 0 * 3 + 1
    assert model.module[1].num_batches_tracked.dtype == torch.int64
    assert int(model.module[1].num_batches_tracked) == model.spec.size - 1


def test_loading_does_not_alias_the_vector():
    model = FlatModel(nn.Linear(3, 2))
    origin = torch.zeros(model.spec.size)
    model.load(origin)
    with torch.no_grad():
        model.module.weight.add_(1)
    assert not origin.any()


def test_movement_is_a_difference_except_for_counters():
    model = FlatModel(convolutional())
    model.module[1].num_batches_tracked.fill_(5)
    origin = torch.from_numpy(model.vector())
    model.module.train()
    model.module(torch.randn(4, 3, 6, 6))
    model.module(torch.randn(4, 3, 6, 6))
    out = torch.empty(model.spec.size)
    model.store_movement(origin, out)
    spec = model.spec
    assert not out[spec.trainable].any()
    assert out[spec.entry("1.running_mean").slice].any()
    assert out[spec.counted].tolist() == [7.0]
    np.testing.assert_allclose(
        (origin + out)[spec.averaged].numpy(), model.vector()[spec.averaged], rtol=1e-6, atol=1e-7
    )


def test_batch_counter_survives_the_round_trip_up_to_the_largest():
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    model.module[0].num_batches_tracked.fill_(LARGEST_COUNTER - 1)
    flat = model.vector()
    model.module[0].num_batches_tracked.zero_()
    model.load(torch.from_numpy(flat))
    assert int(model.module[0].num_batches_tracked) == LARGEST_COUNTER - 1
    model.module[0].num_batches_tracked.add_(2)
    with pytest.raises(ConfigError, match="too large"):
        model.vector()


def test_tied_weights_are_stored_once_and_stay_tied():
    model = FlatModel(Tied())
    assert [e.name for e in model.spec.parameters] == ["embedding.weight", "decoder.bias"]
    model.load(torch.arange(model.spec.size, dtype=torch.float32))
    assert model.module.decoder.weight is model.module.embedding.weight
    assert model.module.decoder.weight[6, 2] == 20


def test_tied_classification_layer_is_not_guessed():
    with pytest.raises(ConfigError, match="classification layer"):
        _ = spec_of(Tied()).final_weight


def test_buffers_that_are_not_saved_are_left_out():
    module = nn.Linear(2, 2)
    module.register_buffer("scratch", torch.zeros(3), persistent=False)
    assert spec_of(module).size == 6


def test_bool_and_integer_buffers_are_counters():
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([True, False]))
    module.register_buffer("step", torch.tensor(3, dtype=torch.int32))
    model = FlatModel(module)
    flat = model.vector()
    assert flat[model.spec.counted].tolist() == [1, 0, 3]
    module.mask.fill_(False)
    model.load(torch.from_numpy(flat))
    assert module.mask.tolist() == [True, False]


def test_other_float_types_become_float32():
    model = FlatModel(nn.Linear(2, 2).double())
    assert model.module.weight.dtype == torch.float32
    assert model.vector().dtype == np.float32


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def complex_model() -> nn.Module:
    module = nn.Linear(2, 2)
    module.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return module


def integer_parameter() -> nn.Module:
    module = nn.Linear(2, 2)
    module.table = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    return module


def sparse_buffer() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("graph", torch.eye(3).to_sparse())
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.LazyLinear(3), "lazy"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()), "lazy"),
        (complex_model, "'phase' is complex"),
        (integer_parameter, "'table' is torch.int64"),
        (sparse_buffer, "'graph' is sparse"),
        (frozen, "no trainable parameters"),
        (nn.ReLU, "no trainable parameters"),
    ],
)
def test_what_cannot_be_flat_is_refused_with_the_reason(make, reason):
    with pytest.raises(ConfigError, match=reason):
        spec_of(make())


def test_final_layer_is_the_last_linear_with_its_bias():
    spec = spec_of(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    assert spec.final_layer_name == "2"
    assert spec.final_weight.shape == (3, 6)
    assert spec.final_bias.shape == (3,)
    assert spec.final_layer == slice(4 * 6 + 6, 4 * 6 + 6 + 3 * 6 + 3)


def test_final_layer_without_bias_and_of_a_single_layer():
    spec = spec_of(nn.Linear(4, 3, bias=False))
    assert spec.final_weight.name == "weight"
    assert spec.final_bias is None
    assert spec.final_layer == slice(0, 12)


def test_final_layer_may_be_a_convolution():
    spec = spec_of(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    assert spec.final_weight.shape == (10, 4, 1, 1)
    assert spec.final_outputs == 10


def test_declared_final_layer_wins():
    module = nn.ModuleDict({"classifier": nn.Linear(4, 3), "projection": nn.Linear(4, 8)})
    assert spec_of(module).final_layer_name == "projection"
    module.final_layer = "classifier"  # type: ignore[assignment]
    assert spec_of(module).final_weight.shape == (3, 4)


def test_reparametrised_final_layer_is_not_replaced_by_the_one_before():
    module = nn.Sequential(nn.Linear(4, 6), nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
    with pytest.raises(ConfigError, match="classification layer"):
        _ = spec_of(module).final_weight


def test_model_without_linear_or_convolution_has_no_final_layer():
    spec = spec_of(nn.Embedding(3, 2))
    assert spec.final_outputs is None
    with pytest.raises(ConfigError, match="final_layer"):
        _ = spec.final_layer


@st.composite
def small_models(draw):
    layers: list[nn.Module] = []
    images = draw(st.booleans())
    width = draw(st.integers(1, 3))
    if images:
        for _ in range(draw(st.integers(1, 2))):
            filters = draw(st.integers(1, 4))
            layers.append(nn.Conv2d(width, filters, draw(st.sampled_from([1, 3])), bias=draw(st.booleans())))
            if draw(st.booleans()):
                layers.append(nn.BatchNorm2d(filters, affine=draw(st.booleans())))
            width = filters
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for _ in range(draw(st.integers(0, 2))):
        hidden = draw(st.integers(1, 4))
        layers += [
            nn.Linear(width, hidden, bias=draw(st.booleans())),
            draw(st.sampled_from([nn.ReLU(), nn.PReLU()])),
        ]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, draw(st.integers(1, 4)), bias=draw(st.booleans())))


@settings(max_examples=40, deadline=None)
@given(small_models(), st.integers(0, 2**31))
def test_any_vector_survives_load_and_store(module, seed):
    model = FlatModel(module)
    wanted = torch.from_numpy(
        np.random.default_rng(seed).integers(-1000, 1000, model.spec.size).astype(np.float32)
    )
    model.load(wanted)
    out = torch.full((model.spec.size,), torch.nan)
    model.store(out)
    assert torch.equal(out, wanted)
    # What a plain state dict says, tensor by tensor, lies where the spec says.
    state = model.module.state_dict()
    for entry in model.spec.entries:
        assert torch.equal(wanted[entry.slice].view(entry.shape), state[entry.name].float())
    assert {entry.name for entry in model.spec.entries} == set(state)
    assert model.spec.final_layer.stop == model.spec.trainable.stop
