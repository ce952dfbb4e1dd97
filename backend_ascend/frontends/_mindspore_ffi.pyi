# The extension module declares its types in C++ (`mindspore_ffi_module.cc`).
from typing import Any

def __getattr__(name: str) -> Any: ...
