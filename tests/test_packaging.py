"""What an installed udfkit promises: light imports, one version, true names, no need for a home."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import udfkit

ROOT = Path(__file__).parents[1]

PUBLIC = {
    "Axis",
    "BackPropState",
    "CastWarning",
    "Constant",
    "DeviceDescriptor",
    "FreeDimension",
    "Parameter",
    "Ragged",
    "UserBackPropState",
    "UserFunction",
    "Value",
    "Variable",
    "cpu",
    "device",
    "gpu",
    "input_variable",
    "load_function",
    "map_if_possible",
    "ops",
    "output_variable",
    "register_udf_deserialize_callback",
    "sanitize_batch",
    "save_function",
    "sequence",
    "set_default_device",
    "use_default_device",
    "user_function",
    "variable_value_to_seq",
}


def python(code, **environment):
    """Run code in a fresh process in which no variable of numba's is set; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=kept | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def foreign_imports(statement):
    """Return the top-level modules that a statement adds to those that NumPy brings itself."""
    code = f"""
import json, sys
import numpy
before = set(sys.modules)
{statement}
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""
    added = set(json.loads(python(code)))
    # Extension modules written in Cython register their runtime as modules.
    cython = {name for name in added if re.fullmatch(r"_?cython_\w+", name)}
    return added - cython - sys.stdlib_module_names - {"numpy", "udfkit"}


def test_import_brings_nothing_but_numpy():
    assert foreign_imports("import udfkit") == set()
    assert foreign_imports("import udfkit.cli") == set()


def test_foreign_imports_are_seen():
    assert {"numba", "llvmlite"} <= foreign_imports("import udfkit\nimport numba")


def test_variables_and_devices_need_no_compiler():
    statement = "import udfkit as C; C.sequence.input_variable((3,), needs_gradient=True); C.cpu()"
    assert foreign_imports(statement) == set()


def test_version_is_the_one_of_the_distribution():
    assert udfkit.__version__ == metadata.version("udfkit-kernels")


def test_all_names_are_the_public_members():
    names = list(udfkit.__all__)
    assert len(names) == len(set(names))
    assert set(names) >= PUBLIC
    for name in names:
        assert getattr(udfkit, name) is not None
    ours = {
        name
        for name, value in vars(udfkit).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("udfkit")
    }
    assert ours <= set(names)
    assert {name for name in dir(udfkit) if not name.startswith("_")} == set(names)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(udfkit.__file__).read_text("utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = [
        (alias.name, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    # Only `import x as x` tells a type checker that a name is meant for others.
    assert all(name == exported for name, exported in imported)
    assert {name for name, _ in imported} == set(udfkit.__all__)


def test_star_import_gives_every_name():
    code = "from udfkit import *\nimport udfkit\nprint(set(udfkit.__all__) <= set(globals()))"
    assert python(code) == "True\n"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="sanitise_batch"):
        udfkit.sanitise_batch  # noqa: B018


def test_typed_marker_is_shipped():
    assert resources.files("udfkit").joinpath("py.typed").is_file()


def test_extras_exist():
    extras = set(metadata.metadata("udfkit-kernels").get_all("Provides-Extra"))
    assert {"demo", "cuda12", "cuda13", "torch", "jax", "sparse", "test", "dev"} <= extras


# The distribution of that name is another project's, so no reader may be told to install it.
WRONG_INSTALL = re.compile(
    r"pip3?\s+install(?:\s+-\S+|\s+[\w-]+(?:\[[\w,]+\])?[=<>~!]\S+)*\s+[\"'`]?udfkit(?![-\w./])"
)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("udfkit", True),
        ("-U 'udfkit'", True),
        ("--user numpy==2.0 udfkit[demo]", True),
        ("udfkit-kernels", False),
        ('"udfkit-kernels[cuda13]"', False),
        ("-e .", False),
        ("./udfkit/", False),
    ],
)
def test_wrong_install_is_seen(arguments, wrong):
    assert bool(WRONG_INSTALL.search("pip" + " install " + arguments)) is wrong


def text_files():
    skipped = {".git", ".venv", ".asv", ".hypothesis", "__pycache__", "dist", "build"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in skipped and not (Path(folder, name) / "pyvenv.cfg").exists()
        ]
        for name in files:
            try:
                yield Path(folder, name), Path(folder, name).read_text("utf-8")
            except UnicodeDecodeError:
                continue


def test_no_text_says_to_install_the_namesake():
    wrong = []
    seen = set()
    for path, text in text_files():
        seen.add(path.name)
        wrong += [f"{path}: {found[0]}" for found in WRONG_INSTALL.finditer(text)]
    assert {"README.md", "cli.py", "Makefile"} <= seen
    assert wrong == []


ROUND_TRIP = """
import numpy as np, udfkit
from udfkit.kernels import jit
variable = udfkit.sequence.input_variable((2,))
batch = [np.ones((3, 2), np.float32), np.zeros((0, 2), np.float32)]
value = udfkit.sanitize_batch(variable, batch)
back = udfkit.variable_value_to_seq(value, variable)
assert [x.tolist() for x in back] == [x.tolist() for x in batch]
print(udfkit.__file__, jit.cache_folder())
"""


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_run_where_nothing_is_writable(tmp_path, writable):
    copy = tmp_path / "site"
    package = Path(udfkit.__file__).parent
    shutil.copytree(package, copy / "udfkit", ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "home"
    home.mkdir()
    if not writable:
        # Permissions do not stop a superuser; a file where a folder has to be stops everyone.
        home.rmdir()
        home.touch()
        for folder in (copy / "udfkit", copy / "udfkit" / "kernels"):
            (folder / "__pycache__").touch()
    places = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME")
    printed = python(
        ROUND_TRIP,
        PYTHONPATH=str(copy),
        PYTHONDONTWRITEBYTECODE="1",
        **dict.fromkeys(places, str(home / "somebody")),
    )
    file, _, cache = printed.strip().partition(" ")
    assert Path(file) == copy / "udfkit" / "__init__.py"
    assert (cache != "None") is writable
