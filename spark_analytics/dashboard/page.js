"use strict";
(() => {
const report = JSON.parse(document.getElementById("report").textContent);
const line = report.timeline, heat = report.heat;
const names = Object.keys(line.backups);
const hidden = new Set();
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const gone = (status) => status === "SILENT" || status === "STOPPED";

function svg(tag, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
function html(tag, attributes, parent, text) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
const short = (x) => (x >= 9.95 ? x.toFixed(0) : x.toFixed(1).replace(".0", ""));
function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0";
  for (const [limit, unit, name] of [[1e3, 1, "ms"], [6e4, 1e3, "s"], [36e5, 6e4, "min"], [864e5, 36e5, "h"]])
    if (ms < limit) return short(ms / unit) + " " + name;
  return short(ms / 864e5) + " d";
}
const two = (n) => String(n).padStart(2, "0");
function moment(ms, seconds = true) {
  const d = new Date(ms), clock = two(d.getUTCHours()) + ":" + two(d.getUTCMinutes());
  return seconds ? clock + ":" + two(d.getUTCSeconds()) : clock;
}
function tickTimes(from, to, wanted) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map((s) => s * 1e3);
  const step = steps.find((s) => (to - from) / s <= wanted) || (to - from) / wanted;
  const ticks = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) ticks.push(t);
  return { ticks, step };
}
function label(ms, step) {
  if (step >= 864e5) return new Date(ms).toISOString().slice(5, 10);
  return moment(ms, step < 6e4);
}

// one time axis for everything
const left = () => (innerWidth < 820 ? 62 : 132);
const right = 14;
const from = report.from_ms, to = report.to_ms;
const xOf = (t, width) => left() + ((t - from) / Math.max(1, to - from)) * (width - left() - right);
const tOf = (x, width) => from + ((x - left()) / (width - left() - right)) * (to - from);

const tip = byId("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = clamp(x + 14, 4, innerWidth - box.width - 4) + "px";
  tip.style.top = clamp(y - box.height - 10, 4, innerHeight - box.height - 4) + "px";
}
function hideTip() { tip.hidden = true; document.querySelectorAll(".cursor").forEach((c) => c.classList.add("off")); }
function moveCursors(t) {
  document.querySelectorAll("svg .cursor").forEach((c) => {
    const x = xOf(t, c.ownerSVGElement.viewBox.baseVal.width);
    c.setAttribute("x1", x); c.setAttribute("x2", x); c.classList.remove("off");
  });
}
const reignAt = (t) => report.reigns.filter((r) => r.begin_ms <= t).pop();

function stepText(at) {
  const t = line.start_ms + at * line.step_ms;
  const rows = [moment(Math.max(t, from)) + " UTC"];
  names.forEach((name) => {
    const s = line.backups[name];
    if (s.status[at]) rows.push(name.padEnd(18) + s.status[at].padEnd(9) + (gone(s.status[at]) ? "unheard for " + duration(s.silence_ms[at] || s.worst_ms[at]) : "p99 " + duration(s.p99_ms[at])));
    else { const reign = reignAt(t + line.step_ms); if (reign && reign.primary === name) rows.push(name.padEnd(18) + "primary, epoch " + reign.epoch); }
  });
  return rows.join("\n");
}
function hover(node, width, description) {
  let at = line.count - 1;
  const show = (x, y) => { moveCursors(line.start_ms + (at + 0.5) * line.step_ms); showTip(stepText(at), x, y); };
  node.addEventListener("pointermove", (e) => {
    const box = node.getBoundingClientRect();
    at = clamp(Math.floor((tOf(((e.clientX - box.left) / box.width) * width, width) - line.start_ms) / line.step_ms), 0, line.count - 1);
    show(e.clientX, e.clientY);
  });
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("blur", hideTip);
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", description + " Use the arrow keys to read it step by step.");
  node.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[e.key];
    if (e.key === "Escape") hideTip();
    if (move === undefined) return;
    e.preventDefault();
    at = clamp(at + move, 0, line.count - 1);
    const box = node.getBoundingClientRect();
    show(box.left + (xOf(line.start_ms + (at + 0.5) * line.step_ms, width) / width) * box.width, box.top + 60);
  });
}
function timeAxis(node, width, y, top) {
  const { ticks, step } = tickTimes(from, to, Math.max(5, Math.floor((width - left()) / 75)));
  ticks.forEach((t) => {
    const x = xOf(t, width);
    svg("line", { x1: x, x2: x, y1: top, y2: y, class: "gridline" }, node);
    svg("text", { x, y: y + 15, "text-anchor": "middle", class: "axis" }, node, label(t, step));
  });
}
function marks(node, width, top, bottom, places) {
  report.failovers.forEach((f, i) => {
    const x = xOf(f.at_ms, width);
    svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: "mark k-" + f.kind }, node);
    if (places) svg("text", { x: x + (places[i].end ? 3 : -3), y: places[i].y, "text-anchor": places[i].end ? "end" : "start", class: "marktext" }, node, places[i].text);
  });
}
// labels of the changes stand above the chart, in as many rows as they need (four at most)
function placeMarks(width) {
  const ends = [-1e9, -1e9, -1e9, -1e9];
  const places = report.failovers.map((f) => {
    const text = f.kind + " " + (f.measured ? "" : "≈ ") + duration(f.gap_ms), x = xOf(f.at_ms, width), end = x + text.length * 6.6 > width;
    const first = end ? x - text.length * 6.6 : x;
    const row = Math.max(0, ends.findIndex((last) => last < first));
    ends[row] = (end ? x : x + text.length * 6.6) + 8;
    return { text, end, row };
  });
  const rows = Math.max(0, ...places.map((p) => p.row + 1));
  places.forEach((p) => { p.y = (rows - p.row) * 14 - 2; });
  return { places, height: rows * 14 };
}
function runs(values, test) {
  const found = [];
  values.forEach((value, i) => {
    if (!test(value)) return;
    const last = found[found.length - 1];
    if (last && last[1] === i && last[2] === value) last[1] = i + 1; else found.push([i, i + 1, value]);
  });
  return found;
}

