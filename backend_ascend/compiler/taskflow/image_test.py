"""The image holds the flow, byte for byte."""

import pickle

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=2, t=5, e=4, k=2, d=9, f=5, n=16)
POLICY = precision.PrecisionPolicy('bfloat16', placement='before_down')
OPTIONS = granularity.Options('expert', 4, 3, num_aic=2, num_aiv=3)


@pytest.fixture(scope='module')
def compiled():
  return compiler.compile_forward(CONFIG, POLICY, OPTIONS)


def test_an_image_says_what_was_serialised(compiled):
  image = compiled.image
  assert image.config == CONFIG
  assert image.policy == POLICY
  assert image.options == compiled.flow.options
  for name in layout.TABLES:
    np.testing.assert_array_equal(
      image.tables[name], getattr(compiled.flow, name)
    )


def test_same_layer_same_bytes(compiled):
  recompiled = compiler.compile_forward(CONFIG, POLICY, OPTIONS)
  assert bytes(recompiled.image) == bytes(compiled.image)


def test_an_image_travels_between_processes(compiled):
  image = pickle.loads(pickle.dumps(compiled.image))
  assert isinstance(image, image_lib.Image) and image.config == CONFIG
  assert bytes(image) == bytes(compiled.image)


def test_an_unplaced_flow_is_refused():
  flow = lower_forward.lower_forward(CONFIG, POLICY, OPTIONS)
  with pytest.raises(ValueError, match='expected a placed flow'):
    image_lib.serialize(flow)
