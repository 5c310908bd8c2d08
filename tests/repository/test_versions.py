"""Versions on disk: a new one whole or not at all, the oldest removed, an earlier one served, links that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.errors import ExportRejected, InvalidInput
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.repository.settings import all_versions, specific_versions
from tritonbatch.repository.shared_weights import share_versions
from tritonbatch.repository.versions import check_only_version_1, publish, rollback, set_aside, versions

STEM = onnx_config("m", (), (), max_batch_size=8, instances=Instances())


def build(content: str) -> Callable[[Path, int], bool]:
    """A build of a model that is its *content*, as the exporter does it: nothing when the file is as wanted."""

    def make(folder: Path, version: int) -> bool:
        path = folder / str(version) / "model.onnx"
        if path.exists() and path.read_text() == content:
            return False
        path.parent.mkdir(exist_ok=True)
        # By rename, as every writer here does, so a linked copy of an older version is not written through.
        temporary = path.with_name("new")
        temporary.write_text(content)
        temporary.replace(path)
        (folder / "new.npz").write_text(content)
        (folder / "new.npz").replace(folder / "samples.npz")
        return True

    return make


def contents(model: Path) -> dict[int, str]:
    """The content of each version that Triton sees."""
    return {version: (model / str(version) / "model.onnx").read_text() for version in versions(model)}


def test_a_version_is_added_when_the_model_changed_and_the_oldest_removed(tmp_path: Path) -> None:
    """Numbers rise by one, an unchanged model adds none, and only the newest are kept."""
    model = tmp_path / "m"
    served = [publish(model, 2, build(content)) for content in ("a", "a", "b", "b", "c")]
    assert served == [1, 1, 2, 2, 3]
    assert contents(model) == {2: "b", 3: "c"}
    assert (model / "samples.npz").read_text() == "c"
    assert sorted(path.name for path in model.iterdir()) == ["2", "3", "samples.npz"]
    assert publish(model, 1, build("d")) == 4
    assert contents(model) == {4: "d"}


def test_a_build_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """Neither a version nor a scratch folder appears, and a model that never was leaves no folder."""

    def fail(folder: Path, version: int) -> bool:
        (folder / str(version)).mkdir(exist_ok=True)
        (folder / str(version) / "model.onnx").unlink(missing_ok=True)
        raise ExportRejected("it differs")

    model = tmp_path / "m"
    with pytest.raises(ExportRejected):
        publish(model, 2, fail)
    assert not model.exists()
    publish(model, 2, build("a"))
    with pytest.raises(ExportRejected):
        publish(model, 2, fail)
    assert contents(model) == {1: "a"}
    assert sorted(path.name for path in model.iterdir()) == ["1", "samples.npz"]


def test_rollback_goes_back_and_forth(tmp_path: Path) -> None:
    """The version before is served, a named one too, and one that was set aside comes back."""
    model = tmp_path / "m"
    for content in "abcd":
        publish(model, 9, build(content))
    assert rollback(model) == 3
    assert rollback(model) == 2
    assert (contents(model), set_aside(model)) == ({1: "a", 2: "b"}, (3, 4))
    assert rollback(model, 4) == 4
    assert (sorted(contents(model)), set_aside(model)) == ([1, 2, 3, 4], ())
    assert not (model / "set-aside").exists()
    assert rollback(model, 4) == 4


@given(st.lists(st.integers(1, 5), max_size=6))
def test_what_is_served_changes_by_one_rename(tmp_path_factory: pytest.TempPathFactory, targets: list[int]) -> None:
    """Whatever the way there, only the version before and the one asked for are ever the highest in place."""
    model = tmp_path_factory.mktemp("versions") / "m"
    for number in range(1, 6):
        (model / str(number)).mkdir(parents=True)
    seen: list[int] = []
    real = Path.rename

    def observed(self: Path, target: Path) -> Path:
        result = real(self, target)
        seen.append(versions(model)[-1])
        return result

    for target in targets:
        before = versions(model)[-1]
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "rename", observed)
            assert rollback(model, target) == target
        assert versions(model) == tuple(range(1, target + 1))
        # First only the old one, then only the new one.
        assert seen == [version for version in (before, target) for each in seen if each == version][: len(seen)]


def test_a_new_version_after_a_rollback_is_served_and_bad_ones_go_first(tmp_path: Path) -> None:
    """Its number is above those set aside, which are removed before good older ones."""
    model = tmp_path / "m"
    for content in "abc":
        publish(model, 3, build(content))
    rollback(model)
    assert publish(model, 3, build("d")) == 4
    assert (contents(model), set_aside(model)) == ({1: "a", 2: "b", 4: "d"}, ())


@pytest.mark.parametrize(
    ("to", "says"),
    [
        (7, r"m has no version 7: it has versions 1, 2 \(served\), 3 \(set aside\); name one"),
        (0, "m has no version 0"),
    ],
)
def test_a_version_that_does_not_exist_lists_those_that_do(tmp_path: Path, to: int, says: str) -> None:
    """The sentence says which are served and which are set aside."""
    model = tmp_path / "m"
    for content in "abc":
        publish(model, 3, build(content))
    rollback(model)
    with pytest.raises(InvalidInput, match=says):
        rollback(model, to)


def test_there_must_be_something_to_roll_back_to(tmp_path: Path) -> None:
    """No model, one version, and zero versions to keep are mistakes; replacing version 1 unseen is one too."""
    model = tmp_path / "m"
    with pytest.raises(InvalidInput, match="No versions in"):
        rollback(model)
    with pytest.raises(InvalidInput, match="to keep is 0"):
        publish(model, 0, build("a"))
    publish(model, 2, build("a"))
    check_only_version_1(model)
    with pytest.raises(InvalidInput, match=r"m has version 1 \(served\): expected one before version 1"):
        rollback(model)
    publish(model, 2, build("b"))
    with pytest.raises(InvalidInput, match=r"m has versions 1, 2 \(served\): expected only version 1"):
        check_only_version_1(model)


def test_versions_by_number_in_a_configuration_are_not_moved_away(tmp_path: Path) -> None:
    """A file that asks for specific versions would fail to load, so the rollback is refused; others may stay."""
    model = tmp_path / "m"
    for content in "ab":
        publish(model, 2, build(content))
    (model / "configs").mkdir()
    (model / "config.pbtxt").write_text(config_text(all_versions(STEM)))
    pinned = model / "configs" / "pinned.pbtxt"
    pinned.write_text(config_text(specific_versions(STEM, [2])))
    with pytest.raises(InvalidInput, match=r"pinned.pbtxt asks for the versions \[2\] by number"):
        rollback(model)
    assert versions(model) == (1, 2)
    pinned.write_text(config_text(specific_versions(STEM, [1])))
    assert rollback(model) == 1


def test_the_bulk_models_links_follow(tmp_path: Path) -> None:
    """New, removed and moved versions show in the bulk model at once, also after the repository moved elsewhere."""
    repository = tmp_path / "repository"
    model, bulk = repository / "m", repository / "m_bulk"
    publish(model, 2, build("a"))
    assert share_versions(model) == bulk
    publish(model, 2, build("b"))
    publish(model, 2, build("c"))
    assert contents(bulk) == {2: "b", 3: "c"}
    rollback(model)
    assert contents(bulk) == {2: "b"}
    rollback(model, 3)
    (bulk / "9").symlink_to("../m/9")
    share_versions(model)
    assert sorted(path.name for path in bulk.iterdir()) == ["2", "3"]
    moved = repository.rename(tmp_path / "elsewhere")
    assert contents(moved / "m_bulk") == {2: "b", 3: "c"}
    assert not any(Path(path.readlink()).is_absolute() for path in (moved / "m_bulk").iterdir())


def test_a_model_of_that_name_keeps_its_weights(tmp_path: Path) -> None:
    """Another model that happens to be called so is not turned into links."""
    publish(tmp_path / "m", 2, build("a"))
    publish(tmp_path / "m_bulk", 2, build("mine"))
    with pytest.raises(InvalidInput, match="m_bulk/1 has weights of its own"):
        share_versions(tmp_path / "m")
    publish(tmp_path / "m", 2, build("b"))
    rollback(tmp_path / "m")
    assert contents(tmp_path / "m_bulk")[1] == "mine"