function drawLag() {
  const host = byId("lag"); host.replaceChildren();
  const width = Math.max(320, host.clientWidth), { places, height: room } = placeMarks(width);
  const height = (width < 700 ? 290 : 330) + room, top = 6 + room, bottom = height - 24;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, height }, host);
  const shown = names.filter((name) => line.backups[name].p99_ms.some((v) => v !== null));
  const highest = Math.max(report.objective_ms * 2, ...shown.flatMap((name) => line.backups[name].worst_ms.map((v) => v || 0)));
  const low = -1, high = Math.ceil(Math.log10(highest) * 2) / 2;
  const zero = bottom - 14;
  const yOf = (ms) => (ms <= 0 ? bottom - 4 : clamp(zero - ((Math.log10(ms) - low) / (high - low)) * (zero - top), top, zero));
  timeAxis(node, width, bottom, top);
  for (let power = low; power <= high; power++) {
    const y = yOf(10 ** power);
    svg("line", { x1: left(), x2: width - right, y1: y, y2: y, class: "gridline" }, node);
    if (power > low) svg("text", { x: left() - 8, y: y + 4, "text-anchor": "end", class: "axis" }, node, power === 5 ? "100 s" : duration(10 ** power));
  }
  svg("text", { x: left() - 8, y: bottom, "text-anchor": "end", class: "axis" }, node, "0");
  const defs = svg("defs", {}, node);
  shown.forEach((name) => {
    const c = names.indexOf(name) % 6, series = line.backups[name], group = svg("g", { class: "c" + c, "data-series": name }, node);
    const hatch = svg("pattern", { id: "hatch" + c, class: "hatch c" + c, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${45 + 30 * c})` }, defs);
    svg("path", { d: "M0 0V7" }, hatch);
    if (hidden.has(name)) group.classList.add("off");
    runs(series.status.map((s) => gone(s)), (g) => g).forEach(([a, b]) => {
      const x1 = xOf(Math.max(from, line.start_ms + a * line.step_ms), width), x2 = xOf(Math.min(to, line.start_ms + b * line.step_ms), width);
      svg("rect", { x: x1, y: top, width: Math.max(1, x2 - x1), height: bottom - top, class: "wash" }, group);
      svg("rect", { x: x1, y: top, width: Math.max(1, x2 - x1), height: bottom - top, fill: `url(#hatch${c})` }, group);
    });
    let d = "", pen = false;
    series.p99_ms.forEach((value, i) => {
      const v = gone(series.status[i]) ? Math.max(series.worst_ms[i], value || 0) : value;
      if (v === null) { pen = false; return; }
      const x = xOf(clamp(line.start_ms + (i + 0.5) * line.step_ms, from, to), width);
      d += (pen ? "L" : "M") + x.toFixed(1) + " " + yOf(v).toFixed(1); pen = true;
    });
    svg("path", { d, class: "line" }, group);
  });
  const y = yOf(report.objective_ms);
  svg("line", { x1: left(), x2: width - right, y1: y, y2: y, class: "objective" }, node);
  svg("text", { x: width - right - 4, y: y - 5, "text-anchor": "end", class: "axis halo" }, node, "objective " + duration(report.objective_ms));
  marks(node, width, room, bottom, places);
  svg("line", { y1: top, y2: bottom, class: "cursor off" }, node);
  hover(node, width, `Lag over time of ${shown.length} backups, with ${report.failovers.length} changes of primary.`);
}

