"""Requests that a decoder refuses before it computes."""

import dataclasses

import numpy as np
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models import parameters
from hpmoe.models import requests


class TestIndexer:
  @pytest.mark.parametrize('name', ['sparse_index', 'glm5_index'])
  def test_more_tokens_than_it_chooses_are_refused(self, name):
    config = dataclasses.replace(golden.config(name), index_topk=8)
    for length, capacity in ((8, None), (1, 8)):
      tokens = np.zeros((1, length), np.int32)
      requests.check(config, tokens, True, 1, capacity, False)
    for length, capacity in ((9, None), (1, 9)):
      tokens = np.zeros((1, length), np.int32)
      refusal = '^tokens: expected at most index_topk=8, .* cache of 9$'
      with pytest.raises(ValueError, match=refusal) as error:
        requests.check(config, tokens, True, 1, capacity, False)
      assert len(str(error.value)) < 300

  def test_its_parameters_are_kept_and_have_no_gradient(self):
    shapes = parameters.parameter_shapes(
      golden.config('glm5_index'), 'bfloat16'
    )
    of_one = [n for n in shapes if 'layers.1.self_attn.indexer.' in n]
    assert len(of_one) == 5
    assert not any(map(parameters.has_gradient, of_one))
    k_norm = shapes['model.layers.1.self_attn.indexer.k_norm.weight']
    assert (k_norm.shape, k_norm.dtype) == ((8,), np.float32)
