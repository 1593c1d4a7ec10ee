"""The style and the script of a graph's page."""

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #66707f; --line: #dfe4ea;
  --edge: #9aa5b4; --hit: #f5a623; }
@media (prefers-color-scheme: dark) {
  :root { --back: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #94a0b0; --line: #2a323d; --edge: #5b6675; }
}
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body { display: flex; flex-direction: column; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: 10px; align-items: center; padding: 10px 16px; background: var(--card);
  border-bottom: 1px solid var(--line); }
h1 { font-size: 17px; margin: 0; } header p { margin: 0; color: var(--soft); flex: 1; }
input, button { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line);
  border-radius: 6px; padding: 4px 10px; } input { width: 240px; } button { cursor: pointer; }
#found { color: var(--soft); min-width: 60px; }
main { position: relative; flex: 1; min-height: 0; }
#view { width: 100%; height: 100%; display: block; cursor: grab; outline: none; touch-action: none; }
#view.drag { cursor: grabbing; }
#edges path { fill: none; stroke: var(--edge); stroke-width: 1.4; }
#edges path:hover { stroke: var(--hit); stroke-width: 3; }
.box { fill: var(--card); stroke: var(--edge); stroke-width: 1; }
#boxes g { cursor: pointer; } #boxes text { text-anchor: middle; fill: var(--ink); font-size: 11px; }
#boxes .t { font-weight: 650; font-size: 12px; } #boxes .s { fill: var(--soft); font-size: 10px; }
#boxes g.hit .box { stroke: var(--hit); stroke-width: 3; }
#boxes g.chosen .box { stroke: hsl(212 80% 50%); stroke-width: 3.5; }
#boxes.search g:not(.hit) { opacity: .3; }
aside { position: absolute; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
#legend { left: 12px; top: 12px; padding: 6px; max-height: 60%; overflow: auto; display: flex; flex-direction: column; }
#legend button { border: 0; background: none; text-align: left; padding: 2px 8px; font-size: 12px; }
#legend i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px; }
#legend i.frame { border: 2.5px solid; border-radius: 3px; }
#legend b { color: var(--soft); font-weight: 400; }
#details { right: 12px; top: 12px; width: min(400px, 92%); max-height: calc(100% - 24px); overflow: auto;
  padding: 14px 16px; overflow-wrap: anywhere; }
#details h2 { margin: 0 0 2px; font-size: 15px; } #details dt { color: var(--soft); font-size: 12px; margin-top: 8px; }
#details dd { margin: 0; } #details a { color: hsl(212 75% 48%); cursor: pointer; display: block; }
@media (max-width: 700px) {
  header { padding: 8px 10px; gap: 6px; } header p { flex-basis: 100%; order: 1; font-size: 12px; }
  input { width: auto; flex: 1; min-width: 0; } #found { min-width: 0; }
  main { display: flex; flex-direction: column; } #view { flex: 1; min-height: 0; order: 1; }
  #legend { position: static; flex: none; flex-direction: row; max-height: none; padding: 4px; border-width: 0 0 1px;
    border-radius: 0; } #legend button { flex: none; white-space: nowrap; }
  #details { left: 8px; right: 8px; top: auto; bottom: 8px; width: auto; max-height: 45%; }
}
"""

SCRIPT = """
const data = JSON.parse(document.getElementById("graph").textContent);
const view = document.getElementById("view"), world = document.getElementById("world");
const boxes = document.getElementById("boxes"), details = document.getElementById("details");
const search = document.getElementById("search"), found = document.getElementById("found");
const drawn = [...boxes.children], readers = data.map(() => []);
data.forEach((box, i) => box.reads.forEach(j => readers[j].push(i)));
let x = 0, y = 0, k = 1, hits = [], at = -1;

