"""The sinusoidal table and the module that adds it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import PositionalEncoding, sinusoidal_encoding

few = settings(max_examples=20, deadline=None)
lengths, widths = st.integers(1, 31), st.integers(1, 23)


# values worked by hand


def test_an_odd_width_has_one_sine_more_than_cosines():
    want = [
        [0, 1, 0, 1, 0],
        [0.8414710, 0.5403023, 0.0251162, 0.9996845, 0.0006310],
        [0.9092974, -0.4161468, 0.0502166, 0.9987384, 0.0012619],
    ]
    assert_close(sinusoidal_encoding(3, 5), torch.tensor(want), atol=1e-6, rtol=0)


def test_a_width_of_one_is_a_sine():
    assert_close(sinusoidal_encoding(2, 1), torch.tensor([[0.0], [0.8414710]]))


def test_position_zero_alternates_zero_and_one():
    assert sinusoidal_encoding(1, 7).tolist() == [[0, 1, 0, 1, 0, 1, 0]]


@pytest.mark.parametrize("position", [1, 97, 4999])
@pytest.mark.parametrize("column", [0, 1, 30, 31, 45, 46])
def test_an_entry_equals_the_formula(position, column):
    angle = position / 10000 ** ((column - column % 2) / 47)
    want = math.cos(angle) if column % 2 else math.sin(angle)
    assert sinusoidal_encoding(5000, 47)[position, column].item() == pytest.approx(want, abs=1e-6)


# parity with torch


@few
@given(lengths, widths)
def test_sine_and_cosine_are_the_parts_of_a_turning_complex_number(length, d_model):
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    turned = torch.polar(torch.ones(1, dtype=torch.float64), torch.outer(torch.arange(length), frequencies))
    want = torch.view_as_real(turned).flip(-1).flatten(-2)[:, :d_model]  # (cos, sin) -> (sin, cos)
    assert_close(sinusoidal_encoding(length, d_model), want.float())


def test_the_table_is_as_exact_as_float32_allows_at_the_last_default_position():
    angles = 4999 / 10000 ** (torch.arange(0, 512, 2, dtype=torch.float64) / 512)
    want = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten()
    assert (sinusoidal_encoding(5000, 512)[4999].double() - want).abs().max() < 1e-7


# properties


@few
@given(lengths, widths)
def test_a_longer_table_begins_with_the_shorter_one(length, d_model):
    table = sinusoidal_encoding(37, d_model)
    assert table.shape == (37, d_model) and table.dtype == torch.float32
    assert torch.equal(sinusoidal_encoding(length, d_model), table[:length])


@few
@given(lengths, st.integers(1, 11))
def test_every_position_of_an_even_width_has_the_same_length(length, pairs):
    norms = sinusoidal_encoding(length, 2 * pairs).norm(dim=-1)
    assert_close(norms, torch.full((length,), math.sqrt(pairs)))


@few
@given(st.integers(0, 29), st.integers(0, 29), st.integers(0, 500), st.integers(1, 11))
def test_dot_products_depend_on_the_distance_alone(a, b, shift, pairs):
    table = sinusoidal_encoding(530, 2 * pairs).double()
    assert_close(table[a] @ table[b], table[a + shift] @ table[b + shift], atol=1e-5, rtol=0)


@few
@given(st.integers(0, 40), st.integers(1, 11))
def test_a_shift_is_one_rotation_for_all_positions(shift, pairs):
    table = sinusoidal_encoding(61, 2 * pairs).double()
    angle = shift * 10000.0 ** (-torch.arange(0, 2 * pairs, 2, dtype=torch.float64) / (2 * pairs))
    sine, cosine = table[:20, 0::2], table[:20, 1::2]
    moved = torch.stack(
        [sine * angle.cos() + cosine * angle.sin(), cosine * angle.cos() - sine * angle.sin()], dim=-1
    )
    assert_close(moved.flatten(-2), table[shift : shift + 20], atol=1e-6, rtol=0)


def test_all_positions_differ():
    assert len(sinusoidal_encoding(5000, 64).unique(dim=0)) == 5000


@few
@given(st.integers(0, 5), st.integers(0, 13), widths, st.integers(0, 7))
def test_each_sequence_of_a_batch_gets_the_same_rows(batch, length, d_model, offset):
    x = torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(3))
    got = PositionalEncoding(d_model, dropout=0.0, max_len=20)(x, offset)
    assert got.shape == x.shape
    for sequence, encoded in zip(x, got, strict=True):
        assert_close(encoded, sequence + sinusoidal_encoding(20, d_model)[offset : offset + length])


def test_positions_count_along_the_sequence_and_not_along_the_batch():
    got = PositionalEncoding(4, dropout=0.0, max_len=10)(torch.zeros(3, 2, 4))
    rows = torch.tensor([[0, 1, 0, 1], [0.8414710, 0.5403023, 0.0099998, 0.9999500]])
    assert_close(got, rows.expand(3, 2, 4))


@pytest.mark.parametrize("pieces", [[11], [1] * 11, [5, 3, 2, 1], [7, 4]])
def test_pieces_with_offsets_equal_the_whole_sequence(pieces):
    encode = PositionalEncoding(6, dropout=0.0, max_len=11)
    x = torch.randn(2, 11, 6)
    starts = [sum(pieces[:i]) for i in range(len(pieces))]
    parts = [encode(x[:, a : a + n], a) for a, n in zip(starts, pieces, strict=True)]
    assert torch.equal(torch.cat(parts, dim=1), encode(x))


def test_attention_without_positions_cannot_tell_orders_apart_and_with_them_can():
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 4, 1, 2])
    encode = PositionalEncoding(8, dropout=0.0).double()

    def attend(x):
        return F.scaled_dot_product_attention(x, x, x)

    assert_close(attend(x[:, order]), attend(x)[:, order])
    assert (attend(encode(x[:, order])) - attend(encode(x))[:, order]).abs().max() > 0.1


# dropout


def test_dropout_acts_on_the_sum_and_only_in_training():
    torch.manual_seed(0)
    encode, x = PositionalEncoding(8, dropout=0.25, max_len=500), torch.full((4, 500, 8), 3.0)
    want = x + sinusoidal_encoding(500, 8)
    got = encode(x)
    kept = got != 0
    assert_close(got[kept], (want / 0.75)[kept])
    assert abs(kept.double().mean().item() - 0.75) < 0.02
    assert_close(encode.eval()(x), want)


def test_dropout_noise_has_mean_zero_and_grows_with_the_entry():
    torch.manual_seed(0)
    encode, x = PositionalEncoding(6, dropout=0.1, max_len=3), torch.zeros(20000, 3, 6)
    noise = encode(x) - sinusoidal_encoding(3, 6)
    assert noise.mean(dim=0).abs().max() < 0.02
    assert_close(noise.std(dim=0), sinusoidal_encoding(3, 6).abs() / 3, atol=0.02, rtol=0)


# what the module costs


def test_the_table_is_neither_a_parameter_nor_saved():
    encode = PositionalEncoding(7, max_len=13)
    assert not list(encode.parameters()) and not encode.state_dict()
    assert [buffer.shape for buffer in encode.buffers()] == [(13, 7)]


def test_a_model_saved_with_one_max_len_loads_with_another():
    model = nn.Sequential(nn.Linear(5, 7), PositionalEncoding(7, max_len=13))
    longer = nn.Sequential(nn.Linear(5, 7), PositionalEncoding(7, max_len=17))
    longer.load_state_dict(model.state_dict())
    x = torch.randn(2, 13, 5)
    assert_close(longer.eval()(x), model.eval()(x))


# half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_sum_keeps_the_type_of_the_input(dtype):
    got = PositionalEncoding(6, dropout=0.0, max_len=11)(torch.zeros(2, 11, 6, dtype=dtype))
    assert torch.equal(got[0], sinusoidal_encoding(11, 6).to(dtype))


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float16, 2**-12), (torch.bfloat16, 2**-9)])
def test_a_module_in_half_precision_rounds_the_table_and_not_the_angles(dtype, rounding):
    encode = PositionalEncoding(512, dropout=0.0).to(dtype)
    got = encode(torch.zeros(1, 5000, 512, dtype=dtype))[0]
    assert (got.double() - sinusoidal_encoding(5000, 512).double()).abs().max() <= rounding


# errors


@pytest.mark.parametrize(("length", "offset"), [(14, 0), (1, 13), (5, 11), (5000, 0)])
def test_a_sequence_beyond_max_len_names_both_numbers(length, offset):
    encode = PositionalEncoding(3, max_len=13)
    message = rf"sequence length \({length + offset}\) must not exceed max_len \(13\)"
    with pytest.raises(ValueError, match=message):
        encode(torch.zeros(2, length, 3), offset)


def test_a_sequence_of_exactly_max_len_fits():
    assert PositionalEncoding(3, max_len=13)(torch.zeros(2, 13, 3)).shape == (2, 13, 3)


@pytest.mark.parametrize("width", [1, 5, 6, 14])
def test_another_width_is_rejected_even_where_it_would_broadcast(width):
    with pytest.raises(ValueError, match=rf"x \(width {width}\) must have the width d_model \(7\)"):
        PositionalEncoding(7)(torch.zeros(2, 3, width))


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 5, 3, 7)])
def test_x_without_batch_and_sequence_raises(shape):
    message = rf"x must have three dimensions \(B, T, d_model\), got \({', '.join(map(str, shape))}"
    with pytest.raises(ValueError, match=message):
        PositionalEncoding(7)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_x_of_whole_numbers_raises_instead_of_losing_the_encoding(dtype):
    with pytest.raises(TypeError, match=rf"x \(dtype {dtype}\) must hold floating point numbers"):
        PositionalEncoding(7)(torch.zeros(2, 3, 7, dtype=dtype))


@pytest.mark.parametrize(("offset", "error"), [(-1, ValueError), (1.0, TypeError)])
def test_an_offset_that_is_no_position_raises(offset, error):
    with pytest.raises(error, match=rf"offset \({offset}\) must be"):
        PositionalEncoding(7)(torch.zeros(2, 3, 7), offset)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-2, ValueError), (6.0, TypeError)])
def test_a_width_that_is_not_positive_raises(value, error):
    for build in (lambda: sinusoidal_encoding(3, value), lambda: PositionalEncoding(value)):
        with pytest.raises(error, match=rf"d_model \({value}\) must be"):
            build()


def test_a_negative_length_raises_and_zero_gives_an_empty_table():
    with pytest.raises(ValueError, match=r"length \(-1\) must be at least 0"):
        sinusoidal_encoding(-1, 7)
    assert sinusoidal_encoding(0, 7).shape == (0, 7)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-2, ValueError), (6.0, TypeError)])
def test_a_max_len_that_is_not_positive_raises(value, error):
    with pytest.raises(error, match=rf"max_len \({value}\) must be"):
        PositionalEncoding(7, max_len=value)


@pytest.mark.parametrize("dropout", [-0.1, 1.1])
def test_dropout_that_is_no_probability_raises(dropout):
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        PositionalEncoding(7, dropout=dropout)


@pytest.mark.gpu
def test_the_table_moves_to_the_gpu_with_its_module():
    encode, x = PositionalEncoding(7, dropout=0.0, max_len=13), torch.zeros(2, 11, 7)
    want = encode(x)
    assert_close(encode.to("cuda")(x.to("cuda")).cpu(), want)
