"""`cedagent/model` reads top to bottom like the report: a reader's path, and what each page says.

READING is that path for family deepseek_v41. A module imports nothing that comes after it, so that
whoever reads in this order meets no name before its page.
"""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "cedagent" / "model"
PACKAGE = "cedagent.model"
MOST_LINES = 250

# The weights' files, then the config, then the layers as the report introduces them.
READING = (
    "config_fields", "config", "rope_scaling", "v41_limits", "engram_map", "engram_primes",
    "v41_rules", "v41_unserved", "v41_given", "v41_config",
    "weights_choice", "shards", "digests", "matrix", "release_names", "tensor_file",
    "release_write", "release",
    "forward", "stored_rows", "rope", "hyper", "moe", "engram",
    "compress", "indexer", "source", "attention", "block", "encoder", "decoder", "ced",
)  # fmt: skip

SUPPORT = {
    "config": "common to all families",
    "config_fields": "reads fields of any family's config",
    "weights_choice": "this machine's memory",
    "shards": "safetensors files",
    "digests": "hashes of files",
    "tensor_file": "writes safetensors files",
}
"""Modules that implement no part of the report, and what they are about instead."""


def parsed(name):
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def imported(name):
    """Modules of this package that a module imports when it is loaded, types' imports aside."""
    for node in parsed(name).body:
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE + "."):
            yield node.module.removeprefix(PACKAGE + ".")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(PACKAGE + "."):
                    yield alias.name.removeprefix(PACKAGE + ".")


def closure(name):
    found, left = set(), [name]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += imported(module)
    return found


def docstring(name):
    return ast.get_docstring(parsed(name)) or ""


def definitions(name):
    """(qualified name, node) of a module's classes and functions, methods included."""
    for node in parsed(name).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}", part
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node


def is_public(qualified):
    parts = qualified.split(".")
    hidden = [p for p in parts if p.startswith("_") and p not in ("__init__", "__call__")]
    return not hidden


def test_the_path_names_every_module_that_the_model_uses():
    assert closure("ced") == set(READING)
    assert len(set(READING)) == len(READING)


@pytest.mark.parametrize("name", READING)
def test_a_module_imports_only_what_was_read_before_it(name):
    before = set(READING[: READING.index(name)])
    assert set(imported(name)) <= before


@pytest.mark.parametrize("name", READING)
def test_a_module_opens_with_what_it_is(name):
    lines = [line for line in docstring(name).splitlines() if line]
    assert len(lines) >= 2
    assert docstring(name).split("\n\n")[0].rstrip().endswith((".", ":", ";"))


@pytest.mark.parametrize("name", [name for name in READING if name not in SUPPORT])
def test_a_module_names_the_part_of_the_report_that_it_implements(name):
    """Or of the contract that the release's config.json and safetensors are."""
    said = docstring(name)
    assert re.search(r"\breport\b|\brelease's (config\.json|safetensors)", said), said


def test_support_modules_are_few_and_still_there():
    assert set(SUPPORT) < set(READING)


# Not an index, as in seen[0].
SHAPE = re.compile(r"(?<![\w\]])\[([^\[\]]*)\]")
LETTER = re.compile(r"(?<![\w.])([A-Za-z])(?![\w.'-])")


def shape_letters(text):
    """Single letters in bracketed shapes, as in [T, 2 S, D]; numbers and words do not count."""
    found = set()
    for inside in SHAPE.findall(text):
        parts = [part.strip() for part in inside.split(",")]
        if all(re.fullmatch(r"[\w .+*/()-]+", part) for part in parts):
            found |= {letter for part in parts for letter in LETTER.findall(part)}
    return found


@pytest.mark.parametrize("name", [name for name in READING if name not in SUPPORT])
def test_letters_of_shapes_are_said_at_the_top(name):
    said = docstring(name)
    letters = set()
    texts = [ast.get_docstring(node) or "" for _, node in definitions(name)]
    for node in ast.walk(parsed(name)):
        # Docstrings of fields stand alone as expressions.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.append(str(node.value.value))
    for text in texts:
        letters |= shape_letters(text)
    explained = said.partition("Letters:")[2]
    missing = sorted(letter for letter in letters if not re.search(rf"\b{letter}\b", explained))
    assert not missing, f"{name}: shapes use {missing}"


@pytest.mark.parametrize("name", READING)
def test_public_functions_and_classes_say_what_they_do(name):
    for qualified, node in definitions(name):
        if not is_public(qualified):
            continue
        said = ast.get_docstring(node) or ""
        assert said, f"{name}.{qualified}"
        assert re.split(r"\n\s*\n", said)[0].rstrip().endswith((".", ":")), f"{name}.{qualified}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("**/*.py")), ids=lambda path: path.stem)
def test_no_module_is_longer_than_a_few_screens(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_layers_come_before_what_is_made_of_them():
    """The report's order: pieces, then a block, then the two halves, then the model."""
    place = {name: i for i, name in enumerate(READING)}
    for piece in ("attention", "indexer", "compress", "moe", "hyper", "engram"):
        assert place["rope"] < place[piece] or piece in ("moe", "hyper", "engram")
        assert place[piece] < place["block"]
    assert place["block"] < place["encoder"] < place["decoder"] < place["ced"]
    assert {"encoder", "decoder", "block"} <= set(imported("ced"))
    assert {"attention", "indexer", "moe", "hyper", "engram"} <= set(imported("block"))


def test_the_other_family_is_not_needed():
    assert not any(name.startswith(("llama", "tiny")) for name in closure("ced"))