function draw() { world.setAttribute("transform", `translate(${x} ${y}) scale(${k})`); }
function zoom(factor, cx, cy) {
  const now = Math.min(4, Math.max(0.02, k * factor));
  x = cx - (cx - x) * now / k; y = cy - (cy - y) * now / k; k = now; draw();
}
function middle() { return [view.clientWidth / 2, view.clientHeight / 2]; }
function fit() {
  const w = +world.dataset.width, h = +world.dataset.height;
  k = Math.min(1, view.clientWidth / w, view.clientHeight / h) || 1;
  if (k < 0.35) { k = 0.6; x = view.clientWidth / 2 - k * data[0].x; y = 10; }
  else { x = (view.clientWidth - k * w) / 2; y = 0; }
  draw();
}
function all() {
  const w = +world.dataset.width, h = +world.dataset.height;
  k = Math.min(1, view.clientWidth / w, view.clientHeight / h) || 1;
  x = (view.clientWidth - k * w) / 2; y = 0; draw();
}
function show(i) {
  const [cx, cy] = middle();
  k = Math.max(k, 0.7); x = cx - k * data[i].x; y = cy - k * data[i].y; draw();
}
function element(name, text) { const e = document.createElement(name); e.textContent = text; return e; }
function links(title, list) {
  if (!list.length) return;
  details.append(element("dt", title));
  for (const j of list) {
    const a = element("a", `${data[j].title}  ${data[j].name}`);
    a.addEventListener("click", () => { choose(j); show(j); });
    details.append(a);
  }
}
function choose(i) {
  boxes.querySelector(".chosen")?.classList.remove("chosen");
  details.hidden = i < 0;
  if (i < 0) return;
  drawn[i].classList.add("chosen");
  details.replaceChildren(element("h2", data[i].title), element("div", data[i].name));
  for (const [key, value] of data[i].facts) details.append(element("dt", key), element("dd", value));
  links("comes from", data[i].reads);
  links("goes to", readers[i]);
  history.replaceState(null, "", "#" + i);
}
function look(text, field) {
  const words = text.toLowerCase();
  hits = words ? data.map((_, i) => i).filter(i => field ? data[i][field] === text
    : (data[i].title + " " + data[i].name).toLowerCase().includes(words)) : [];
  boxes.classList.toggle("search", words !== "");
  drawn.forEach((g, i) => g.classList.toggle("hit", hits.includes(i)));
  at = -1; found.textContent = words ? `${hits.length} found` : "";
}
function next(step) {
  if (!hits.length) return;
  at = (at + step + hits.length) % hits.length;
  found.textContent = `${at + 1} of ${hits.length}`; choose(hits[at]); show(hits[at]);
}
search.addEventListener("input", () => look(search.value));
search.addEventListener("keydown", e => {
  if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
  if (e.key === "Escape") { search.value = ""; look(""); search.blur(); }
});
document.querySelectorAll("#legend button").forEach(b => b.addEventListener("click", () => {
  search.value = b.dataset.device ?? b.dataset.type; look(search.value, b.dataset.device ? "device" : "title"); next(1);
}));
view.addEventListener("wheel", e => {
  e.preventDefault();
  const r = view.getBoundingClientRect();
  zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0015)), e.clientX - r.left, e.clientY - r.top);
}, { passive: false });
let from = null, moved = false;
view.addEventListener("pointerdown", e => {
  from = [e.clientX - x, e.clientY - y, e.clientX, e.clientY]; moved = false;
});
window.addEventListener("pointermove", e => {
  if (!from) return;
  moved ||= Math.hypot(e.clientX - from[2], e.clientY - from[3]) > 3;
  x = e.clientX - from[0]; y = e.clientY - from[1]; view.classList.add("drag"); draw();
});
window.addEventListener("pointerup", () => { from = null; view.classList.remove("drag"); });
view.addEventListener("click", e => {
  if (moved) return;
  const g = e.target.closest("#boxes > g");
  choose(g ? +g.dataset.i : -1);
});
document.getElementById("more").addEventListener("click", () => zoom(1.3, ...middle()));
document.getElementById("less").addEventListener("click", () => zoom(1 / 1.3, ...middle()));
document.getElementById("fit").addEventListener("click", all);
window.addEventListener("keydown", e => {
  if (e.target === search || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "/") { e.preventDefault(); search.focus(); }
  if (e.key === "+" || e.key === "=") zoom(1.3, ...middle());
  if (e.key === "-") zoom(1 / 1.3, ...middle());
  if (e.key === "f") all();
  if (e.key === "Escape") choose(-1);
});
fit();
const start = /^#(\\d+)$/.exec(location.hash);
if (start && data[+start[1]]) { choose(+start[1]); show(+start[1]); }
document.body.dataset.ready = data.length;
"""
