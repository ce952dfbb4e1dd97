"""Native part of backend_ascend."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

def fluid_ends(
  capacity: float,
  caps: Sequence[float],
  times: Sequence[float],
  classes: Sequence[int],
  bytes: Sequence[float],
) -> list[float]:
  """When each demand on one shared resource ends; `times` ascend."""

def cache_misses(
  l2_bytes: float, bytes: Sequence[float], touched: Sequence[int]
) -> list[bool]:
  """Which touches of a cache's parts miss; `bytes` are of each part."""

class BrokenError(RuntimeError):
  pass

class ImageError(ValueError):
  pass

def kinds() -> list:
  """The table of kinds, in order."""

def buffers() -> list[str]:
  """The names of the buffers, in order."""

def dtypes() -> list[str]:
  """The names of storage dtypes, by their codes."""

class Image:
  """An image, read and checked once; a buffer of bytes."""

  def __init__(self, data: Buffer) -> None:
    """Copies any contiguous buffer; raises ImageError."""

  def __len__(self) -> int: ...
  @property
  def heap_bytes(self) -> int:
    """What other ranks write on each rank."""

  @property
  def heap_offsets(self) -> dict[str, int]:
    """Where in the heap each of its buffers lies, by name."""

class Routing:
  """A routing on an image, planned once."""

  def __init__(
    self,
    image: Image,
    topk_ids: Annotated[
      NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
    ],
    *,
    rank: int | None = None,
    counts: Annotated[
      NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
    ]
    | None = None,
  ) -> None:
    """
    topk_ids: `[R, T, K]`; with a rank, `[T, K]` of it beside all
    ranks' counts, `[R, E]`.  Raises ValueError.
    """

  @property
  def counts(self) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def relayed_counts(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def row_base(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def row_of_slot(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def copy_rows(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def copy_slots(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...
  @property
  def slice_slots(
    self,
  ) -> Annotated[NDArray[numpy.int32], dict(writable=False)]: ...

def count_slots(
  image: Image,
  rank: int,
  topk_ids: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
) -> list[int]:
  """A rank's `[E]` counts from its own `[T, K]` ids; with relay `[2E]`."""

def isas() -> list[str]:
  """Instruction sets of this build that this CPU runs."""

def gemm_tile(
  a: Annotated[NDArray, dict(device='cpu', writable=False)],
  b: Annotated[NDArray, dict(device='cpu', writable=False)],
  isa: str | None = None,
  trans_a: bool = False,
  trans_b: bool = False,
  carry: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None,
  order: str = 'ascending',
) -> NDArray:
  """
  `[m, k] @ [k, n] -> [m, n]`, float32, float16 or bfloat16 bits (uint16).

  isa: None for the best.  trans_a, trans_b: stored [k, m], [n, k].
  carry: `[m, n] f32` that the sums start from.  order: of the sum,
  'ascending' or, of bfloat16, 'even_odd_32'.  Raises ValueError.
  """

def gemm_tile_into(
  a: Annotated[NDArray, dict(device='cpu', writable=False)],
  b: Annotated[NDArray, dict(device='cpu', writable=False)],
  c: Annotated[NDArray, dict(device='cpu')],
  isa: str | None = None,
  trans_a: bool = False,
  trans_b: bool = False,
  carry: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None,
  order: str = 'ascending',
) -> None:
  """gemm_tile into `c`, which overlaps none of the others."""

def gemm_tile_carry(
  a: Annotated[NDArray, dict(device='cpu', writable=False)],
  b: Annotated[NDArray, dict(device='cpu', writable=False)],
  carry: Annotated[NDArray, dict(device='cpu')],
  isa: str | None = None,
  trans_a: bool = False,
  trans_b: bool = False,
  carry_in: bool = True,
  order: str = 'ascending',
) -> None:
  """
  gemm_tile whose sums end in `carry`, `[m, n] f32`, unrounded; they
  start from it where carry_in, else from zero.
  """

def gemm_tile_bf16_accumulate(
  a: Annotated[NDArray, dict(device='cpu', writable=False)],
  b: Annotated[NDArray, dict(device='cpu', writable=False)],
  trans_a: bool = False,
  trans_b: bool = False,
  carry: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None,
) -> NDArray:
  """gemm_tile with every partial sum rounded to bfloat16: a fault."""

def swiglu_tile(
  gate: Annotated[NDArray, dict(device='cpu', writable=False)],
  up: Annotated[NDArray, dict(device='cpu', writable=False)],
  row_weight: Annotated[
    NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)
  ]
  | None = None,
  activation: str = 'swiglu',
  early_rounding: bool = False,
  isa: str | None = None,
) -> NDArray:
  """
  `[rows, cols] x2 (, [rows] f32) -> [rows, cols]`:
  act(gate) * up * row_weight.
  """

def swiglu_grad_tile(
  d_out: Annotated[NDArray, dict(device='cpu', writable=False)],
  gate: Annotated[NDArray, dict(device='cpu', writable=False)],
  up: Annotated[NDArray, dict(device='cpu', writable=False)],
  row_weight: Annotated[
    NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)
  ]
  | None = None,
  activation: str = 'swiglu',
  d_row_weight: bool = False,
  isa: str | None = None,
) -> tuple:
  """
  `[rows, cols] x3 (, [rows] f32) -> d_gate, d_up` and, where
  d_row_weight, `[rows, 1] f32`.
  """

def scale_rows_tile(
  x: Annotated[NDArray, dict(device='cpu', writable=False)],
  weight: Annotated[
    NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)
  ]
  | None = None,
  isa: str | None = None,
) -> NDArray:
  """`[rows, cols] (, [rows] f32) -> [rows, cols]`: weight * x, or x."""

def row_dot_tile(
  a: Annotated[NDArray, dict(device='cpu', writable=False)],
  b: Annotated[NDArray, dict(device='cpu', writable=False)],
  isa: str | None = None,
) -> NDArray:
  """`[rows, cols] x2 -> [rows, 1] f32`: a dot per row."""

def combine_tile(
  returned: Annotated[NDArray, dict(device='cpu', writable=False)],
  weights: Annotated[
    NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)
  ]
  | None = None,
  isa: str | None = None,
) -> NDArray:
  """`[T, K, D] (, [T, K] f32) -> [T, D]`: sum in slot order."""

def convert(
  x: Annotated[NDArray, dict(device='cpu', writable=False)],
  to: str,
  isa: str | None = None,
) -> NDArray:
  """
  `[rows, cols]` of a storage dtype in the one named `to`.

  As GEMM tiles convert.
  """

def exp_max_ulp(
  begin_bits: int, end_bits: int, isa: str | None = None
) -> float:
  """
  Largest error of the kernels' exp, in ulp.

  Over float32 inputs with bits in [begin_bits, end_bits).
  """

def prove(image: Image, max_violations: int = 8) -> dict:
  """Proves an image; a dict of counts, rules and violations."""

class RankLaunch:
  """One rank of a launch, prepared."""

  def __init__(
    self,
    image: Image,
    routing: Routing,
    inputs: Mapping[
      str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
    ],
    outputs: Mapping[str, Annotated[NDArray, dict(order='C', device='cpu')]],
    heap: Annotated[NDArray, dict(order='C', device='cpu')],
    counters: Annotated[NDArray, dict(order='C', device='cpu')],
    transport: object,
    isa: str | None = None,
    peers: Sequence[
      tuple[
        Annotated[NDArray, dict(order='C', device='cpu')],
        Annotated[NDArray, dict(order='C', device='cpu')],
      ]
    ] = [],
  ) -> None:
    """
    routing: the rank's.  transport: of rank_runtime.Transport.
    peers: of all ranks, where puts need no transport.
    """

  def run(self, deadline_s: float) -> bool:
    """Whether all tasks ran before none ended in time."""

  def run_some(self, max_tasks: int) -> int:
    """0: some ran, 1: none can, 2: all have."""

  def blocked(self) -> Diagnosis:
    """Why nothing runs."""

class Diagnosis:
  """Why a launch stopped."""

  @property
  def reason(self) -> int: ...
  @property
  def task(self) -> int: ...
  @property
  def event(self) -> int: ...
  @property
  def expected(self) -> int: ...
  @property
  def actual(self) -> int: ...
  @property
  def missing(self) -> int: ...
  @property
  def suspects(self) -> list[int]: ...
  @property
  def adders(self) -> list[int]: ...
  @property
  def losers(self) -> list[int]: ...
  @property
  def text(self) -> str: ...

class Race:
  """Two accesses that nothing orders."""

  @property
  def first(self) -> int: ...
  @property
  def second(self) -> int: ...
  @property
  def kind(self) -> int: ...
  @property
  def buffer(self) -> int: ...
  @property
  def rank(self) -> int: ...
  @property
  def row_begin(self) -> int: ...
  @property
  def row_end(self) -> int: ...
  @property
  def col_begin(self) -> int: ...
  @property
  def col_end(self) -> int: ...
  @property
  def missing(self) -> int: ...
  @property
  def event(self) -> int: ...
  @property
  def threshold(self) -> int: ...
  @property
  def total(self) -> int: ...

class LaunchReport:
  """How a launch went."""

  @property
  def diagnosis(self) -> Diagnosis: ...
  @property
  def fault_changed(self) -> bool: ...
  @property
  def num_races(self) -> int: ...
  @property
  def races(self) -> list[Race]: ...
  @property
  def order(self) -> Annotated[NDArray[numpy.uint32], dict(writable=False)]: ...
  @property
  def times(self) -> Annotated[NDArray[numpy.int64], dict(writable=False)]:
    """`[tasks, 4]`: blocked, start, end in ns, and the thread."""

class LaunchOptions:
  """How a launch is to go."""

  def __init__(
    self,
    *,
    threads: int | None = None,
    deadline_s: float = 60.0,
    isa: str | None = None,
    fault: str | None = None,
    fault_task: int = -1,
    poison: bool | None = None,
    permute: int | None = None,
    late_puts: bool = False,
    races: bool = False,
    guards: bool = False,
    trace: bool = False,
    times: bool = False,
    actions: Annotated[
      NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)
    ]
    | None = None,
    captured: Mapping[
      str, Annotated[NDArray, dict(order='C', device='cpu')]
    ] = {},
    given: Mapping[
      str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
    ] = {},
  ) -> None:
    """
    threads: None for one per core.  isa: None for the best.
    poison: None to fill nothing.  The rest as modes.Modes;
    actions: `[tasks] u8`.
    """

