"""The targets of a folder, which are the same in every folder."""

load("@pip//:requirements.bzl", "requirement")
load("@rules_python//python:defs.bzl", "py_library", "py_test")

# Lower floors come first: a test sees its own floor and those below.
_FLOORS = ["reference", "backend_ascend", "models", "parity_tests", "tools"]
_PACKAGES = [
    "absl-py",
    "chex",
    "hypothesis",
    "jax",
    "jaxtyping",
    "jinja2",
    "ml-dtypes",
    "mpi4py",
    "matplotlib",
    "numpy",
    "optax",
    "pytest",
    "safetensors",
    "sentencepiece",
    "tiktoken",
    "tokenizers",
]

def room():
    """Names a folder's sources, `:py`, `:cc` and `:binding`; makes its tests.

    Folders of one floor import each other, so a library is a floor.
    """
    folder = native.package_name()
    floor = _FLOORS.index(folder.split("/")[2])
    tests = native.glob(["*_test.py"])
    for name, include, exclude in [
        ("py", ["*.py"], tests),
        ("cc", ["*.cc", "*.h"], ["*_binding.cc", "*_module.cc", "*_test.cc"]),
        ("binding", ["*_binding.cc", "*_module.cc"], []),
    ]:
        native.filegroup(
            name = name,
            srcs = native.glob(include, exclude = exclude),
            visibility = ["//visibility:public"],
        )
    for test in tests:
        py_test(
            name = test[:-len(".py")],
            srcs = [test, "//:conftest.py"],
            args = [folder + "/" + test],
            data = ["//:pyproject.toml"],
            main = "//:conftest.py",
            deps = ["//src/hpmoe/" + name for name in _FLOORS[:floor + 1]],
        )

def floor(rooms = [], data = []):
    """Makes the library of a floor; `rooms` are the folders in it."""
    room()
    py_library(
        name = native.package_name().split("/")[2],
        imports = ["../.."],
        srcs = ["//src/hpmoe:py"] + in_rooms("py", rooms),
        data = data,
        visibility = ["//visibility:public"],
        deps = [requirement(name) for name in _PACKAGES],
    )

def in_rooms(kind, rooms):
    """Returns the labels of one kind of source in a floor and its rooms."""
    folder = "//" + native.package_name()
    return [folder + room + ":" + kind for room in [""] + ["/" + r for r in rooms]]
