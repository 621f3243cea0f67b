"""What a newcomer finds: every plug-in in full, and its file, to begin with."""

import shutil

import pytest

from ropewalk.harness.commands.list import describe
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import FOLDERS, load, names

EVERY = [(kind, name) for kind in FOLDERS for name in names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_everything_that_is_listed_is_described(kind, name):
    """Each has all its options with their defaults, and an example whose options are right."""
    (found,) = (one for one in describe(name) if one.kind == kind)
    assert [option[0] for option in found.options] == list(load(kind, name).options)
    named = next(word for word in found.example.split()[1:] if word.startswith(name))
    assert load(kind, named).options.keys() == {option[0] for option in found.options}


def test_a_file_of_ones_own_is_described_by_its_contract(tmp_path):
    """What kind it is follows from what it defines; what raises while it is asked has no range."""
    file = tmp_path / "mine.py"
    file.write_text("def frequencies(rope, length, *, kept: float = 0.5):\n    raise SystemExit\n")
    (found,) = describe(str(file))
    assert (found.kind, found.name) == ("method", "mine")
    assert found.options == (("kept", "number", "0.5", ""),)
    file.write_text("def nothing(): ...\n")
    with pytest.raises(UserError, match="is no plug-in: a method defines"):
        describe(str(file))
    with pytest.raises(UserError, match=r"nothing is called 'yran'; did you mean 'yarn'\?"):
        describe("yran")


@pytest.mark.parametrize(("kind", "name"), [("method", "rerope"), ("task", "key_value")])
def test_a_copy_of_a_built_in_file_is_a_plug_in(kind, name, tmp_path):
    (found,) = describe(name)
    copy = shutil.copy(found.file, tmp_path / "mine.py")
    assert load(kind, str(copy)).options == load(kind, name).options
    (own,) = describe(str(copy))
    assert (own.kind, own.options) == (kind, found.options)