class Launch:
  """An image that is launched often."""

  def __init__(self, image: Image) -> None: ...
  def run(
    self,
    inputs: Mapping[
      str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
    ],
    outputs: Mapping[str, Annotated[NDArray, dict(order='C', device='cpu')]],
    options: LaunchOptions,
    routing: Routing | None = None,
  ) -> LaunchReport:
    """Makes the tensors of `outputs`, no others.  Raises ValueError."""

  @property
  def arena_bytes(self) -> int:
    """What it keeps between launches."""

MAX_THREADS: int = 4096

MAX_DEADLINE_S: float = 1000000000.0

def launch_serial(
  image: Image,
  routing: Routing,
  inputs: Mapping[
    str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
  ],
  outputs: Mapping[str, Annotated[NDArray, dict(order='C', device='cpu')]],
  isa: str | None = None,
) -> None:
  """The same tasks on one thread, kind by kind."""

def inspect(image: Image, routing: Routing) -> tuple[bytes, bytes]:
  """What tasks would access and signal; see runtime.inspect."""

def first_non_finite(
  array: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
) -> int:
  """Index of the first value that is not finite, or -1."""

def fault_names() -> list[str]:
  """All faults, in order."""

def schedule_columns() -> list[str]:
  """What the analytical model knows of a schedule, in order."""

