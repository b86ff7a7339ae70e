"""The native kernels of this machine, compiled once per run; without them their tests are skipped.

They are compiled into a folder of the run, so that the build is tested too.
"""

import pytest

from ced_kernels.native.build import NativeUnavailable
from ced_kernels.native.library import load_native
from ced_kernels.ordered.native import load_ordered


@pytest.fixture(scope="session")
def native_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="session")
def native(native_dir):
    try:
        return load_native(native_dir, head_dim=64)
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")


@pytest.fixture(scope="session")
def ordered(tmp_path_factory):
    try:
        return load_ordered(tmp_path_factory.mktemp("ordered"))
    except NativeUnavailable as error:
        pytest.skip(f"no compiled ordered kernels here: {error}")
