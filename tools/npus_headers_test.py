"""The check of the host program against headers, with stand-ins for them."""

import shutil
import subprocess
import sys

import pytest

from hpmoe.tools import npus_headers

HEADERS = npus_headers.STANDIN / 'include'


def _run(acl, shmem) -> subprocess.CompletedProcess:
  return subprocess.run(
    [
      *(sys.executable, '-m', 'hpmoe.tools.npus_headers'),
      *(f'--acl={acl}', f'--shmem={shmem}'),
    ],
    capture_output=True,
    text=True,
  )


class TestNpusHeaders:
  @pytest.mark.slow
  def test_passes_headers_that_have_the_calls(self):
    process = _run(HEADERS, HEADERS)
    assert process.returncode == 0, process.stdout
    lines = process.stdout.splitlines()
    assert len(lines) == len(npus_headers.sources()) > 7
    assert all(line.endswith('compiles, no warning') for line in lines)

  @pytest.mark.parametrize(
    'header, old, new, file',
    [
      # A call that is gone, one with another argument, an enum without a
      # value, and one that only the stand-in's definition tells.
      ('shmem.h', 'aclshmem_putmem', 'aclshmem_put', 'peers.cc'),
      ('acl/acl.h', '** at, size_t size', '** at, void* x', 'acl_device.cc'),
      ('acl/acl.h', 'ATTR_SCHEM_MODE', 'ATTR_OTHER', 'acl_device.cc'),
      ('acl/acl.h', 'aclError aclFinalize', 'void aclFinalize', 'acl.cc'),
    ],
  )
  @pytest.mark.few(2)
  def test_names_the_file_that_others_do_not_suit(
    self, tmp_path, monkeypatch, capsys, header, old, new, file
  ):
    headers = tmp_path / 'headers'
    shutil.copytree(HEADERS, headers)
    path = headers / header
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    changed_source = [
      path for path in npus_headers.sources() if path.name == file
    ]
    monkeypatch.setattr(npus_headers, 'sources', lambda: changed_source)
    assert npus_headers.check(headers, headers) == 1
    assert f'{file}: ' in capsys.readouterr().out

  @pytest.mark.parametrize('acl, folder', [('', 'acl'), (HEADERS, 'shmem')])
  def test_without_a_folder_says_which(self, acl, folder):
    process = _run(acl, '/nowhere')
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith(f'--{folder}: expected a folder that holds ')
