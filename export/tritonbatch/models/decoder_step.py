"""One step of a small autoregressive transformer with a cache of keys and values.

Token ids of this step and the cache of the steps before go in; logits of the next token and the cache with this step
appended come out. The batch is axis 0 of every tensor, the cache included, so a server can join the steps of
different conversations, if their caches are of the same length. The weights are random, with a fixed seed.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.seeded import linear

VOCABULARY = 512
LAYERS = 2
HEADS = 4
HEAD_WIDTH = 16
LONGEST = 128
_WIDTH = HEADS * HEAD_WIDTH
_SEED = 23
_PAST_LENGTHS = (7, 0, 12, 24)


class Block(torch.nn.Module):
    """Attention over the cache and this step, then a feed-forward part, each added to its input."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.projections = linear(_WIDTH, 3 * _WIDTH, generator)
        self.joined = linear(_WIDTH, _WIDTH, generator)
        self.before_attention = torch.nn.LayerNorm(_WIDTH)
        self.before_feed_forward = torch.nn.LayerNorm(_WIDTH)
        self.feed_forward = torch.nn.Sequential(
            linear(_WIDTH, 4 * _WIDTH, generator), torch.nn.ReLU(), linear(4 * _WIDTH, _WIDTH, generator)
        )

    def forward(
        self, hidden: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """*hidden* [batch, new, width], the past [batch, heads, past, head width], *visible* [new, past + new]."""
        batch, new, _ = hidden.shape
        split = self.projections(self.before_attention(hidden)).reshape(batch, new, 3, HEADS, HEAD_WIDTH)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([past_keys, keys], dim=2), torch.cat([past_values, values], dim=2)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(HEAD_WIDTH)
        weights = scores.masked_fill(~visible, -1e9).softmax(dim=-1)
        attended = (weights @ values).transpose(1, 2).reshape(batch, new, _WIDTH)
        hidden = hidden + self.joined(attended)
        return hidden + self.feed_forward(self.before_feed_forward(hidden)), keys, values


class DecoderStep(torch.nn.Module):
    """A decoder that takes any number of new tokens, which is one per step when it generates."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.empty(VOCABULARY, _WIDTH).normal_(generator=generator))
        self.positions = torch.nn.Parameter(torch.empty(LONGEST, _WIDTH).normal_(generator=generator))
        self.blocks = torch.nn.ModuleList(Block(generator) for _ in range(LAYERS))
        self.last = torch.nn.LayerNorm(_WIDTH)

    def forward(
        self, token_ids: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """*token_ids* [batch, new], the past [batch, layers, heads, past, head width]; logits [batch, vocabulary]."""
        past, new = past_keys.shape[3], token_ids.shape[1]
        place = torch.arange(new) + past
        visible = torch.arange(past + new) <= place.unsqueeze(1)
        hidden = self.tokens[token_ids] + self.positions[place]
        keys, values = [], []
        for layer, block in enumerate(self.blocks):
            hidden, k, v = block(hidden, past_keys[:, layer], past_values[:, layer], visible)
            keys.append(k)
            values.append(v)
        logits = self.last(hidden[:, -1]) @ self.tokens.T
        return logits, torch.stack(keys, dim=1), torch.stack(values, dim=1)


def build() -> Model:
    """Inputs ``token_ids`` [batch, 1] INT64, ``past_keys``, ``past_values`` [batch, 2, 4, past, 16] FP32.

    Outputs ``logits`` [batch, 512], ``present_keys``, ``present_values`` [batch, 2, 4, past + 1, 16] FP32.
    """
    cache = (LAYERS, HEADS, -1, HEAD_WIDTH)
    return Model(
        name="decoder_step",
        module=DecoderStep(torch.Generator().manual_seed(_SEED)).eval(),
        inputs=(
            TensorSpec("token_ids", "TYPE_INT64", (1,)),
            TensorSpec("past_keys", "TYPE_FP32", cache),
            TensorSpec("past_values", "TYPE_FP32", cache),
        ),
        outputs=(
            TensorSpec("logits", "TYPE_FP32", (VOCABULARY,)),
            TensorSpec("present_keys", "TYPE_FP32", cache),
            TensorSpec("present_values", "TYPE_FP32", cache),
        ),
        sample=_sample,
        purpose="one step of generation: the cache is an input and an output",
    )


def empty_cache(batch: int) -> Arrays:
    """The past before the first step: keys and values of no steps at all."""
    nothing = np.zeros((batch, LAYERS, HEADS, 0, HEAD_WIDTH), np.float32)
    return {"past_keys": nothing, "past_values": nothing.copy()}


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    # By the batch, so that the batch sizes of a verification meet different lengths; one row starts a conversation.
    past = _PAST_LENGTHS[batch.bit_length() % len(_PAST_LENGTHS)]
    shape = (batch, LAYERS, HEADS, past, HEAD_WIDTH)
    return {
        "token_ids": rng.integers(VOCABULARY, size=(batch, 1)),
        "past_keys": rng.standard_normal(shape, np.float32),
        "past_values": rng.standard_normal(shape, np.float32),
    }
