"""How one process trains, with CUDA graphs and without: the same step. Of several: tests/system/test_several*.py."""

import pytest
import torch

import train
from tests.helpers.training import run_of, small_model
from training.parallel import Alone, InGraphs


@pytest.fixture
def graphs(monkeypatch):
    """Memory as CUDA graphs treat it: what the last passes wrote is lost when the next ones begin."""
    own, zeros_like = set(), torch.zeros_like

    def zeros(parameter, **options):
        made = zeros_like(parameter, **options)
        own.add(made.data_ptr())
        return made

    def begin():
        for model in models:
            for parameter in model.parameters():
                if parameter.grad is not None and parameter.grad.data_ptr() not in own:
                    parameter.grad.fill_(torch.nan)

    models = []
    monkeypatch.setattr("training.parallel.torch.zeros_like", zeros)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", begin)
    return models


def weights_after(parallel_class, accumulations, models):
    torch.manual_seed(0)
    model = small_model()
    models.append(model)
    learner = run_of(model, parallel=parallel_class(model))
    ids = torch.randint(model.config.vocab_size, (8, 2, 2, model.config.seq_length))
    for accumulation in accumulations:
        batches = [(inputs, targets) for inputs, targets in ids[:accumulation]]
        train.try_step(learner, batches, accumulation)
    models.clear()
    return torch.cat([weight.detach().ravel() for weight in model.parameters()])


@pytest.mark.parametrize("accumulations", [(1, 1, 1), (3, 3), (1, 4, 4, 1)])
def test_gradients_in_graphs_are_used_up_or_added_up_elsewhere(graphs, accumulations):
    expected = weights_after(Alone, accumulations, [])
    assert expected.isfinite().all()
    assert torch.equal(weights_after(InGraphs, accumulations, graphs), expected)


def test_one_micro_batch_keeps_no_second_copy_of_the_gradients(graphs):
    model = small_model()
    parallel = InGraphs(model)
    with parallel.micro_batch(is_last=True):
        assert all(parameter.grad is None for parameter in model.parameters())
    assert not parallel.keeps_gradients
    with parallel.micro_batch(is_last=False):
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert parallel.keeps_gradients
