"""How one process trains, with CUDA graphs and without: the same step. Of several: tests/system/test_several*.py."""

import itertools

import pytest
import torch
import torch.distributed as dist

import train
from gpt.machine.processes import ALONE, Processes
from gpt.training.strategies import DELAY, CudaGraphs, DataParallel, Strategy, Votes
from tests.helpers.training import run_of, small_batch, small_model


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
    monkeypatch.setattr("gpt.training.strategies.torch.zeros_like", zeros)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", begin)
    return models


def weights_after(strategy_class, accumulations, models):
    torch.manual_seed(0)
    model = small_model()
    models.append(model)
    learner = run_of(model, strategy=strategy_class(model))
    ids = torch.randint(model.config.vocab_size, (8, 2, 2, model.config.seq_length))
    for accumulation in accumulations:
        batches = [(inputs, targets) for inputs, targets in ids[:accumulation]]
        train.try_step(learner, batches, accumulation)
    models.clear()
    return torch.cat([weight.detach().ravel() for weight in model.parameters()])


@pytest.mark.parametrize("accumulations", [(1, 1, 1), (3, 3), (1, 4, 4, 1)])
def test_gradients_in_graphs_are_used_up_or_added_up_elsewhere(graphs, accumulations):
    expected = weights_after(Strategy, accumulations, [])
    assert expected.isfinite().all()
    assert torch.equal(weights_after(CudaGraphs, accumulations, graphs), expected)


def test_one_micro_batch_keeps_no_second_copy_of_the_gradients(graphs):
    model = small_model()
    strategy = CudaGraphs(model)
    with strategy.accumulating(is_last=True):
        assert all(parameter.grad is None for parameter in model.parameters())
    assert not strategy.keeps_gradients
    with strategy.accumulating(is_last=False):
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert strategy.keeps_gradients


def test_a_block_is_one_graph_among_several_processes_too(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = small_model(n_embd=384)  # a block has more weights than the first bucket that DDP averages
        strategy, graphs = DataParallel(model, Processes()), []

        def counted(graph, example):
            graphs.append(graph)
            return graph.forward

        for part in strategy.parts_to_compile(blocks=True):
            part.compile(dynamic=False, backend=counted)
        with strategy.accumulating(is_last=False):
            strategy.forward(*small_batch(2), 0.0).backward()
    finally:
        dist.destroy_process_group()
    assert len(graphs) == 2  # of blocks, which are alike, and of the output layer


# ---------------------------------------------------------------- what they decide together


def test_one_process_decides_at_once():
    votes = Votes(ALONE)
    assert not votes.any_yes("save", False)
    assert votes.any_yes("save", True)
    assert not votes.any_yes("save", False)


def decided(monkeypatch, here, others):
    """After which asks a process decides, if another one has these wishes in turn."""
    wishes = itertools.chain(others, itertools.repeat(False))

    class Arrived:
        def wait(self) -> None: ...

    def add(number: torch.Tensor, async_op: bool) -> Arrived:
        number += next(wishes)
        return Arrived()

    monkeypatch.setattr(dist, "all_reduce", add)
    votes = Votes(Processes(0, 2))
    return [ask for ask in range(1, 10) if votes.any_yes("save", ask in here)]


def test_a_wish_of_one_process_is_heard_in_all_two_steps_later(monkeypatch):
    assert decided(monkeypatch, [], [False, True]) == [2 + DELAY]
    assert decided(monkeypatch, [2], []) == [2 + DELAY]


def test_a_wish_that_lasts_until_it_is_heard_is_fulfilled_once(monkeypatch):
    assert decided(monkeypatch, [2, 3, 4], [False, True, True]) == [2 + DELAY]


def test_what_is_agreed_upon_now_holds_from_then_on(monkeypatch):
    monkeypatch.setattr(Processes, "total", lambda self, numbers: [1.0])
    votes = Votes(Processes(0, 2))
    assert votes.any_yes_now("stop", False)
    assert votes.any_yes("stop", False)