function drawLanes() {
  const host = byId("lanes"); host.replaceChildren();
  const width = Math.max(320, host.clientWidth), lane = 26, height = names.length * lane + 24, narrow = width < 780;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, height }, host);
  timeAxis(node, width, names.length * lane + 2, 0);
  names.forEach((name, row) => {
    const y = row * lane + 3, series = line.backups[name];
    svg("text", { x: 0, y: y + 15, class: "lanename" }, node, narrow && name.length > 9 ? "…" + name.slice(-7) : name.length > 20 ? "…" + name.slice(-18) : name);
    const bars = runs(series.status, (s) => s !== null).map(([a, b, s]) => [line.start_ms + a * line.step_ms, line.start_ms + b * line.step_ms, s]);
    report.reigns.filter((r) => r.primary === name).forEach((r) => bars.push([r.begin_ms, Math.min(r.end_ms, r.last_said_ms + report.interval_ms), "PRIMARY"]));
    bars.forEach(([a, b, s]) => {
      const x1 = xOf(Math.max(from, a), width), x2 = xOf(Math.min(to, b), width);
      if (x2 <= x1) return;
      const seg = svg("rect", { x: x1, y, width: Math.max(1, x2 - x1 - 0.5), height: 19, rx: 2, class: "seg s-" + s }, node);
      if (x2 - x1 > s.length * 7.5 + 10) svg("text", { x: (x1 + x2) / 2, y: y + 13.5, "text-anchor": "middle", class: "segtext" }, node, s);
      svg("title", {}, seg, `${name} ${s}: ${report.meaning[s]}`);
    });
  });
  marks(node, width, 0, names.length * lane + 2, null);
  svg("line", { y1: 0, y2: names.length * lane, class: "cursor off" }, node);
  hover(node, width, "State of each broker over time.");
}

function shade(ms, stops) {
  const at = clamp((Math.log10(Math.max(ms, 1)) - 0) / 5, 0, 1) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), f = at - i;
  return "rgb(" + stops[i].map((v, k) => Math.round(v + (stops[i + 1][k] - v) * f)).join(",") + ")";
}
const dark = () => document.documentElement.dataset.theme === "dark";
const stopsOf = () => (dark()
  ? [[24, 34, 46], [27, 73, 101], [38, 128, 128], [150, 160, 70], [240, 160, 60], [255, 90, 80]]
  : [[238, 243, 248], [182, 216, 232], [104, 176, 190], [226, 196, 92], [226, 120, 52], [150, 24, 40]]);

