"""One tiny model: as this program opens it, to score with, and as transformers does."""

import contextlib
import io

import pytest
import torch

from gpt.checkpoint.load import load_model
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.evaluation.scoring import Scorer
from tests.helpers.scoring import T
from tests.helpers.training import on_cpu


@pytest.fixture(scope="module")
def model_folder(make_checkpoint, tmp_path_factory):
    """A checkpoint."""
    return make_checkpoint(tmp_path_factory.mktemp("evaluation"), 3, seq_length=T)[0]


@pytest.fixture(scope="module")
def theirs(model_folder):
    """The model in transformers, in fp64."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval().double()


@pytest.fixture
def scorer(model_folder, tokenizer):
    """The model, ready to score; the id of the end of a text is 0."""
    model = load_model(model_folder, torch.device("cpu")).eval()
    with contextlib.closing(Progress(io.StringIO())) as out:
        yield Scorer(model, model_folder, tokenizer, 0, on_cpu(), out, Signals())
