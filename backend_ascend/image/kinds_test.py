"""A kind or a buffer is one row of `kinds.h`: nothing else is edited."""

import pathlib
import subprocess

from hpmoe.backend_ascend.image import freestanding_testing as freestanding

# Below the last row of each table.
BUFFER = '  B(kScaled, "scaled", Written, Absent, T, D, None, Stored)'
KIND = (
  '  KIND(kNormalise, "normalise", SumSlots, kScaled, kUnweighted, '
  '{kY, Rows::kTile, Cols::kTile})'
)

PROGRAM = """
#include "backend_ascend/image/rows.h"

using namespace hpmoe;

static_assert(kNormalise + 1 == kNumTaskKinds && kScaled + 1 == kNumBuffers);
static_assert(__builtin_strcmp(KindName(kNormalise), "normalise") == 0);
static_assert(__builtin_strcmp(BufferName(kScaled), "scaled") == 0);
static_assert(DirectionOf(kNormalise) == kForward);
static_assert(kKinds[kNormalise].info().unit == kAiv);
static_assert(BufferForm(kScaled, false) == Form::kTokenTile);

int main() {
  ImageHeader image = {};
  image.num_ranks = image.num_experts = image.top_k = image.chain_rows = 1;
  image.num_tokens = 6;
  image.d_model = 5;
  const Extent extent = ExtentOf(image, kScaled, kRows);
  if (extent.groups != 1 || extent.rows != 6 || extent.cols != 5) return 1;
  if (UseOf(image, kScaled) != Use::kWritten) return 2;
  TaskDesc task = {};
  task.kind = kNormalise;
  task.row_begin = 2;
  task.row_end = 4;
  task.col_end = 5;
  const Touched touched(image);
  const RegionDesc write = touched.Write(task);
  const RegionDesc read = touched.Read(task, kKinds[kNormalise].reads[0]);
  if (write.buffer != kScaled || read.buffer != kY) return 3;
  if (write.row_begin != 2 || write.row_end != 4 || read.row_end != 4) return 4;
  PlanView plan{};
  plan.image = &image;
  return RealRows(task, plan).count() == 2 ? 0 : 5;
}
"""


def _with_row(text: str, table: str, row: str) -> str:
  """Returns the header with one more row at the end of a table."""
  begin = text.index(f'#define {table}(')
  end = text.index('\n\n', begin)
  return f'{text[:end]} \\\n{row}{text[end:]}'


def _compile(tree: pathlib.Path, kinds: str) -> subprocess.CompletedProcess:
  kernels = tree / 'backend_ascend' / 'image'
  kernels.mkdir(parents=True)
  (kernels / 'kinds.h').write_text(kinds)
  (tree / 'test.cc').write_text(PROGRAM)
  return freestanding.compile_program(tree / 'test.cc', tree / 't', tree)


class TestOneMoreRow:
  TABLE = (freestanding.ROOT / 'backend_ascend/image/kinds.h').read_text()

  def test_of_each_table_is_all_that_a_kind_needs(self, tmp_path):
    # Given one more row of each table, when what loader, proofs and runtime
    # read of them is compiled, then the new kind has its name, unit, pass,
    # form, extents, regions and rows.
    kinds = _with_row(self.TABLE, 'HPMOE_BUFFERS', BUFFER)
    compilation = _compile(tmp_path, _with_row(kinds, 'HPMOE_KINDS', KIND))
    assert compilation.returncode == 0, compilation.stderr
    assert subprocess.run([tmp_path / 't']).returncode == 0

  def test_that_nothing_writes_does_not_compile(self, tmp_path):
    kinds = _with_row(self.TABLE, 'HPMOE_BUFFERS', BUFFER)
    compilation = _compile(tmp_path, kinds)
    assert compilation.returncode != 0
    assert 'kinds and buffers agree' in compilation.stderr
