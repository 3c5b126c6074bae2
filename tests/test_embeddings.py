"""Token embeddings and the check of ids."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import Embeddings, make_model
from annotated_transformer.embeddings import check_ids

few = settings(max_examples=20, deadline=None)


@st.composite
def tables_and_ids(draw):
    """A table of random size and ids (B, T) for it, empty batches and sequences included."""
    vocab_size, d_model = draw(st.integers(1, 13)), draw(st.integers(1, 11))
    shape = (draw(st.integers(0, 5)), draw(st.integers(0, 7)))
    seed = draw(st.integers(0, 1000))
    ids = torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))
    return Embeddings(vocab_size, d_model), ids


# values worked by hand


def test_a_row_is_looked_up_and_multiplied_by_the_root_of_the_width():
    embed = Embeddings(3, 4)
    with torch.no_grad():
        embed.table.weight.copy_(torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [-1, 0, 0.5, 0]]))
    got = embed(torch.tensor([[2, 0], [0, 1]]))
    assert_close(got, torch.tensor([[[-2.0, 0, 1, 0], [2, 4, 6, 8]], [[2, 4, 6, 8], [10, 12, 14, 16]]]))


def test_gradients_of_repeated_tokens_add_up_and_other_rows_get_none():
    embed = Embeddings(5, 9)
    embed(torch.tensor([[3, 1, 3], [3, 0, 1]])).sum().backward()
    per_use = math.sqrt(9)  # the factor: each use adds it to each entry
    rows = torch.tensor([1.0, 2, 0, 3, 0])[:, None] * per_use
    assert_close(embed.table.weight.grad, rows.expand(5, 9))


# parity with torch


@few
@given(tables_and_ids())
def test_lookup_equals_one_hot_times_matrix(case):
    embed, ids = case
    one_hot = F.one_hot(ids, embed.vocab_size).to(embed.table.weight.dtype)
    assert_close(embed(ids), one_hot @ embed.table.weight * embed.d_model**0.5)


@few
@given(tables_and_ids())
def test_equals_torch_embedding_times_the_factor_forward_and_backward(case):
    embed, ids = case
    reference = nn.Embedding(embed.vocab_size, embed.d_model)
    reference.load_state_dict(embed.table.state_dict())
    got, want = embed(ids), reference(ids) * math.sqrt(embed.d_model)
    assert_close(got, want)
    got.square().sum().backward()
    want.square().sum().backward()
    assert_close(embed.table.weight.grad, reference.weight.grad)


# properties


@few
@given(tables_and_ids())
def test_output_has_the_shape_of_the_ids_and_the_width(case):
    embed, ids = case
    assert embed(ids).shape == (*ids.shape, embed.d_model)


@few
@given(tables_and_ids(), st.data())
def test_an_output_depends_on_its_own_id_alone(case, data):
    embed, ids = case
    order = torch.tensor(data.draw(st.permutations(range(ids.size(1)))), dtype=torch.int64)
    assert_close(embed(ids[:, order]), embed(ids)[:, order])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_integer_types_of_torch_are_accepted(dtype):
    embed, ids = Embeddings(7, 5), torch.tensor([[0, 6, 3]])
    assert check_ids(ids.to(dtype), 7) is None
    assert_close(embed(ids.to(dtype)), embed(ids))


@pytest.mark.parametrize("d_model", [5, 64, 512])
def test_embedded_vectors_start_with_deviation_one_whatever_the_width(d_model):
    torch.manual_seed(0)
    vectors = Embeddings(20011, d_model)(torch.arange(20011))
    assert abs(vectors.std().item() - 1) < 0.02 and abs(vectors.mean().item()) < 0.02


def test_the_factor_multiplies_gradients_of_the_table():
    embed, ids = Embeddings(7, 25), torch.tensor([[4, 2]])
    output = embed(ids)
    output.retain_grad()
    output.sin().sum().backward()
    assert_close(embed.table.weight.grad[[4, 2]], 5 * output.grad[0])


# padding


@pytest.mark.parametrize("padding_idx", [0, 4, 10])
def test_the_padding_row_is_zero_and_stays_zero_in_training(padding_idx):
    embed = Embeddings(11, 3, padding_idx)
    optimizer = torch.optim.SGD(embed.parameters(), lr=0.5)
    before = embed.table.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        (embed(torch.arange(11)[None]) - 1).square().sum().backward()
        optimizer.step()
    rows = torch.arange(11) == padding_idx
    assert (embed.table.weight[rows] == 0).all() and (embed(torch.tensor([padding_idx])) == 0).all()
    assert (embed.table.weight[~rows] != before[~rows]).any(dim=-1).all()


def test_without_padding_no_row_starts_at_zero():
    assert (Embeddings(11, 3).table.weight != 0).any(dim=-1).all()


def test_reset_padding_mends_the_row_after_another_initialisation():
    embed = Embeddings(11, 3, padding_idx=2)
    nn.init.ones_(embed.table.weight)
    embed.reset_padding()
    assert embed.table.weight.sum(dim=-1).tolist() == [3, 3, 0, 3, 3, 3, 3, 3, 3, 3, 3]


def test_reset_parameters_draws_anew_and_keeps_padding_zero():
    embed = Embeddings(11, 3, padding_idx=2)
    before = embed.table.weight.detach().clone()
    embed.reset_parameters()
    changed = (embed.table.weight != before).any(dim=-1)
    assert changed.tolist() == [row != 2 for row in range(11)]


# sharing the table with the output layer


def test_a_shared_table_collects_the_gradients_of_both_its_uses():
    model = make_model(11, 11, num_layers=1, d_model=8, d_ff=16, num_heads=2, share_embeddings=True)
    table = model.src_embed.tokens.table.weight
    assert model.tgt_embed.tokens.table.weight is table and model.generator.projection.weight is table
    model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).square().sum().backward()
    assert (table.grad != 0).any(dim=-1).all()  # as output matrix every row is used


# errors


@pytest.mark.parametrize("wrong", [17, 18, 1000, -1, -17])
@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_an_id_outside_the_vocabulary_is_named_with_the_vocabulary_size(wrong, place):
    ids = torch.full((2, 3), 16)
    ids[place] = wrong
    for reject in (Embeddings(17, 5), lambda x: check_ids(x, 17)):
        with pytest.raises(ValueError, match=rf"ids \({wrong}\) must be .* 0 and below vocab_size \(17\)"):
            reject(ids)


def test_the_message_names_the_tensor_that_the_caller_means():
    with pytest.raises(ValueError, match=r"^tgt \(9\) must be"):
        check_ids(torch.tensor([[0, 9]]), 7, "tgt")


@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize("wrong", [17, -1])
def test_a_whole_model_names_the_side_of_a_wrong_id(side, wrong):
    model = make_model(17, 17, num_layers=1, d_model=8, d_ff=16, num_heads=2)
    ids = {"src": torch.tensor([[3, 4]]), "tgt": torch.tensor([[5, 6]])}
    ids[side][0, 1] = wrong
    with pytest.raises(ValueError, match=rf"{side} \({wrong}\) must be .* below vocab_size \(17\)"):
        model(**ids)


def test_swapped_sizes_are_reported_as_an_id_outside_the_vocabulary():
    swapped = Embeddings(8, 1009)  # meant: 1009 tokens of width 8
    with pytest.raises(ValueError, match=r"ids \(512\) must be at least 0 and below vocab_size \(8\)"):
        swapped(torch.tensor([[512, 3]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.uint8, torch.int16])
def test_ids_of_another_type_raise(dtype):
    ids = torch.ones(2, 3).to(dtype)
    for reject in (Embeddings(7, 5), lambda x: check_ids(x, 7)):
        with pytest.raises(TypeError, match=rf"ids \(dtype {dtype}\) must hold whole numbers as int64"):
            reject(ids)


def test_ids_that_are_no_tensor_raise():
    for reject in (Embeddings(7, 5), lambda x: check_ids(x, 7)):
        with pytest.raises(TypeError, match="ids must be a tensor of token ids, got list"):
            reject([[1, 2]])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)])
def test_empty_ids_are_accepted(shape):
    ids = torch.zeros(shape, dtype=torch.int64)
    assert check_ids(ids, 7) is None and Embeddings(7, 5)(ids).shape == (*shape, 5)


def test_ids_without_values_are_not_checked():
    ids = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    assert check_ids(ids, 7) is None


def test_a_compiled_graph_holds_no_check():
    embed = Embeddings(7, 5)

    def checked(ids):
        check_ids(ids, 7)
        return embed(ids)

    torch.compiler.reset()
    ids = torch.tensor([[0, 6]])
    assert_close(torch.compile(checked, backend="eager", fullgraph=True)(ids), embed(ids))


def test_an_error_of_torch_that_is_not_about_ids_is_passed_on():
    embed = Embeddings(7, 5)
    embed.table.weight = nn.Parameter(torch.zeros(7))  # no longer a matrix
    with pytest.raises(RuntimeError, match="2-D"):
        embed(torch.tensor([[1]]))


@pytest.mark.parametrize("name", ["vocab_size", "d_model"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError)])
def test_a_size_that_is_not_positive_raises(name, value, error):
    with pytest.raises(error, match=rf"{name} \({value}\) must be"):
        Embeddings(**{"vocab_size": 7, "d_model": 5, name: value})


def test_a_padding_id_outside_the_vocabulary_raises():
    with pytest.raises(ValueError, match=r"padding_idx \(7\) must be below vocab_size \(7\)"):
        Embeddings(7, 5, padding_idx=7)
    with pytest.raises(ValueError, match=r"padding_idx \(-1\) must be at least 0"):
        Embeddings(7, 5, padding_idx=-1)
    with pytest.raises(TypeError, match=r"padding_idx \(1.0\) must be a whole number"):
        Embeddings(7, 5, padding_idx=1.0)


@pytest.mark.gpu
def test_a_gpu_gives_the_numbers_of_the_cpu():
    embed, ids = Embeddings(13, 7, padding_idx=0), torch.tensor([[0, 12, 5]])
    want = embed(ids)
    assert_close(embed.to("cuda")(ids.to("cuda")).cpu(), want)
