"""Pictures: what they show, and that they show something."""

import numpy as np

from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator.trace import plot
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing


class TestUtilisation:
  def test_is_what_counting_gives(self):
    start, end = np.sort(
      runtime_testing.rng('utilisation').integers(0, 40, (2, 99)), axis=0
    ).astype(float)
    edges = np.arange(0, 41, 4.0)
    want = [
      np.clip(np.minimum(end, b) - np.maximum(start, a), 0, None).sum() / 4
      for a, b in zip(edges, edges[1:])
    ]
    np.testing.assert_allclose(plot.utilisation(start, end, edges), want)


class TestShownRanks:
  def test_are_those_that_end_last_and_fit(self, monkeypatch):
    times = testing.made_up()
    ranks = times.image.config.num_ranks
    assert plot.shown_ranks(times) == list(range(ranks))
    monkeypatch.setattr(plot, 'MOST_WORKERS', 2 * 8)
    ranks_shown = plot.shown_ranks(times)
    ends = [times.end[times.tasks['rank'] == r].max() for r in range(ranks)]
    assert sorted(ranks_shown) == sorted(np.argsort(ends, kind='stable')[-2:])


class TestWritePng:
  def test_stages_are_drawn(self, tmp_path):
    from matplotlib import image  # type: ignore[import-untyped]

    patch = 400  # pixels of a colour in the legend, at most
    for times in (testing.measured(), testing.made_up()):
      path = tmp_path / 'timeline.png'
      plot.write_png(path, times)
      pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
      took = times.end - times.start
      for kind, colour in plot.colours(timeline.kinds(times.tasks)).items():
        of_kind = took[times.tasks['kind'] == kind].sum()
        if of_kind > 0.05 * took.sum():
          is_colour = pixels == [round(255 * c) for c in colour[:3]]
          assert is_colour.all(-1).sum() > patch, kind
