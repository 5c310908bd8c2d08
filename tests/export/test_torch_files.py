"""TorchScript files, ExportedProgram files and plain modules come in, and say what is missing where they cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from onnx import helper
from torch.export import Dim

from tritonbatch.errors import ExportRejected, InvalidInput, NotSupported
from tritonbatch.export.build import build_spec
from tritonbatch.models.given import Given, parse_given, parse_input
from tritonbatch.models.model import TensorSpec


class TwoInputs(torch.nn.Module):
    """Two inputs, two outputs; adds a row of weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [batch, 4]."""
        together = self.layer(a) + b
        return together, together.relu()


class ByKeyword(TwoInputs):
    """Takes its second input by keyword and returns a dict."""

    def forward(self, a: torch.Tensor, *, b: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """One output [batch, 4] by name."""
        return {"together": self.layer(a) + b}


class Nested(TwoInputs):
    """Takes a list of tensors."""

    def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        """To [batch, 4]."""
        return self.layer(pair[0]) + pair[1]


pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
EXAMPLE = (torch.rand(3, 8), torch.rand(3, 4))
GIVEN = parse_given(["a:FP32:8", "b:FP32:4"], ["sum/0:0", "508"])
BATCH = Dim("batch")


def _scripted(path: Path) -> None:
    torch.jit.script(TwoInputs().eval()).save(str(path))


def _traced(path: Path) -> None:
    torch.jit.trace(TwoInputs().eval(), EXAMPLE).save(str(path))


@pytest.mark.parametrize("save", [_scripted, _traced])
def test_a_torchscript_file_is_exported_with_given_inputs(save: Callable[[Path], None], tmp_path: Path) -> None:
    """Scripted and traced files get the given names, agree with torch at every batch, and are skipped when current."""
    save(tmp_path / "scripted.pt")
    builds = [
        build_spec(str(tmp_path / "scripted.pt"), tmp_path / "m", max_batch_size=16, given=GIVEN) for _ in range(2)
    ]
    assert [built.rebuilt for built in builds] == [True, False]
    assert builds[0].inputs == GIVEN.inputs
    assert [spec.name for spec in builds[0].outputs] == ["sum/0:0", "508"]
    assert [entry.batch for entry in builds[0].verification.parity] == [1, 2, 8, 16]
    assert max(entry.absolute for entry in builds[0].verification.parity) < 1e-5


def test_another_torchscript_file_is_exported_again(tmp_path: Path) -> None:
    """Other weights, or other names, are another model."""
    path = tmp_path / "scripted.pt"
    _scripted(path)
    build_spec(str(path), tmp_path / "m", max_batch_size=2, given=GIVEN)
    assert build_spec(str(path), tmp_path / "m", max_batch_size=2, given=Given(GIVEN.inputs)).rebuilt
    _scripted(path)
    assert build_spec(str(path), tmp_path / "m", max_batch_size=2, given=Given(GIVEN.inputs)).rebuilt


def test_free_sizes_of_a_torchscript_file_stay_free(tmp_path: Path) -> None:
    """An input of any length gives an output of any length, and both are run at two lengths."""
    torch.jit.script(torch.nn.ReLU()).save(str(tmp_path / "relu.pt"))
    given = parse_given(["x:FP32:-1x4"])
    built = build_spec(str(tmp_path / "relu.pt"), tmp_path / "m", max_batch_size=4, given=given)
    assert built.outputs == (TensorSpec("output", "TYPE_FP32", (-1, 4)),)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_batch_size_is_rejected(tmp_path: Path) -> None:
    """A trace that kept the example's batch as a number fails at another batch."""

    def keep(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.shape[0]) * 4).reshape(-1, 4) * torch.ones(int(x.shape[0]), 1)

    torch.jit.trace(keep, torch.rand(2, 4), check_trace=False).save(str(tmp_path / "fixed.pt"))
    with pytest.raises((InvalidInput, ExportRejected)):
        build_spec(str(tmp_path / "fixed.pt"), tmp_path / "m", max_batch_size=4, given=parse_given(["x:FP32:4"]))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Given(), "does not say what it takes.*--input features:FP32:512"),
        (parse_given(["a:FP32:8"]), "does not run on the inputs given"),
        (parse_given(["a:FP32:8", "b:FP32:5"]), "does not run on the inputs given"),
        (parse_given(["a:FP32:8", "b:FP32:4"], ["one"]), "returns 2 tensors, got 1 output names"),
    ],
)
def test_wrong_tensors_for_a_torchscript_file_are_explained(given: Given, words: str, tmp_path: Path) -> None:
    """Missing inputs, wrong shapes and a wrong number of outputs each get a sentence, and nothing is written."""
    _scripted(tmp_path / "scripted.pt")
    with pytest.raises(InvalidInput, match=words):
        build_spec(str(tmp_path / "scripted.pt"), tmp_path / "m", max_batch_size=4, given=given)
    assert not (tmp_path / "m").exists()


