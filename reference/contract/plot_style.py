"""One look of all pictures: legible at the width of a page."""

# Of Okabe and Ito: colour-blind readers tell them apart.
COLOURS = (
  '#0072B2',  # blue
  '#E69F00',  # orange
  '#009E73',  # green
  '#D55E00',  # vermilion
  '#CC79A7',  # purple
  '#56B4E9',  # sky
  '#F0E442',  # yellow
  '#999999',  # grey
  '#000000',
)
_WIDTH_INCHES, _DPI = 9, 110


def figure(height_inches: float):
  """Returns a figure of a page's width.

  Raises:
    ImportError: matplotlib is missing.
  """
  # Not pyplot: no window, no state beside the figure.
  from matplotlib.figure import Figure

  size = (_WIDTH_INCHES, height_inches)
  return Figure(figsize=size, layout='constrained', dpi=_DPI)


def save(figure, path) -> None:
  """Writes a figure as PNG.

  Raises:
    OSError: the file cannot be written.
  """
  from matplotlib.backends import backend_agg

  backend_agg.FigureCanvasAgg(figure).print_png(path)
