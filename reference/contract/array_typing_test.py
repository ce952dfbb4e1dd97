"""What an annotation of a numpy array is when the program runs."""

import numpy as np

from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int


def test_an_annotation_is_the_array_type():
  assert Float[np.ndarray, 'R T D'] is np.ndarray
  assert Int[np.ndarray, 'R T K'] is np.ndarray
