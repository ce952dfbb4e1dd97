"""A case: sizes, precision, routing and values of a layer."""

from collections.abc import Mapping
import dataclasses
from typing import Self
import warnings

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import quantised as quantised_lib
from hpmoe.reference.contract import recipes


@dataclasses.dataclass(frozen=True)
class Case(case_flags.CaseOptions):
  """A layer, its data, and the passes to run on them: see `CaseOptions`."""

  def __post_init__(self):
    words: dict[str, str | tuple[str, ...]] = dict(
      dtype=case_flags.DTYPES.get(self.dtype, self.dtype),
      weights=case_flags.DTYPES.get(self.weights, self.weights),
    )
    if isinstance(self.policy, str):
      words['policy'] = tuple(filter(None, self.policy.split(',')))
    for name, value in words.items():
      object.__setattr__(self, name, value)

  @classmethod
  def _from_folder_of_0_2(
    cls, folder: str, direction: str | None = None
  ) -> Self:
    """Returns `from_folder`; `Case.of`, its name of 0.2, works until 1.0."""
    warnings.warn(
      'Case.of is now called Case.from_folder', DeprecationWarning, stacklevel=2
    )
    return cls.from_folder(folder, direction)

  @classmethod
  def from_folder(cls, folder: str, direction: str | None = None) -> Self:
    """Returns the case of a folder.

    Args:
      folder: of `hpmoe export`.
      direction: some of its passes; None: all.

    Raises:
      ValueError: the folder is no case, or has no such pass.
    """
    folder_case = folder_lib.read(folder)
    direction = direction or folder_case.direction
    if not {*passes.from_direction(direction)} <= {
      *passes.from_direction(folder_case.direction)
    }:
      raise ValueError(
        f'direction: expected {folder_case.direction}, for which {folder} was '
        f'written, got {direction}'
      )
    policy = dataclasses.asdict(folder_case.policy)
    policy['activation'] = folder_case.policy.form
    policy['policy'] = policies.words(folder_case.policy)
    fields = {field.name for field in dataclasses.fields(cls)}
    return cls(
      direction=direction,
      ranks=folder_case.config.num_ranks,
      tokens=folder_case.config.num_tokens,
      dtype=folder_case.policy.storage,
      capacity=folder_case.config.capacity,
      bias=folder_case.config.bias,
      d_shared=folder_case.config.d_shared,
      folder=folder,
      **{name: value for name, value in policy.items() if name in fields},
    )

  @property
  def passes(self) -> tuple[passes.Pass, ...]:
    """The passes to run, in order."""
    return passes.from_direction(self.direction)

  @property
  def sublayer(self) -> bool:
    """Whether it is a sub-layer, see `MoEConfig`; False for given inputs."""
    is_generated = self.input is None and self.folder is None
    return is_generated and presets.get(self.preset).sublayer

  def share(
    self, ranks: tuple[int, ...], data: str = 'real'
  ) -> inputs_lib.LayerInputs:
    """Returns data of a case's folder as lazy tensors.

    Raises:
      ValueError: a file of these ranks is wrong.
    """
    assert self.folder is not None  # only those are judged in shares
    return folder_lib.read(self.folder).share(ranks, data)

  def make(self) -> inputs_lib.LayerInputs:
    """Returns the real data.

    Raises:
      ValueError: the case or a file is wrong.
    """
    for name in ('router', 'router_gemm', 'local_experts'):
      if value := getattr(self, name):
        raise ValueError(
          f'{name}: expected none here, as only hpmoe check judges a function '
          f'with it, got {value}'
        )
    self._refuse_forms()
    if self.folder is not None:
      return folder_lib.read(self.folder).inputs()
    real_inputs = self._make_real()
    return (
      inputs_lib.with_weights(real_inputs, self.weights)
      .with_policy(
        accumulation_order=self.accumulation_order,
        **policies.fields(self.policy),
        activation_ulp=self.activation_ulp,
        sigmoid_ulp=self.sigmoid_ulp,
        **self._list_operands(),
        weight_ulp=self.weight_ulp,
        **precision.activation_of(self._find_form(real_inputs.policy.form)),
      )
      .with_codes(self.quantised, self.x_form)
      .with_static_scales()
    )

  def _find_form(self, of_inputs: str) -> str:
    """Returns the activation, which a file of inputs may name.

    Raises:
      ValueError: this case has another activation than the file.
    """
    default = precision.PrecisionPolicy.activation
    if default in (of_inputs, self.activation):
      return self.activation if of_inputs == default else of_inputs
    if precision.activation_of(self.activation) != precision.activation_of(
      of_inputs
    ):
      raise ValueError(
        f'activation: expected {of_inputs}, as {self.input} says, got '
        f'{self.activation}'
      )
    return of_inputs

  def _refuse_forms(self) -> None:
    if not self.recipe:
      return
    for flag, form in (('weights', self.quantised), ('rows', self.rows)):
      if form:
        raise ValueError(
          f'{flag}: expected none with recipe={self.recipe}, which '
          f'defines the forms of operands, got {form}'
        )
    if self.sublayer:
      presets_words = 'preset: expected a whole layer with recipe='
      raise ValueError(f'{presets_words}{self.recipe}, got a sub-layer')

  def _list_operands(self) -> dict[str, str]:
    """Returns the policy's fields of quantised operands."""
    rows, operands = recipes.split_rows(self.recipe)
    return dict(rows=self.rows or rows, operand_forms=operands)

  def data(
    self, inputs: inputs_lib.LayerInputs, name: str
  ) -> inputs_lib.LayerInputs:
    """Returns data of another kind on the routing of `inputs`.

    Raises:
      folder.NoData: the folder has none.
      exact_data.ExactnessError: the layer has no such data.
    """
    if self.folder is not None:
      return folder_lib.read(self.folder).inputs(name)
    if form := self.rows or self.recipe:
      raise exact_limits.ExactnessError(
        f'there are no exact data for rows quantised to {form}'
      )
    backward = passes.BACKWARD in self.passes
    data_inputs = inputs_lib.with_data(inputs, name, backward, self.seed)
    data_inputs = inputs_lib.with_weights(data_inputs, self.weights)
    return data_inputs.with_codes(self.quantised, self.x_form, self.seed)

  def bytes_needed(self, part: str) -> int:
    """Returns a lower bound of the bytes of a part of `memory.COPIES`."""
    return memory.bytes_needed(*self.estimate_sizes(), self.direction, part)

  def estimate_undrawn_bytes(self) -> int:
    """Returns the bytes of weights of experts that certainly have no row."""
    config, policy = self.estimate_sizes()
    rows = config.num_ranks * config.num_tokens * config.top_k
    idle = max(0, config.num_experts - rows)
    weights = memory.weight_bytes(config, policy)
    return weights * idle // config.num_experts

  def estimate_sizes(
    self,
  ) -> tuple[config_lib.MoEConfig, precision.PrecisionPolicy]:
    """Returns sizes and dtypes without drawing data; N is from the rows."""
    if self.folder is not None:
      config = folder_lib.read(self.folder).config
    else:
      preset = presets.to_check(self.preset)
      config = presets.config(preset, self.ranks, self.tokens, self.capacity)
    # The rows of a rank are unknown before the routing.
    rows = self.capacity or config.num_tokens * config.top_k
    changes = dict(
      capacity=rows,
      bias=config.bias or self.bias,
      d_shared=config.d_shared or self.d_shared,
    )
    policy = precision.PrecisionPolicy(
      self.dtype, quantised=self.quantised, **policies.fields(self.policy)
    )
    return dataclasses.replace(config, **changes), policy

  def _refuse_what_does_not_fit(self) -> None:
    weights = memory.weight_bytes(*self.estimate_sizes())
    least_bytes = self.bytes_needed('launch') - self.estimate_undrawn_bytes()
    name = 'num_experts' if 2 * weights > least_bytes else 'num_tokens'
    memory.check(least_bytes, 'launch', name)

  def _make_real(self) -> inputs_lib.LayerInputs:
    if self.input is not None:
      forms = self.quantised, self.x_form
      options = self.placement, self.capacity, self.seed, *forms
      if isinstance(self.input, Mapping):
        return input_files.from_arrays(self.input, *options)
      return input_files.load_safetensors(self.input, *options)
    self._refuse_what_does_not_fit()
    return inputs_lib.make_inputs(
      presets.to_check(self.preset),
      self.ranks,
      self.tokens,
      self.dtype,
      self.routing,
      self.seed,
      self.text,
      placement=self.placement,
      capacity=self.capacity,
      bias=self.bias,
      d_shared=self.d_shared,
      limit=float(precision.activation_of(self.activation).get('limit', 0)),
      coded=bool(self.quantised or self.rows or self.x_form or self.recipe),
      least_range=self.estimate_sizes()[1].smallest_range.name,
      row_form=self._find_row_form(),
    )

  def _find_row_form(self) -> quantised_lib.Form | None:
    """Returns the form to which a kernel quantises x, or None."""
    forms = quantised_lib.row_forms(self._list_operands()['rows'])
    return quantised_lib.FORMS.get(forms.get('expert_in', ''))


# The name of `from_folder` in 0.2.
setattr(Case, 'of', Case._from_folder_of_0_2)  # noqa: B010