function drawHeat() {
  const host = byId("heat"); host.replaceChildren();
  if (!heat.rows.length) { html("p", { class: "empty" }, host, "No replicated queue was sampled in this span."); return; }
  const width = Math.max(320, host.clientWidth), cell = heat.rows.length > 20 ? 14 : 22, top = 2, bottom = top + heat.rows.length * cell, height = bottom + 22;
  const canvas = html("canvas", {}, host), ratio = devicePixelRatio || 1, g = canvas.getContext("2d");
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px"; g.scale(ratio, ratio);
  const stops = stopsOf(), ink = css("--ink"), soft = css("--soft");
  g.font = "12px system-ui, 'DejaVu Sans', sans-serif"; g.textBaseline = "middle";
  heat.rows.forEach((row, r) => {
    const y = top + r * cell, silent = new Set(row.silent), room = left() - 10;
    let name = row.queue; while (g.measureText(name).width > room && name.length > 2) name = name.slice(0, -2) + "…";
    g.fillStyle = ink; g.fillText(name, 0, y + cell / 2);
    row.worst_ms.forEach((value, i) => {
      if (value === null) return;
      const x1 = xOf(Math.max(from, heat.start_ms + i * heat.step_ms), width), x2 = xOf(Math.min(to, heat.start_ms + (i + 1) * heat.step_ms), width);
      g.fillStyle = shade(value, stops); g.fillRect(x1, y, Math.max(0.6, x2 - x1 + 0.25), cell - 1);
      if (silent.has(i)) { g.fillStyle = dark() ? "rgba(0,0,0,.55)" : "rgba(255,255,255,.75)"; g.fillRect((x1 + x2) / 2 - 1, y + cell / 2 - 1.5, 2, 2); }
    });
  });
  g.fillStyle = soft; g.font = "11px system-ui, 'DejaVu Sans', sans-serif"; g.textAlign = "center";
  const { ticks, step } = tickTimes(from, to, Math.max(5, Math.floor((width - left()) / 75)));
  ticks.forEach((t) => g.fillText(label(t, step), xOf(t, width), bottom + 12));
  g.strokeStyle = ink; g.lineWidth = 1;
  report.failovers.forEach((f) => {
    g.setLineDash(f.kind === "switchover" ? [2, 3] : []); const x = Math.round(xOf(f.at_ms, width)) + 0.5;
    g.beginPath(); g.moveTo(x, top); g.lineTo(x, bottom); g.stroke();
  });
  let at = [0, 0];
  const say = (x, y) => {
    const row = heat.rows[at[0]], value = row.worst_ms[at[1]];
    const state = row.silent.includes(at[1]) ? "\na backup was silent or not connected" : "";
    showTip(`${row.queue}\n${moment(Math.max(from, heat.start_ms + at[1] * heat.step_ms))} UTC\nworst lag ${duration(value)}${state}`, x, y);
  };
  canvas.tabIndex = 0; canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Worst lag of ${heat.rows.length} queues over time. Use the arrow keys to read it cell by cell; the table of worst queues has the figures.`);
  canvas.addEventListener("pointermove", (e) => {
    const box = canvas.getBoundingClientRect();
    const r = Math.floor((e.clientY - box.top - top) / cell), i = Math.floor((tOf(((e.clientX - box.left) / box.width) * width, width) - heat.start_ms) / heat.step_ms);
    if (r < 0 || r >= heat.rows.length || i < 0 || i >= heat.count) return hideTip();
    at = [r, i]; say(e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip); canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (e.key === "Escape") hideTip();
    if (!move) return;
    e.preventDefault();
    at = [clamp(at[0] + move[0], 0, heat.rows.length - 1), clamp(at[1] + move[1], 0, heat.count - 1)];
    const box = canvas.getBoundingClientRect(); say(box.left + xOf(heat.start_ms + at[1] * heat.step_ms, width), box.top + at[0] * cell);
  });
}
function drawScale() {
  const host = byId("scale"); host.replaceChildren();
  if (!heat.rows.length) return;
  html("span", {}, host, "1 ms"); const canvas = html("canvas", { "aria-hidden": "true" }, host); html("span", {}, host, "100 s and more");
  canvas.width = 180; canvas.height = 10; const g = canvas.getContext("2d"), stops = stopsOf();
  for (let x = 0; x < 180; x++) { g.fillStyle = shade(10 ** ((x / 180) * 5), stops); g.fillRect(x, 0, 1, 10); }
}
function drawLegends() {
  const host = byId("legend");
  names.forEach((name, i) => {
    if (!line.backups[name].p99_ms.some((v) => v !== null)) return;
    const button = html("button", { type: "button", "aria-pressed": "true" }, host);
    html("span", { class: "key c" + (i % 6) }, button); button.append(name);
    button.addEventListener("click", () => {
      if (hidden.has(name)) hidden.delete(name); else hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      document.querySelectorAll("[data-series]").forEach((g) => g.classList.toggle("off", hidden.has(g.dataset.series)));
    });
  });
  document.querySelectorAll("[data-backup]").forEach((key) => key.classList.add("c" + (names.indexOf(key.dataset.backup) % 6)));
  const used = new Set(["PRIMARY", ...names.flatMap((name) => line.backups[name].status.filter(Boolean))]);
  Object.keys(report.meaning).filter((s) => used.has(s)).forEach((s) => {
    const item = html("span", {}, byId("states")); html("span", { class: "swatch s-" + s }, item); item.append(s.toLowerCase() + ": " + report.meaning[s]);
  });
}
function draw() { drawLag(); drawLanes(); drawHeat(); drawScale(); }
function setTheme(name) { document.documentElement.dataset.theme = name; byId("theme").textContent = name === "dark" ? "Light" : "Dark"; draw(); }
const wanted = new URLSearchParams(location.search).get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
drawLegends();
setTheme(wanted);
byId("theme").addEventListener("click", () => setTheme(dark() ? "light" : "dark"));
let timer = 0;
addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(draw, 80); });
document.documentElement.dataset.drawn = "yes";
})();
