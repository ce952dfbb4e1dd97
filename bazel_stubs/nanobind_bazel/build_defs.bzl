"""The extension module is CMake's; here its sources are only named."""

def nanobind_extension(name, srcs, deps, copts = [], visibility = None):
    native.filegroup(name = name, srcs = srcs + deps, visibility = visibility)
