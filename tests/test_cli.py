"""``python -m udfkit``: the commands, and what ``info`` says of machines that lack something."""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from udfkit import cli
from udfkit.kernels import cuda_target


@pytest.fixture
def info(capsys):
    def run():
        assert cli.main(["info"]) == 0
        # Lines are wrapped, so texts are looked for in one line.
        return re.sub(r"\s+", " ", capsys.readouterr().out)

    return run


@pytest.fixture
def installed(monkeypatch):
    """Pretend that distributions are installed (a version) or not (None)."""
    real = metadata.version
    pretended = {}

    def version(name):
        if name not in pretended:
            return real(name)
        if pretended[name] is None:
            raise metadata.PackageNotFoundError(name)
        return pretended[name]

    monkeypatch.setattr(metadata, "version", version)
    return pretended


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_info_in_a_process_of_its_own():
    done = python("-W", "error", "-m", "udfkit", "info")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for name in ("udfkit-kernels", "numpy", "numba"):
        assert re.search(
            rf"^  {name} +{re.escape(metadata.version(name))}", done.stdout, re.MULTILINE
        )
    assert f"Python          {sys.version.split()[0]}" in done.stdout


def test_info_imports_none_of_the_optional_libraries():
    code = (
        "import sys, udfkit.cli; udfkit.cli.main(['info']);"
        "print('loaded', sorted({'torch', 'jax', 'matplotlib'} & set(sys.modules)))"
    )
    assert python("-c", code).stdout.endswith("loaded []\n")


def test_info_says_what_is_set(info, monkeypatch):
    monkeypatch.delenv("UDFKIT_NUM_THREADS", raising=False)
    monkeypatch.delenv("UDFKIT_MAX_BYTES", raising=False)
    text = info()
    assert "(UDFKIT_NUM_THREADS is not set);" in text
    assert "memory of this machine" in text
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "3")
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "123456789")
    text = info()
    assert "threads 3 (UDFKIT_NUM_THREADS);" in text
    assert "123,456,789 bytes for one padded batch (0.1 GiB; UDFKIT_MAX_BYTES)" in text


def test_info_reports_a_setting_that_cannot_be_read(info, monkeypatch):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "many")
    text = info()
    assert "threads unknown (ValueError: " in text
    assert "'many'" in text


def test_info_names_the_cache_folder_or_why_there_is_none(info, monkeypatch):
    from udfkit.kernels import jit

    monkeypatch.setattr(jit, "cache_folder", lambda: "/some/folder")
    assert "kernel cache /some/folder" in info()
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    monkeypatch.setattr(jit, "JIT_DISABLED", True)
    assert "NUMBA_DISABLE_JIT is set" in info()
    monkeypatch.setattr(jit, "JIT_DISABLED", False)
    assert "set NUMBA_CACHE_DIR to a writable folder" in info()


def test_info_survives_a_part_that_fails(info, monkeypatch):
    from udfkit.kernels import jit

    def broken():
        raise OSError("no such folder")

    monkeypatch.setattr(jit, "cache_folder", broken)
    text = info()
    assert "kernel cache unknown (OSError: no such folder)" in text
    assert "memory limit" in text


def test_info_tells_the_namesake_apart(info, installed):
    installed["udfkit"] = None
    text = info()
    assert "install as udfkit-kernels; import as udfkit" in text
    assert "the distribution called just udfkit is another project" in text
    assert "WARNING" not in text
    installed["udfkit"] = "0.1.0"
    text = info()
    assert "WARNING: the distribution udfkit 0.1.0, an unrelated writer of disc images" in text
    assert "pip uninstall udfkit, then pip install --force-reinstall" in text


