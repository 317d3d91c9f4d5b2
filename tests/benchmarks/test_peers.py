"""Peers: a peer's model starts from our weights."""

import torch

from benchmarks.peers import initial_weights, make_transformers
from model import GPT, GPTConfig


def test_a_peer_of_transformers_starts_where_our_model_does():
    config = GPTConfig(200, 16, 2, 2, 32, tie_weights=False)
    weights = initial_weights(config)
    torch.manual_seed(1337)
    ours = GPT.create(config)
    theirs = make_transformers(config, weights, torch.device("cpu")).model
    ids, targets = torch.randint(0, 200, (2, 2, 16))
    loss = theirs(input_ids=ids, labels=targets, shift_labels=targets).loss
    torch.testing.assert_close(loss, ours(ids, targets))
