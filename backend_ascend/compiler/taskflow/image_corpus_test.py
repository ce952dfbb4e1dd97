"""Damaged images that load or are refused: each is safe, launched as well."""

import collections
import math
import pathlib

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.reference.contract import tensors

CORPUS = pathlib.Path(__file__).parents[1] / 'testdata' / 'image_corpus'
FILES = sorted(CORPUS.iterdir())
_MAX_ELEMENTS = 1 << 20  # of all tensors; larger layers are not launched


def _inputs(image: image_lib.Image) -> dict[str, np.ndarray]:
  """Returns ones, and for every token the first K experts."""
  inputs = {
    name: np.ones(arrays.shape(image, name), arrays.dtype(image, name))
    for name in arrays.INPUTS[image.direction]
    if name != 'returned' or image.policy.placement not in tensors.EARLY
  }
  inputs['topk_ids'][...] = np.arange(image.config.top_k)
  return inputs


def _elements(parsed: image_lib.Image) -> int:
  dims = parsed.config.dims()
  return sum(math.prod(s.dims(**dims)) for s in tensors.SPECS.values())


def _produce(image: image_lib.Image, inputs, expected) -> None:
  """Launches that only compute: some tensors, then all; bits where proved."""
  launch = runtime.Launch(image, threads=1)
  for names in (None, arrays.OUTPUTS[image.direction]):
    try:
      actual = launch.run(inputs, names).outputs
    except runtime.WaitError:
      assert expected is None
      continue
    if expected is None:
      continue
    for name, array in actual.items():
      # Rows past the last valid one are not made.
      if tensors.SPECS[name].shape.split()[1] != 'N':
        assert array.tobytes() == expected[name].tobytes(), name


def fate(blob: bytes) -> str:
  """Returns how far an image comes; crashes and other exceptions escape."""
  try:
    image = image_lib.Image(blob)
  except ValueError as error:
    assert len(str(error).splitlines()) == 1
    return 'refused'
  proved = proofs.prove(image).proved
  if _elements(image) > _MAX_ELEMENTS:
    return 'large'
  inputs, outputs = _inputs(image), None
  try:
    outputs = runtime.launch(image, inputs, threads=1)
  except ValueError as error:
    assert 'topk_ids' in str(error)
    return 'not planned'
  except runtime.WaitError:
    assert not proved
  _produce(image, inputs, outputs if proved else None)
  if outputs is None:
    return 'stopped'
  return 'ran' if proved else 'ran unproved'


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_a_kept_image_is_refused_or_safe(path):
  fate(path.read_bytes())


def test_kept_images_come_as_far_as_the_launch():
  # A new layout of the image would leave a corpus of which all is refused.
  fates = collections.Counter(fate(path.read_bytes()) for path in FILES)
  assert {'refused', 'stopped', 'ran unproved'} <= set(fates)


def test_a_put_that_only_its_queue_orders_is_refused_by_a_proof():
  blob = (CORPUS / 'found-put-ordered-by-its-queue').read_bytes()
  violations = proofs.prove(blob).violations
  assert {violation.rule for violation in violations} == {'order'}
  assert fate(blob) == 'ran unproved'


def test_a_relay_that_counts_into_a_chain_of_links_is_refused():
  # It read the rows of an expert that the layer does not have.
  blob = (CORPUS / 'found-relay-counts-into-a-gradient').read_bytes()
  assert fate(blob) == 'refused'
