"""What an HTML report looks like, in light, in dark and on paper."""

# No <, > and &: XML escapes them and HTML does not.
CSS = """\
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1b1f24; --faint: #5b6470; --line: #d5dae0;
  --panel: #f4f6f8; --pass: #dcefe3; --fail: #f9d3c4; --edge: #b8331a;
  --good-tile: #a9cfb9; --bad-tile: #c8371b; --count: #ffffff;
  --ring: #1b1f24; --hatch: #c3c9d0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --ink: #e6e9ed; --faint: #9aa4b0; --line: #333a43;
    --panel: #1d2127; --pass: #1d3a2a; --fail: #5c2415; --edge: #ff8a66;
    --good-tile: #35614a; --bad-tile: #ff7a52; --count: #14171b;
    --ring: #ffffff; --hatch: #3d454f;
  }
}
body {
  background: var(--page); color: var(--ink); margin: 0; padding: 1.5rem;
  font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: .8rem 0 .3rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
.facts { font-weight: 600; }
.small, small { font-size: .82rem; color: var(--faint); }
a { color: inherit; }
pre {
  background: var(--panel); border-left: 3px solid var(--line);
  padding: .6rem .8rem; margin: .3rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace;
}
pre.fail { border-color: var(--edge); }
.badge, .mark { border-radius: .3rem; padding: .1rem .5rem; }
.badge.pass, .mark.pass { background: var(--pass); }
.badge.fail, .mark.fail { background: var(--fail); font-weight: 700; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; width: 100%; }
th { text-align: left; font-weight: 600; }
th, td { padding: .2rem .6rem; }
.cells th a { text-decoration: none; }
.cells td {
  border: 2px solid var(--page); min-width: 7.5rem;
  font-variant-numeric: tabular-nums;
}
.cells td small { display: block; color: inherit; }
.cells td.pass { background: var(--pass); }
.cells td.fail {
  background: var(--fail); border-left: 4px solid var(--edge);
  font-weight: 600;
}
td.unseen, .mark.unseen {
  background: repeating-linear-gradient(
    -45deg, var(--hatch) 0 2px, transparent 2px 8px);
  color: var(--faint);
}
.pass-name th { padding-top: .8rem; color: var(--faint); }
.figures { margin: .5rem 0; font-size: .8rem; }
.figures td, .figures th {
  border-bottom: 1px solid var(--line); white-space: nowrap;
  padding: .15rem .5rem;
}
.figures td:last-child { white-space: normal; min-width: 12rem; }
.figures tr.fail td:nth-last-child(2) { background: var(--fail); }
.figures tr.unseen td { color: var(--faint); }
details { border-top: 1px solid var(--line); padding: .3rem 0; }
summary { cursor: pointer; font-weight: 600; }
summary small { font-weight: 400; }
.maps, .rank {
  display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; align-items: flex-start;
}
.maps { max-height: 40rem; overflow: auto; padding: .3rem 0; }
.rank { column-gap: .6rem; }
.maps svg { flex: none; max-width: 100%; height: auto; }
.defs { position: absolute; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
.good { fill: var(--good-tile); }
#bad, #first rect { fill: var(--bad-tile); }
use + text {
  fill: var(--count); text-anchor: middle; font-weight: 600;
  pointer-events: none;
}
#first .ring { fill: none; stroke: var(--ring); stroke-width: 2; }
@page { size: landscape; margin: 12mm; }
@media print {
  :root { color-scheme: light; print-color-adjust: exact; font-size: 11px; }
  body { padding: 0; font-size: 11px; }
  pre { font-size: 10px; }
  .wide, .maps { overflow: visible; max-height: none; }
  .figures td, .figures th { white-space: normal; }
  tr, pre, svg, h3 { break-inside: avoid; }
  h2, h3, summary { break-after: avoid; }
}
"""