def schedule_predict(
  layer: Mapping[str, float],
  figures: Mapping[str, float],
  elements: Mapping[str, float],
  latency: float,
  rank: int,
  rows: Sequence[float],
  sent: Sequence[float],
  remote: float,
  dispatch_s: Sequence[float],
  return_s: Sequence[float],
  points: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')],
  seconds: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')],
) -> None:
  """Fills `[points]` float64 with the modelled time of a pass."""

def schedule_positions(
  rules: Mapping[str, float],
  experts: int,
  kind: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
  place: Annotated[
    NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)
  ],
  part: Annotated[
    NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)
  ],
  at: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')],
) -> None:
  """Fills `[tasks]` float64 with places in an order, in experts."""

def list_schedule(
  image: Image,
  seconds: Annotated[
    NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)
  ],
  pool: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
  first: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
  cores: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
  sequence: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
  core: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu')],
  order: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu')],
) -> int:
  """Fills int64 `[tasks]` core and order; returns how many it placed."""

def figure_units() -> dict[str, str]:
  """The figures of a machine that the engine knows, and their units."""

class SimModel:
  """An image, a routing and a machine."""

  def __init__(
    self,
    image: Image,
    topk_ids: Annotated[
      NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
    ],
    figures: Mapping[str, float],
    capacity: Sequence[float],
    factor: Sequence[float],
    route_begin: Sequence[int],
    route_links: Sequence[int],
    latency: Sequence[float],
    cube: float,
    cube_depth: float,
    element_bytes: Sequence[float],
    skipped: Sequence[bool],
  ) -> None: ...
  def simulate(
    self,
    into: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')],
    *,
    barriers: bool,
    sharing: bool,
  ) -> dict:
    """
    Fills a float64 array `[tasks, 8]`; returns totals.  Raises
    ValueError.
    """

  def costs(
    self,
    into: Mapping[
      str, Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')]
    ],
    l2_bytes: float,
  ) -> dict:
    """Fills float64 arrays `[tasks]` by name; returns bytes of links."""
