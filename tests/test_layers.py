"""Imports point downwards only, in every module, also inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "cedagent": ROOT / "cedagent",
    "ced_kvstore": ROOT / "kvstore" / "ced_kvstore",
    "ced_kernels": ROOT / "kernels" / "ced_kernels",
}
LEAVES = {"cedagent.errors", "cedagent.events", "cedagent.paths", "cedagent.threads"}

# What a layer may import besides itself and the leaves; arrows are already transitive here.
MAY_IMPORT: dict[str, set[str]] = {
    "ced_kernels": set(),
    "ced_kvstore": set(),
    "cedagent.model": {"ced_kernels"},
    "cedagent.engine": {"cedagent.model", "ced_kvstore", "ced_kernels"},
    "cedagent.chat": {"cedagent.model"},
    "cedagent.agent": {"cedagent.chat", "cedagent.engine", "cedagent.model"},
    "cedagent.upcycle": {
        "cedagent.chat",
        "cedagent.engine",
        "cedagent.model",
        "ced_kernels",
        "ced_kvstore",
    },
    "cedagent.testing": {"cedagent.agent", "cedagent.chat", "cedagent.engine", "cedagent.model"},
    "cedagent.cli": {
        "cedagent",
        "cedagent.agent",
        "cedagent.chat",
        "cedagent.engine",
        "cedagent.model",
        "cedagent.upcycle",
        "ced_kernels",
        "ced_kvstore",
    },
    "cedagent": {"cedagent.agent", "cedagent.engine"},
    "cedagent.__main__": {"cedagent.cli"},
}

# The store knows no tensors, the chat format and the loop see none.
WITHOUT_TORCH = {"ced_kvstore", "cedagent.chat", "cedagent.agent", "cedagent.testing"}


def module_name(path: Path) -> str:
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise AssertionError(path)


def layer_of(module: str) -> str:
    """Return the layer a module belongs to; a leaf is its own layer."""
    parts = module.split(".")
    if parts[0] != "cedagent":
        return parts[0]
    return ".".join(parts[:2])


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return imported(path.read_text(encoding="utf-8"), package)


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import in a package's module, wherever it stands.

    Strings that name a module of ours, as lazy tables hold them ("module" or "module:name"), are
    imports too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            if base in {"cedagent", "ced_kvstore", "ced_kernels"}:
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    yield node.lineno, name if is_module(name) else base
            else:
                yield node.lineno, base
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.partition(":")[0].startswith("cedagent.")
            and is_module(node.value.partition(":")[0])
        ):
            yield node.lineno, node.value.partition(":")[0]


def is_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package not in PACKAGES:
        return False
    at = PACKAGES[package].joinpath(*rest.split("."))
    return at.with_suffix(".py").is_file() or (at / "__init__.py").is_file()


def sources() -> list[Path]:
    return sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def ids(path: Path) -> str:
    return module_name(path)


@pytest.mark.parametrize("path", sources(), ids=ids)
def test_imports_point_downwards_only(path: Path) -> None:
    layer = layer_of(module_name(path))
    allowed = MAY_IMPORT.get(layer, set()) | {layer} | (LEAVES if layer[:4] == "ceda" else set())
    for line, target in imports_of(path):
        if target.split(".")[0] not in PACKAGES:
            continue
        assert layer_of(target) in allowed, f"{path.name}:{line}: {layer} must not import {target}"


@pytest.mark.parametrize(
    "path", [p for p in sources() if layer_of(module_name(p)) in WITHOUT_TORCH], ids=ids
)
def test_chat_agent_and_store_never_import_torch(path: Path) -> None:
    for line, target in imports_of(path):
        assert target.split(".")[0] not in {"torch", "triton"}, f"{path.name}:{line}: {target}"


@pytest.mark.parametrize(
    "path", [p for p in sources() if layer_of(module_name(p)) == "cedagent.agent"], ids=ids
)
def test_agent_knows_the_engine_by_its_protocol_alone(path: Path) -> None:
    for line, target in imports_of(path):
        if target.startswith("cedagent.engine"):
            assert target == "cedagent.engine.protocol", f"{path.name}:{line}: {target}"


def test_every_layer_has_a_row() -> None:
    layers = {layer_of(module_name(path)) for path in sources()}
    assert layers <= set(MAY_IMPORT) | LEAVES


def test_an_upward_import_inside_a_function_is_seen() -> None:
    source = """
def f():
    from ..agent import loop
    from .. import upcycle
    import cedagent.engine
    return import_module("cedagent.cli.main:main")
"""
    found = [name for _, name in imported(source, "cedagent.chat")]
    layers = {layer_of(name) for name in found}
    assert {"cedagent.agent", "cedagent.engine", "cedagent.cli"} <= layers
    assert not layers & MAY_IMPORT["cedagent.chat"]