def test_a_state_dict_is_no_torchscript_file(tmp_path: Path) -> None:
    """Weights without code are refused with two ways out."""
    torch.save(TwoInputs().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InvalidInput, match=r"not a TorchScript file.*package\.module:factory"):
        build_spec(str(tmp_path / "weights.pt"), tmp_path / "m", max_batch_size=4, given=GIVEN)


def _program(path: Path, module: torch.nn.Module, batch: Dim | None = BATCH) -> None:
    keyword = isinstance(module, ByKeyword)
    args, kwargs = (EXAMPLE[:1], {"b": EXAMPLE[1]}) if keyword else (EXAMPLE, None)
    dynamic = None if batch is None else {"a": {0: batch}, "b": {0: batch}}
    torch.export.save(torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic), path)


def test_an_exported_program_says_its_inputs_itself(tmp_path: Path) -> None:
    """Names, types and shapes come from the program; outputs may be named; the second build is skipped."""
    _program(tmp_path / "program.pt2", TwoInputs())
    given = Given(outputs=("p", "q"))
    builds = [
        build_spec(str(tmp_path / "program.pt2"), tmp_path / "m", max_batch_size=16, given=given) for _ in range(2)
    ]
    assert [built.rebuilt for built in builds] == [True, False]
    assert builds[0].inputs == GIVEN.inputs
    assert builds[0].outputs == (TensorSpec("p", "TYPE_FP32", (4,)), TensorSpec("q", "TYPE_FP32", (4,)))
    assert len(builds[0].verification.parity) == 4


def test_an_exported_program_with_keywords_and_a_dict_goes_through(tmp_path: Path) -> None:
    """Inputs by keyword keep their names, and keys of the result name the outputs."""
    _program(tmp_path / "program.pt2", ByKeyword())
    built = build_spec(str(tmp_path / "program.pt2"), tmp_path / "m", max_batch_size=4)
    assert built.inputs == GIVEN.inputs
    assert built.outputs == (TensorSpec("together", "TYPE_FP32", (4,)),)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (None, r"input 'a' \[3, 8\] of program.pt2 is specialised.*torch.export.Dim\('batch'\).*2 rows or more"),
        (Dim("batch", max=8), r"allows batches up to 8, expected up to 16 \(max_batch_size\); lower that"),
    ],
)
def test_a_program_that_does_not_batch_is_rejected(batch: Dim | None, words: str, tmp_path: Path) -> None:
    """A fixed batch, or one with too small a maximum, is named with the way to export it again."""
    _program(tmp_path / "program.pt2", TwoInputs(), batch)
    with pytest.raises(ExportRejected, match=words):
        build_spec(str(tmp_path / "program.pt2"), tmp_path / "m", max_batch_size=16)
    assert not (tmp_path / "m").exists()


def test_a_program_with_nested_inputs_is_refused(tmp_path: Path) -> None:
    """Triton exchanges tensors by name, so a list of them has none."""
    program = torch.export.export(Nested().eval(), (list(EXAMPLE),), dynamic_shapes=([{0: BATCH}, {0: BATCH}],))
    torch.export.save(program, tmp_path / "nested.pt2")
    with pytest.raises(InvalidInput, match=r"lists or dicts of tensors.*one tensor per argument"):
        build_spec(str(tmp_path / "nested.pt2"), tmp_path / "m", max_batch_size=4)


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_a_file_that_torch_did_not_save_is_invalid(name: str, content: bytes | None, tmp_path: Path) -> None:
    """A missing, empty or foreign file is the caller's mistake."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    given = GIVEN if name.endswith(".pt") else Given()
    with pytest.raises(InvalidInput, match=r"there is no file|is not a TorchScript|is not an ExportedProgram"):
        build_spec(str(tmp_path / name), tmp_path / "m", max_batch_size=4, given=given)


PLAIN = """
import torch

