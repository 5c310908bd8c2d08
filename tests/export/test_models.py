"""The built-in models keep their contract and are what they say, and other models are found by import path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tritonbatch.errors import InvalidInput, NotSupported
from tritonbatch.models import convnet, decoder_step, digits, minilm
from tritonbatch.models.catalog import BUILT_IN, load_model
from tritonbatch.models.check import check_model
from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.optional import needing


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_models_load_reproducibly(name: str) -> None:
    """A built-in model has the same weights each time, and leaves the global random state alone."""
    state = torch.get_rng_state()
    first, second = load_model(name), load_model(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.name == name
    for one, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_digits_recognises_digits_that_it_never_saw() -> None:
    """The digit classifier is right on over 95% of the held-out digits."""
    pixels, labels = digits.held_out()
    predicted = digits.build().module(torch.from_numpy(pixels)).argmax(dim=1).numpy()
    assert (predicted == labels).mean() > 0.95


def test_convnet_recognises_digits_that_it_never_saw() -> None:
    """The convolutional classifier is right on over 95% of the held-out digits, as images."""
    pixels, labels = digits.held_out()
    with torch.no_grad():
        predicted = convnet.build().module(torch.from_numpy(convnet.images(pixels))).argmax(dim=1).numpy()
    assert (predicted == labels).mean() > 0.95


def test_decoder_steps_agree_with_the_whole_text_at_once() -> None:
    """Eight steps with a cache give the logits that all tokens in one forward give, at every step."""
    module = decoder_step.build().module
    tokens = torch.from_numpy(np.random.default_rng(0).integers(decoder_step.VOCABULARY, size=(3, 8)))
    nothing = [torch.from_numpy(array) for array in decoder_step.empty_cache(3).values()]
    past = nothing
    with torch.no_grad():
        for step in range(8):
            logits, *past = module(tokens[:, step : step + 1], *past)
            expected, *_ = module(tokens[:, : step + 1], *nothing)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_minilm_dynamic_agrees_with_minilm_at_its_length() -> None:
    """At 32 tokens the encoder of any length is the encoder of 32 tokens."""
    rows = minilm.build().sample(4, np.random.default_rng(0))
    tensors = [torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")]
    with torch.no_grad():
        torch.testing.assert_close(minilm.build_dynamic().module(*tensors), minilm.build().module(*tensors))


def test_minilm_gives_the_embeddings_of_sentence_transformers() -> None:
    """Sentences of fewer than 32 tokens get the published model's own embeddings."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    sentences = ["opening hours", "Is there a discount for students?", "The river rose by half a metre at night."]
    rows = minilm.encode(sentences)
    assert rows["attention_mask"].sum(axis=1).max() < minilm.TOKENS
    with torch.no_grad():
        got = minilm.build().module(*(torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")))
    expected = sentence_transformers.SentenceTransformer(str(minilm.weights_folder()), device="cpu").encode(sentences)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_loading_minilm_prints_nothing() -> None:
    """The progress bar and the report of the loading library stay off the terminal."""
    command = "from tritonbatch.models.minilm import build; build()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_the_catalog_loads_no_torch() -> None:
    """Importing the catalog, as the command line's help does, stays free of heavy imports."""
    command = "import sys, tritonbatch.models.catalog, tritonbatch.export.build; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


USER_MODULE = """
import numpy as np, torch
from tritonbatch.models.model import Model, TensorSpec

class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2

def build():
    spec = lambda name: TensorSpec(name, "TYPE_FP32", (2,))
    sample = lambda batch, rng: {"x": rng.random((batch, 2), dtype=np.float32)}
    return Model(name="double", module=Double(), inputs=(spec("x"),), outputs=(spec("y"),), sample=sample, purpose="")

def plain():
    return Double()

def text():
    return "no model"

def broken():
    raise RuntimeError("no weights here")

number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder holds `own_models.py`, `own_broken.py` and `own_needs.py`."""
    (tmp_path / "own_models.py").write_text(USER_MODULE)
    (tmp_path / "own_broken.py").write_text("1 / 0")
    (tmp_path / "own_needs.py").write_text("import a_package_that_is_missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("own_models", "own_broken", "own_needs"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("own_module")
def test_a_factory_of_the_current_folder_is_found() -> None:
    """`module:factory` builds a model from a module in the current folder."""
    assert load_model("own_models:build").name == "double"


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("minlm", "digits, minilm, minilm_dynamic, ranking_mlp.*did you mean 'minilm'"),
        ("", "there is no model ''"),
        ("own_models:", "there is no model 'own_models:'"),
        ("nowhere.models:build", "there is no module 'nowhere.models'"),
        ("own_models:biuld", "has no 'biuld'.*did you mean 'build'"),
        ("own_models:number", "cannot call 'number'"),
        ("own_models:text", "returned a str, expected a tritonbatch.models.model.Model"),
        ("own_models:plain", "returned a Double.*--input features:FP32:512, or return a Model"),
        ("own_models:broken", "RuntimeError: no weights here"),
        ("own_broken:build", "ZeroDivisionError"),
        ("own_needs:build", "a_package_that_is_missing"),
    ],
)
def test_a_wrong_spec_is_explained(spec: str, words: str) -> None:
    """Each way to misname a model gets a sentence with what is wrong and what to do."""
    with pytest.raises(InvalidInput, match=words):
        load_model(spec)


def _rows(batch: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.random((batch, 4))}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a/b"}, "cannot be a folder"),
        ({"module": "weights"}, "is a str, expected a torch.nn.Module"),
        ({"inputs": ()}, "has no inputs"),
        ({"outputs": ()}, "has no outputs"),
        ({"outputs": (TensorSpec("y", "TYPE_FP32", (4,)),) * 2}, "the output name 'y' twice"),
        ({"outputs": (TensorSpec("", "TYPE_FP32", (4,)),)}, "empty name"),
        ({"outputs": (TensorSpec("y", "FP32", (4,)),)}, "data type 'FP32', expected one of TYPE_BF16"),
        ({"outputs": (TensorSpec("y", "TYPE_FP32", (0,)),)}, r"dims \[0\]"),
        ({"outputs": (TensorSpec("y", "TYPE_FP32", (-2,)),)}, r"dims \[-2\]"),
        ({"sample": lambda _batch, _rng: {}}, r"returned \[\], expected a dict with the keys \['x'\]"),
        ({"sample": lambda _batch, _rng: None}, "returned NoneType"),
        ({"sample": _rows}, r"float64 \[2, 4\] for input 'x', expected float32 \[2, 4\]"),
        ({"sample": lambda batch, _rng: {"x": np.zeros((batch, 5), np.float32)}}, r"\[2, 5\]"),
        ({"sample": lambda _batch, _rng: 1 / 0}, "raised ZeroDivisionError"),
    ],
)
def test_a_model_that_breaks_its_contract_is_rejected(
    make_model: Callable[..., Model], changes: dict[str, Any], words: str
) -> None:
    """Each broken promise of a Model is named before any export starts."""
    with pytest.raises(InvalidInput, match=words):
        check_model(replace(make_model(torch.nn.Identity()), **changes))


def test_a_missing_package_is_one_helpful_sentence() -> None:
    """An import that fails says what needs the package and how to install it."""
    with (
        pytest.raises(NotSupported, match=r"exporting needs a_missing_package.*pip install 'tritonbatch\[models\]'"),
        needing("exporting", "models"),
    ):
        import a_missing_package  # noqa: F401, PLC0415
