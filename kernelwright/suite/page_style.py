"""Style and script of the suite's page. The script only sorts, filters and unfolds: all text is there without it."""

STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --back: #fdfdfc; --line: #d9dce1; --dim: #667080; --soft: #f1f3f5;
  --good: #14713d; --bad: #b3261e; --kernels: #2563a8; --original: #8a93a0; --constant: #b26a00;
  --eliminated: #7d3fa8; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --back: #14181d; --line: #333a44; --dim: #97a1ae;
  --soft: #1d232a; --good: #5cc98a; --bad: #ff8a80; --kernels: #6fb1f5; --original: #7b8694; --constant: #e9a94b;
  --eliminated: #c08ae6; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 78rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; } h4 { font-size: .9rem; margin: 1rem 0 .2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .5rem 0; }
th { text-align: right; font-weight: 600; border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; }
td { text-align: right; padding: .12rem .8rem .12rem 0; } th:first-child, td:first-child { text-align: left; }
tr.part td { color: var(--dim); } tr.part td:first-child { padding-left: 1.2rem; }
.dim { color: var(--dim); } .good, .faster { color: var(--good); } .bad > summary .state, p.bad, .slower {
  color: var(--bad); }
ul { padding-left: 1.2rem; margin: .3rem 0; } li { margin: .25rem 0; } p { margin: .4rem 0; max-width: 60rem; }
code, pre { font: .82rem/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
li > code { display: block; color: var(--dim); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .88rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; } dl.error dd { color: var(--bad); }
svg { width: 100%; max-width: 58rem; height: auto; display: block; } svg text { font-size: 11px; fill: var(--dim); }
svg .grid { stroke: var(--line); } svg .one { stroke: var(--text); stroke-dasharray: 4 3; }
.kind-kernels { stroke: var(--kernels); fill: var(--kernels); } .kind-original { stroke: var(--original);
  fill: var(--original); } .kind-constant { stroke: var(--constant); fill: var(--constant); }
.kind-eliminated { stroke: var(--eliminated); fill: var(--eliminated); }
.controls input { font: inherit; padding: .2rem .5rem; width: 22rem; max-width: 60vw; }
#problems { font-size: .85rem; font-variant-numeric: tabular-nums; overflow-x: auto; }
#problems .head, summary { display: grid; gap: .5rem; align-items: baseline; min-width: 62rem; padding: .15rem .3rem;
  grid-template-columns: minmax(20rem, 4fr) 5.5rem repeat(var(--columns), minmax(3.6rem, 1fr)); }
#problems .head { font-weight: 600; border-bottom: 1px solid var(--line); }
#problems .head span { cursor: pointer; } #problems .head span.up::after { content: " \\25B4"; }
#problems .head span.down::after { content: " \\25BE"; }
summary { cursor: pointer; list-style: none; } summary::-webkit-details-marker { display: none; }
summary:hover, details[open] > summary { background: var(--soft); }
.head span, summary span { text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.head span:first-child, summary span:first-child { text-align: left; }
summary span:first-child::before { content: "\\25B8\\00A0"; color: var(--dim); }
details[open] > summary span:first-child::before { content: "\\25BE "; }
.body { border-left: 2px solid var(--line); margin: .3rem 0 1rem .5rem; padding: .1rem 0 .1rem 1rem; }
@media print { .controls { display: none; } }
"""

SCRIPT = """
(() => {
  const box = document.getElementById("problems");
  if (!box) return;
  const rows = [...box.querySelectorAll("details.problem")], heads = [...box.querySelectorAll(".head span")];
  const text = rows.map(row => row.textContent.toLowerCase());
  const filter = document.getElementById("filter"), count = document.getElementById("count");
  document.querySelector(".controls").hidden = false;
  const key = (row, column) => row.querySelectorAll("summary span")[column].dataset.key;
  const names = new Intl.Collator("en", {numeric: true});
  function sort(head) {
    const column = Number(head.dataset.column), down = head.classList.contains("up");
    heads.forEach(other => other.classList.remove("up", "down"));
    head.classList.add(down ? "down" : "up");
    const sign = down ? -1 : 1;
    [...rows].sort((a, b) => {
      const x = key(a, column), y = key(b, column);
      if (column === 0) return sign * names.compare(x, y);
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (Number(x) - Number(y));
    }).forEach(row => box.appendChild(row));
  }
  heads.forEach(head => {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
  });
  function show() {
    const words = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every(word => text[index].includes(word));
      shown += !row.hidden;
    });
    count.textContent = shown + " of " + rows.length;
  }
  filter.addEventListener("input", show);
  document.getElementById("unfold").addEventListener("click", event => {
    const open = event.target.textContent === "unfold all";
    rows.forEach(row => { row.open = open && !row.hidden; });
    event.target.textContent = open ? "fold all" : "unfold all";
  });
  show();
})();
"""