def layer():
    return torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())

def half():
    return torch.nn.Identity().to(torch.bfloat16)

class Cast(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.bfloat16)

def cast():
    return Cast()
"""


@pytest.fixture
def plain_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder holds `plain_models.py`, whose functions return modules."""
    (tmp_path / "plain_models.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "plain_models", raising=False)


@pytest.mark.usefixtures("plain_module")
def test_a_plain_module_is_exported_with_given_inputs(tmp_path: Path) -> None:
    """A function that returns a torch module needs only the tensors on the command line."""
    built = build_spec("plain_models:layer", tmp_path / "m", max_batch_size=8, given=parse_given(["x:FP32:16"], ["y"]))
    assert (built.inputs, built.outputs) == (
        (TensorSpec("x", "TYPE_FP32", (16,)),),
        (TensorSpec("y", "TYPE_FP32", (4,)),),
    )


@pytest.mark.usefixtures("plain_module")
def test_an_output_without_a_numpy_type_is_not_supported(tmp_path: Path) -> None:
    """BF16 results are refused with what to do instead."""
    with pytest.raises(NotSupported, match=r"torch\.bfloat16.*convert it inside the module"):
        build_spec("plain_models:cast", tmp_path / "m", max_batch_size=8, given=parse_given(["x:FP32:16"]))


def test_tensors_given_to_what_has_them_are_refused(tmp_path: Path, write_graph: Callable[..., Path]) -> None:
    """Built-in models, ONNX files and programs say their inputs themselves."""
    _program(tmp_path / "program.pt2", TwoInputs())
    graph = write_graph([helper.make_node("Relu", ["x"], ["y"])], ["batch", 4], ["batch", 4])
    for spec in ("digits", str(graph), str(tmp_path / "program.pt2")):
        with pytest.raises(InvalidInput, match="--input"):
            build_spec(spec, tmp_path / "m", max_batch_size=4, given=GIVEN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("features:FP32:512", TensorSpec("features", "TYPE_FP32", (512,))),
        ("image:TYPE_UINT8:3x32x32", TensorSpec("image", "TYPE_UINT8", (3, 32, 32))),
        ("ids:int64:-1", TensorSpec("ids", "TYPE_INT64", (-1,))),
        ("layer_1/ExpandDims_1:0:float32:2,3", TensorSpec("layer_1/ExpandDims_1:0", "TYPE_FP32", (2, 3))),
        ("text:BYTES:1", TensorSpec("text", "TYPE_STRING", (1,))),
    ],
)
def test_an_input_is_read_from_text(text: str, expected: TensorSpec) -> None:
    """Names with colons, both joints of dims, both ways to write a type and its usual aliases are understood."""
    assert parse_input(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("features", "expected NAME:TYPE:DIMS"),
        ("features:FP32", "expected NAME:TYPE:DIMS"),
        ("features:FP32:", "expected NAME:TYPE:DIMS"),
        (":FP32:4", "expected NAME:TYPE:DIMS"),
        ("features:FP31:4", "has type 'FP31', expected one of BF16.*did you mean FP32"),
        ("features:FP32:0", "has the dims '0', expected whole numbers of at least 1"),
        ("features:FP32:4x", "has the dims '4x'"),
        ("features:FP32:-2", "has the dims '-2'"),
        ("features:FP32:batch", "has the dims 'batch'"),
    ],
)
def test_a_wrong_input_text_is_explained(text: str, words: str) -> None:
    """Each part that is wrong is named, with how to write it."""
    with pytest.raises(InvalidInput, match=words):
        parse_input(text)


def test_a_name_given_twice_is_refused() -> None:
    """Two inputs, or two outputs, of one name cannot be told apart."""
    with pytest.raises(InvalidInput, match="the input 'x' is given twice"):
        parse_given(["x:FP32:1", "x:FP32:2"])
    with pytest.raises(InvalidInput, match="the output 'y' is given twice"):
        parse_given(["x:FP32:1"], ["y", "y"])