def test_info_runs_after_the_namesake_has_overwritten_files(tmp_path):
    package = Path(cli.__file__).parent
    copy = tmp_path / "udfkit"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "__main__.py", "errors.py"):
        (copy / name).write_text("")
    dist_info = tmp_path / "udfkit-0.1.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: udfkit\nVersion: 0.1.0\n")
    code = "from udfkit.cli import main; raise SystemExit(main(['info']))"
    done = python("-c", code, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"udfkit-kernels +\d\S*\s+\(" + re.escape(str(copy)), done.stdout)
    assert "gpu             unknown (ImportError: cannot import name" in done.stdout
    assert "WARNING: the distribution udfkit 0.1.0" in done.stdout


def test_no_command_prints_help_and_fails(capsys):
    assert cli.main([]) == 2
    text = capsys.readouterr().out
    assert "demo" in text
    assert "info" in text


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["dance"], 2, "invalid choice: 'dance'"),
        (["info", "--fast"], 2, "unrecognized arguments: --fast"),
        (["--version"], 0, f"udfkit-kernels {metadata.version('udfkit-kernels')}"),
    ],
)
def test_arguments(arguments, status, text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == status
    assert text in "".join(capsys.readouterr())


def test_module_exits_with_the_status_of_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["udfkit"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("udfkit", run_name="__main__")
    assert ended.value.code == 2
    assert "usage: python -m udfkit" in capsys.readouterr().out


def replace_demo(monkeypatch, main):
    module = types.ModuleType("udfkit.demo")
    module.main = main
    monkeypatch.setitem(sys.modules, "udfkit.demo", module)


def test_demo_gets_its_own_arguments(monkeypatch):
    seen = []
    replace_demo(monkeypatch, lambda arguments: seen.append(arguments) or 7)
    assert cli.main(["demo", "--epochs", "3", "--help"]) == 7
    assert seen == [["--epochs", "3", "--help"]]


def test_demo_without_its_extra_says_what_to_install(monkeypatch, capsys):
    for name in "matplotlib", "matplotlib.pyplot":  # another test may have imported them
        monkeypatch.setitem(sys.modules, name, None)
    replace_demo(monkeypatch, lambda _: importlib.import_module("matplotlib.pyplot") and 0)
    assert cli.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert "the demo needs the module 'matplotlib" in error
    assert 'pip install "udfkit-kernels[demo]"' in error


def test_demo_does_not_hide_a_missing_module_of_another_kind(monkeypatch):
    replace_demo(monkeypatch, lambda _: importlib.import_module("udfkit.nowhere") and 0)
    with pytest.raises(ModuleNotFoundError, match=r"udfkit\.nowhere"):
        cli.main(["demo"])


# What follows needs no GPU: stand-ins for numba.cuda show each way in which one can be missing.


class Devices(list):
    pass


def fake_cuda(devices=(), *, error=None, compile_error=None, version=(13, 0)):
    found = Devices(devices)
    if error is not None:

        class Failing(Devices):
            def __iter__(self):
                raise error

        found = Failing()

    def compile_function(*_, **options):
        assert options["output"] == "ptx"
        if compile_error is not None:
            raise compile_error

    return SimpleNamespace(
        gpus=found,
        compile=compile_function,
        cudadrv=SimpleNamespace(
            driver=SimpleNamespace(driver=SimpleNamespace(get_version=lambda: version))
        ),
    )


H200 = SimpleNamespace(name=b"NVIDIA H200", compute_capability=(9, 0))


def test_status_never_raises_and_is_found_once():
    found = cuda_target.status()
    assert found is cuda_target.status()
    assert found.available == bool(found.devices)
    if not found.available:
        assert found.reason
        assert not found.reason.endswith(".")
        assert found.advice.endswith(".")


def test_cuda_that_works(installed):
    installed["numba-cuda"] = "0.30.4"
    found = cuda_target._probe(fake_cuda([H200, H200]))
    assert found == cuda_target.CudaStatus(
        available=True, devices=("NVIDIA H200, compute capability 9.0",) * 2
    )


@pytest.mark.parametrize(
    ("cuda", "has_numba_cuda", "reason", "advice"),
    [
        (
            fake_cuda(error=RuntimeError("CUDA driver library cannot be found.")),
            True,
            "no NVIDIA driver was found on this machine",
            "install NVIDIA's driver until nvidia-smi lists the GPU.",
        ),
        (
            fake_cuda(error=RuntimeError("CUDA driver library cannot be found.")),
            False,
            "no NVIDIA driver was found on this machine, and numba-cuda is not installed",
            'pip install "udfkit-kernels[cuda13]"',
        ),
        (
            fake_cuda(error=RuntimeError("setting NUMBA_DISABLE_CUDA=1 in the environment")),
            True,
            "CUDA is switched off by NUMBA_DISABLE_CUDA",
            "Unset NUMBA_DISABLE_CUDA",
        ),
        (
            fake_cuda(error=RuntimeError("cuInit results in CUDA_ERROR_NO_DEVICE (100)")),
            True,
            "shows this process no device",
            "CUDA_VISIBLE_DEVICES",
        ),
        (fake_cuda(), True, "shows this process no device", "CUDA_VISIBLE_DEVICES"),
        (
            fake_cuda(error=RuntimeError("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)")),
            True,
            "the NVIDIA driver cannot be used (RuntimeError: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "restart the machine",
        ),
        (
            fake_cuda([H200], version=(12, 4)),
            False,
            "1 CUDA device(s) found (NVIDIA H200, compute capability 9.0), but numba-cuda is not",
            'Run pip install "udfkit-kernels[cuda12]".',
        ),
        (
            fake_cuda([H200], compile_error=OSError("libnvvm.so: not found")),
            True,
            "no CUDA toolkit that compiles for them (OSError: libnvvm.so: not found)",
            'Run pip install "udfkit-kernels[cuda13]", which brings the toolkit\'s compiler',
        ),
        (
            fake_cuda([H200], version=()),
            False,
            "but numba-cuda is not installed",
            'pip install "udfkit-kernels[cuda13]" or, where nvidia-smi shows CUDA 12',
        ),
    ],
)
def test_what_cuda_lacks(cuda, has_numba_cuda, reason, advice, installed):
    installed["numba-cuda"] = "0.30.4" if has_numba_cuda else None
    found = cuda_target._probe(cuda)
    assert not found.available
    assert found.devices == ()
    assert reason in found.reason
    assert advice in found.advice


def test_info_passes_on_what_cuda_lacks(info, monkeypatch):
    missing = cuda_target.CudaStatus(
        available=False, reason="no driver was found", advice="Install one."
    )
    monkeypatch.setattr(cuda_target, "status", lambda: missing)
    assert "gpu none: no driver was found what to do Install one." in info()
    there = cuda_target.CudaStatus(available=True, devices=("one", "two"))
    monkeypatch.setattr(cuda_target, "status", lambda: there)
    text = info()
    assert "gpu(0) one gpu(1) two" in text
    assert "what to do Install" not in text


def test_numba_cuda_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    import numba

    monkeypatch.delattr(numba, "cuda", raising=False)
    found = cuda_target.status.__wrapped__()
    assert not found.available
    assert found.reason.startswith("numba.cuda cannot be imported (ModuleNotFoundError")
    assert "udfkit-kernels[cuda13]" in found.advice


def test_simulator_counts_as_a_device():
    code = "from udfkit.kernels import cuda_target; print(cuda_target.status())"
    done = python("-W", "error", "-c", code, NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
    assert "available=True" in done.stdout
    assert "CUDA simulator of numba" in done.stdout


def test_warmup_compiles_every_driver_and_says_where_it_is_kept(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "udfkit", "warmup"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if environment.get("NUMBA_DISABLE_JIT") == "1":
        assert done.returncode == 1
        return
    assert done.returncode == 0, done.stderr
    assert "kernels" in done.stdout
    assert str(tmp_path) in done.stdout
    assert list(tmp_path.rglob("*.nbc"))
