"""Compares what `run.py` wrote in several environments of one machine.

Example:
    python tools/requests/compare_environments.py judge.json whole.json

Exits with 1 and a line for each difference.  Texts, verdicts and counts must be
equal.  Figures may differ by a few roundings of float64: numpy and the
extension module add the same terms in other orders.
"""

import argparse
import json
import math
import sys

# Sums of up to 2**20 float64 terms, in any two orders.
RELATIVE = 2.0**20 * 2.0**-52


def find_differences(left, right, path: str = '') -> list[str]:
  """Returns a line for each value of two outcomes that differs."""
  if isinstance(left, float) and isinstance(right, float):
    near = math.isclose(left, right, rel_tol=RELATIVE, abs_tol=0)
    are_equal = near or (math.isnan(left) and math.isnan(right))
    return [] if are_equal else [f'{path}: {left!r} and {right!r}']
  if isinstance(left, dict) and isinstance(right, dict):
    keys = dict.fromkeys((*left, *right))
    pairs = [(f'{path}.{k}', left.get(k), right.get(k)) for k in keys]
  elif isinstance(left, list) and isinstance(right, list):
    if len(left) != len(right):
      return [f'{path}: {len(left)} and {len(right)} values']
    pairs = [(f'{path}[{i}]', *pair) for i, pair in enumerate(zip(left, right))]
  else:
    return [] if left == right else [f'{path}: {left!r} and {right!r}']
  return [line for p, a, b in pairs for line in find_differences(a, b, p)]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('files', nargs='+', help='files of run.py')
  outcomes = []
  for name in parser.parse_args().files:
    with open(name, encoding='utf-8') as file:
      outcomes.append(json.load(file))
  lines = [
    line
    for other in outcomes[1:]
    for line in find_differences(outcomes[0], other)
  ]
  print(*lines, sep='\n')
  print(f'{len(outcomes[0])} requests, {len(lines)} differences')
  sys.exit(bool(lines))


if __name__ == '__main__':
  main()
