# The extension module declares its types in C++ (`*_binding.cc`).
from typing import Any

def __getattr__(name: str) -> Any: ...
