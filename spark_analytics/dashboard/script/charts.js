// Pictures over one time axis: lines and areas, lanes of states, a map of queues. Each is drawn from the report and a width; each can
// be read step by step with the arrow keys, and Enter shows what was going on at that time.

const charts = new Map(); // id -> how to read the picture: {grid, axis, top, bottom, label, textOf, whatAt?}
const widths = new Map(); // id -> CSS pixels
const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
const isNarrow = () => innerWidth < 720;

/** The axis of a picture that is `width` wide. */
function timeAxis(report, width, { left, right }) {
  const from = report.from_ms,
    to = Math.max(report.to_ms, from + 1),
    room = Math.max(10, width - left - right);
  return {
    from,
    to,
    left,
    right,
    width,
    x: (t) => left + ((clamp(t, from, to) - from) / (to - from)) * room,
    time: (x) => from + ((x - left) / room) * (to - from),
  };
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
function timeTicks(axis) {
  const apart = axis.width > 640 * unit() ? 84 : 58;
  const wanted = Math.max(4, Math.floor((axis.width - axis.left - axis.right) / (apart * unit())));
  const step = STEPS_S.map((s) => s * 1e3).find((s) => (axis.to - axis.from) / s <= wanted) || (axis.to - axis.from) / wanted;
  const ticks = [];
  for (let t = Math.ceil(axis.from / step) * step; t <= axis.to && ticks.length < 60; t += step) ticks.push(t);
  return ticks.map((t) => {
    const midnight = t % 864e5 === 0;
    return {
      t,
      x: axis.x(t),
      text: step >= 864e5 || (midnight && axis.to - axis.from > 864e5) ? day(t).slice(5) : clock(t, step < 6e4),
    };
  });
}
function drawTimeAxis(axis, top, bottom) {
  const u = unit(),
    low = axis.left + 14 * u,
    high = axis.width - axis.right - 10 * u;
  return timeTicks(axis).map(({ x, text }) => [
    h("line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" }),
    x > low && x < high && h("text", { x, y: bottom + 15 * u, "text-anchor": "middle", class: "axis" }, text),
  ]);
}
function drawFailovers(report, axis, top, bottom) {
  return records(report.failovers)
    .slice(-200)
    .map((f) => {
      const x = axis.x(f.at_ms);
      return h("line", { x1: x, x2: x, y1: top, y2: bottom, class: "mark " + (f.kind === "switchover" ? "planned" : "") });
    });
}
/** Names of the failovers above a picture, in as many rows as they need (three at most, the rest go unnamed). */
function placeNames(report, axis) {
  const ends = [],
    u = unit();
  const places = records(report.failovers)
    .slice(-60)
    .map((f) => {
      const text = f.kind + " " + (f.measured ? "" : "≈ ") + duration(f.gap_ms),
        room = text.length * 7.6 * u,
        x = axis.x(f.at_ms);
      const flip = x + room > axis.width,
        start = flip ? x - room : x;
      let row = ends.findIndex((end) => start > end + 10);
      if (row < 0 && ends.length < 3) row = ends.push(0) - 1;
      if (row < 0) return null;
      ends[row] = start + room;
      return { x, row, flip, text };
    });
  return { places: places.filter(Boolean), rows: ends.length };
}

/** Stretches of equal values: [begin, end, value]. */
function runs(values) {
  const found = [];
  values.forEach((value, i) => {
    const last = found[found.length - 1];
    if (last && last[1] === i && last[2] === value) last[1] = i + 1;
    else found.push([i, i + 1, value]);
  });
  return found;
}

function scaleOf(kind, values, low, bottom, top, wanted) {
  if (kind === "linear") {
    const most = niceAbove(highest(values, low));
    return { y: (v) => bottom - (clamp(v, 0, most) / most) * (bottom - top), ticks: [0, 1, 2, 3, 4].map((i) => (most * i) / 4) };
  }
  const high = Math.max(2, Math.ceil(Math.log10(Math.max(low, highest(values))) * 2) / 2),
    floor = -1,
    zero = bottom - 12 * unit();
  const y = (v) => (v <= 0 ? bottom - 3 : clamp(zero - ((Math.log10(v) - floor) / (high - floor)) * (zero - top), top, zero));
  const apart = high > 6 ? 2 : 1,
    ticks = wanted ? wanted.filter((v) => Math.log10(v) <= high) : [];
  if (!wanted) for (let power = 0; power <= high; power += apart) ticks.push(10 ** power);
  return { y, ticks: [0, ...ticks] };
}
function niceAbove(x) {
  if (x <= 0) return 4;
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 4, 5, 8, 10].map((n) => n * power).find((n) => n >= x) || 10 * power;
}
function linePath(values, x, y) {
  let d = "",
    pen = false;
  values.forEach((v, i) => {
    if (!isNumber(v)) {
      pen = false;
      return;
    }
    d += (pen ? "L" : "M") + x(i).toFixed(1) + " " + y(v).toFixed(1);
    pen = true;
  });
  return d;
}
/** The area between two lines, stretch by stretch. */
function bandPath(low, above, x, y) {
  let d = "",
    begin = -1;
  for (let i = 0; i <= above.length; i++) {
    const there = i < above.length && isNumber(above[i]) && isNumber(low[i]);
    if (there && begin < 0) begin = i;
    if (!there && begin >= 0) {
      for (let k = begin; k < i; k++) d += (k === begin ? "M" : "L") + x(k).toFixed(1) + " " + y(above[k]).toFixed(1);
      for (let k = i - 1; k >= begin; k--) d += "L" + x(k).toFixed(1) + " " + y(low[k]).toFixed(1);
      d += "Z";
      begin = -1;
    }
  }
  return d;
}

const END_ROOM = 58;
/** Names of brokers as short as they can be told apart: their ports, or their hosts. */
function shortNames(names) {
  const parts = names.map((name) => name.split(/:(?=[^:]*$)/)),
    differ = (list) => new Set(list).size === new Set(names).size;
  const ports = parts.map((part) => ":" + (part[1] || part[0])),
    hosts = parts.map((part) => (/^[\d.]+$/.test(part[0]) ? part[0].replace(/.*(?=\.)/, "") : part[0].split(".")[0]));
  const chosen = differ(hosts) ? hosts : differ(ports) ? ports : names;
  return new Map(names.map((name, i) => [name, chosen[i].length > 7 ? "…" + chosen[i].slice(-6) : chosen[i]]));
}
/** A name at the end of each line, so that colours need not be told apart; pushed apart where lines end together. */
function placeEnds(series, at, y, bottom) {
  const room = 12 * unit();
  const places = series
    .filter((s) => !s.nameless)
    .map((s) => {
      let last = s.values.length - 1;
      while (last >= 0 && !isNumber(s.values[last])) last--;
      return last < 0 || last < s.values.length * 0.9 ? null : { s, x: at(last), y: y(s.values[last]) };
    })
    .filter(Boolean)
    .sort((a, b) => a.y - b.y);
  for (let i = 1; i < places.length; i++) places[i].y = Math.max(places[i].y, places[i - 1].y + room);
  const beyond = places.length ? places[places.length - 1].y - bottom : 0;
  if (beyond > 0) places.forEach((place) => (place.y -= beyond));
  return places;
}

/** A picture that is not drawn yet, for its width is not known; and one that is. */
const empty = (id, height) => h("div", { key: id, class: "chart", "data-chart": id, style: { "min-height": height + "px" } });
function picture(id, width, height, chart, ...drawn) {
  charts.set(id, chart);
  return h(
    "div",
    { key: id, class: "chart", "data-chart": id, ...reader(id) },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
      drawn,
      drawPicked(chart.axis, chart.top, chart.bottom),
      h("line", { class: "cursor", y1: chart.top, y2: chart.bottom }),
    ),
  );
}
const hatching = (id, kind, angle, colour) =>
  h(
    "pattern",
    {
      key: id,
      id,
      class: kind,
      style: tone(colour),
      width: 7,
      height: 7,
      patternUnits: "userSpaceOnUse",
      patternTransform: `rotate(${angle})`,
    },
    h("path", { d: "M0 0V7" }),
  );

/**
 * Lines over time. `series`: [{name, c, values, band?: [low, high], gone?: [status], thin?, dashes?}] on the steps of `grid`
 * ({start_ms, step_ms, count}); `format` writes a value, `tick` one on the axis.
 */
function lines(report, options) {
  const { id, label, grid, series, height, scale = "log", format, tick = format, objective = null, names = false } = options;
  const u = unit(),
    width = widths.get(id) || 0;
  if (!width) return empty(id, height * u);
  const ends = series.length > 1 ? shortNames(series.filter((s) => !s.nameless).map((s) => s.name)) : null;
  const axis = timeAxis(report, width, { left: (options.left || 58) * u, right: (ends ? END_ROOM : 8) * u });
  const named = names ? placeNames(report, axis) : { places: [], rows: 0 };
  const top = (6 + named.rows * 16) * u,
    full = height * u + named.rows * 16 * u,
    bottom = full - 22 * u;
  const edge = (i) => axis.x(grid.start_ms + i * grid.step_ms),
    at = (i) => edge(i + 0.5);
  const all = series.flatMap((s) => [...s.values, ...(s.band ? s.band[1] : [])]);
  const { y, ticks } = scaleOf(scale, all, objective ? objective * 2 : 2, bottom, top, options.ticks);
  const silence = (s) =>
    runs(list(s.gone).map(isGone))
      .filter((run) => run[2])
      .map(([a, b]) => {
        const place = { x: edge(a), y: top, width: Math.max(1, edge(b) - edge(a)), height: bottom - top };
        return [h("rect", { ...place, class: "wash" }), h("rect", { ...place, fill: `url(#${id}-hatch${s.c})` })];
      });
  const drawn = series.map((s) =>
    h(
      "g",
      { key: s.name + (s.what || ""), class: s.dim ? "dim" : null, style: tone("c" + s.c) },
      silence(s),
      s.band && h("path", { d: bandPath(s.band[0], s.band[1], at, y), class: "band" }),
      h("path", { d: linePath(s.values, at, y), class: "line" + (s.thin ? " thin" : ""), "stroke-dasharray": s.dashes || null }),
    ),
  );
  const textOf = options.textOf || ((i) => stepText(series, i, format));
  const across = { x1: axis.left, x2: width - axis.right };
  return picture(
    id,
    width,
    full,
    { grid, axis, top, bottom, label, textOf },
    h(
      "defs",
      null,
      [...new Set(series.filter((s) => s.gone).map((s) => s.c))].map((c) =>
        hatching(`${id}-hatch${c}`, "hatch", 45 + 30 * c, "c" + c),
      ),
    ),
    drawTimeAxis(axis, top, bottom),
    ticks.map((v) => [
      h("line", { ...across, y1: y(v), y2: y(v), class: "grid" }),
      h("text", { x: axis.left - 8 * u, y: y(v) + 4 * u, "text-anchor": "end", class: "axis" }, tick(v)),
    ]),
    drawn,
    objective !== null && [
      h("line", { ...across, y1: y(objective), y2: y(objective), class: "objective" }),
      h(
        "text",
        { x: width - axis.right - 4, y: y(objective) - 5 * u, "text-anchor": "end", class: "axis halo" },
        "objective " + duration(objective),
      ),
    ],
    drawFailovers(report, axis, named.rows ? (named.rows * 16 - 10) * u : top, bottom),
    named.places.map((p) =>
      h(
        "text",
        { x: p.x + (p.flip ? -5 : 5) * u, y: (p.row * 16 + 11) * u, "text-anchor": p.flip ? "end" : "start", class: "event" },
        p.text,
      ),
    ),
    (ends ? placeEnds(series, at, y, bottom) : []).map((p) =>
      h(
        "text",
        {
          key: "end" + p.s.name + (p.s.what || ""),
          x: width - (END_ROOM - 5) * u,
          y: p.y + 4 * u,
          class: "end",
          style: tone("c" + p.s.c),
        },
        ends.get(p.s.name),
      ),
    ),
  );
}
function stepText(series, i, format) {
  return series.filter((s) => isNumber(s.values[i])).map((s) => `${s.name}${s.what ? " " + s.what : ""}: ${format(s.values[i])}`);
}
/** The time that the details are about, as a frame. */
function drawPicked(axis, top, bottom) {
  const picked = state.picked;
  if (!picked || picked.kind !== "time" || isOutside(report0(), picked)) return null;
  const x1 = axis.x(picked.from),
    x2 = axis.x(picked.to);
  return h("rect", { x: x1, y: top, width: Math.max(2, x2 - x1), height: bottom - top, class: "picked" });
}

/** How wide the names are, beside pictures that are wide enough for them; else 0. */
function gutterFor(names, id) {
  const width = widths.get(id) || 0,
    longest = Math.max(8, ...names.map((name) => name.length));
  return width > 640 * unit() ? clamp(longest * 7.2 + 14, 58, 190) : 0;
}
const shortened = (name) => (name.length > 24 ? "…" + name.slice(-23) : name);
/** Bars of states, a lane a broker. `rows`: [{name, bars: [[from, to, status]]}]. */
function lanes(report, { id, label, rows, grid, textOf, wide: wideEnd = false }) {
  const u = unit(),
    width = widths.get(id) || 0,
    gutter = gutterFor(rows.map((row) => row.name), id);
  const above = gutter ? 0 : 15 * u,
    high = 18 * u,
    lane = above + high + 7 * u,
    bottom = rows.length * lane,
    full = bottom + 20 * u;
  if (!width) return empty(id, full);
  const axis = timeAxis(report, width, { left: (gutter || 58) * u, right: (wideEnd ? END_ROOM : 8) * u });
  const bar = (y, [a, b, s]) => {
    const x = axis.x(a),
      place = { x, y, width: Math.max(1, axis.x(b) - x - 1), height: high, rx: 2.5 };
    return [
      h("rect", { ...place, class: "seg s-" + s, style: tone(s) }),
      isGone(s) && h("rect", { ...place, fill: `url(#${id}-${s === "SILENT" ? "silent" : "stopped"})` }),
      place.width > s.length * 7.6 * u + 10 &&
        h("text", { x: x + 6 * u, y: y + high * 0.69, class: "segtext s-" + s, style: tone(s) }, s),
    ];
  };
  return picture(
    id,
    width,
    full,
    { grid, axis, top: 0, bottom, label, textOf },
    h("defs", null, hatching(id + "-silent", "stripe", 45), hatching(id + "-stopped", "stripe", -45)),
    drawTimeAxis(axis, 0, bottom),
    rows.map((row, r) => {
      const y = r * lane + above;
      return [
        h("text", { x: gutter ? 0 : axis.left, y: gutter ? y + high * 0.7 : y - 4 * u, class: "lane" }, shortened(row.name)),
        merged(list(row.bars)).map((one) => bar(y, one)),
      ];
    }),
    drawFailovers(report, axis, 0, bottom),
  );
}
/** At most some 400 bars a lane: what is too short to be seen goes to its longer neighbour, but never a state into a better one. */
function merged(bars) {
  if (bars.length <= 400) return bars;
  const per = Math.ceil(bars.length / 400),
    kept = [];
  for (let i = 0; i < bars.length; i += per) {
    const group = bars.slice(i, i + per);
    kept.push([group[0][0], group[group.length - 1][1], worstStatus(group.map((bar) => bar[2]))]);
  }
  return kept;
}
const severity = (status) => {
  const rank = Object.keys(report0().meaning || {});
  return status === "PRIMARY" ? -1 : rank.length - rank.indexOf(status);
};
const worstStatus = (statuses) => statuses.reduce((a, b) => (severity(b) > severity(a) ? b : a));

// -- the map of queues

const SHADES = [0.01, 0.1, 1 / 3, 1, 3, 10, 60, Infinity];
/** Which of the map's colours a lag has: four blues within the objective, four from yellow to dark red over it. */
const short = (x) => x.toFixed(1);
const shadeOf = (ms, objective) => SHADES.findIndex((times) => ms <= times * Math.max(1, objective));
/** Queue by time: cells of one colour are one path, so that a map of thousands is light. */
function heatMap(report) {
  const id = "heat",
    heat = report.heat,
    u = unit(),
    rows = records(heat.rows),
    width = widths.get(id) || 0,
    cell = Math.round((rows.length > 24 ? 15 : 22) * u),
    bottom = rows.length * cell;
  if (!width) return empty(id, bottom + 22 * u);
  const left = clamp(highest(rows.map((row) => String(row.queue).length)) * 7.4 + 14, 58, Math.min((width / u) * 0.3, 190)) * u;
  const axis = timeAxis(report, width, { left, right: 8 * u });
  const cells = SHADES.map(() => ""),
    edge = (i) => axis.x(heat.start_ms + i * heat.step_ms);
  let strokes = "";
  rows.forEach((row, r) => {
    const silent = new Set(list(row.silent));
    list(row.worst_ms).forEach((ms, i) => {
      if (!isNumber(ms)) return;
      const x = edge(i),
        y = r * cell,
        step = edge(i + 1) - x,
        wide = Math.max(0.6, step > 5 ? step - 1 : step);
      cells[shadeOf(ms, report.objective_ms)] += `M${short(x)} ${y}h${short(wide)}v${cell - 1}h-${short(wide)}z`;
      if (silent.has(i)) strokes += `M${short(x + wide * 0.2)} ${y + cell - 3}L${short(x + wide * 0.8)} ${y + 2}`;
    });
  });
  const rowAt = (y) => rows[Math.floor(y / cell)];
  const chosen = (row) => samePick({ kind: "queue", name: row.queue }, state.picked);
  return picture(
    id,
    width,
    bottom + 22 * u,
    {
      grid: heat,
      axis,
      top: 0,
      bottom,
      label: `Worst lag of ${rows.length} queues over time.`,
      textOf: (i, y) => heatText(heat, i, y === undefined ? null : rowAt(y)),
      whatAt: (y) => rowAt(y) && { kind: "queue", name: rowAt(y).queue },
    },
    drawTimeAxis(axis, 0, bottom),
    rows.map((row, r) =>
      h(
        "text",
        { x: 0, y: (r + 0.5) * cell + 4 * u, class: "lane" + (chosen(row) ? " chosen" : "") },
        shortened(String(row.queue)),
      ),
    ),
    cells.map((d, i) => h("path", { d, class: "cell", style: tone("h" + i) })),
    h("path", { d: strokes, class: "strokes" }),
    drawFailovers(report, axis, 0, bottom),
  );
}
/** Of one queue, or of the worst few, in a step. */
function heatText(heat, i, row) {
  const of = row ? [row] : [...records(heat.rows)].sort((a, b) => (b.worst_ms[i] || 0) - (a.worst_ms[i] || 0)).slice(0, 5);
  return of.map(
    (one) =>
      `${one.queue}: ` +
      (isNumber(one.worst_ms[i]) ? duration(one.worst_ms[i]) : "not replicated then") +
      (list(one.silent).includes(i) ? ", a backup silent or not connected" : ""),
  );
}
function heatScale(report) {
  const objective = Math.max(1, report.objective_ms),
    upTo = (times, i) => (times === Infinity ? "more" : (i ? "" : "up to ") + duration(times * objective));
  return h(
    "div",
    { key: "scale", class: "legend small" },
    SHADES.map((times, i) => h("span", { key: i }, swatch("h" + i), upTo(times, i))),
    h(
      "span",
      { key: "said" },
      `The colour turns at the objective, ${duration(report.objective_ms)}. A stroke: a backup was silent or not connected.`,
    ),
  );
}

/** What makes a picture readable by pointer and by keys: it is a slider over its steps. */
function reader(id) {
  const chart = charts.get(id),
    last = chart.grid.count - 1;
  const at = clamp(state.cursor === null ? last : stepAt(chart, state.cursor), 0, last);
  return {
    tabindex: "0",
    role: "slider",
    "aria-label": chart.label + " Arrow keys read it step by step, Enter shows that time.",
    "aria-valuemin": "0",
    "aria-valuemax": String(last),
    "aria-valuenow": String(at),
    "aria-valuetext": textAt(chart, at).join("; "),
    onpointermove: (e) => {
      if (e.pointerType !== "touch" || e.buttons) hoverAt(id, e);
    },
    onpointerleave: hideTip,
    onblur: hideTip,
    onclick: (e) => {
      hoverAt(id, e);
      const { y } = localPlace(id, e),
        what = chart.whatAt && chart.whatAt(y);
      if (what) pick(what);
      else pickTime(state.cursor);
    },
    onkeydown: (e) => readByKey(id, e),
  };
}
const stepAt = (chart, t) => clamp(Math.floor((t - chart.grid.start_ms) / chart.grid.step_ms), 0, chart.grid.count - 1);
function textAt(chart, i, y) {
  const t = chart.grid.start_ms + i * chart.grid.step_ms;
  return [moment(Math.max(t, report0().from_ms), report0()) + " UTC", ...chart.textOf(i, y)];
}
function localPlace(id, e) {
  const box = document.querySelector(`[data-chart="${id}"]`).getBoundingClientRect();
  return { x: e.clientX - box.left, y: e.clientY - box.top };
}
function hoverAt(id, e) {
  const chart = charts.get(id),
    i = stepAt(chart, chart.axis.time(localPlace(id, e).x));
  moveTo(id, i, e.clientX, e.clientY, localPlace(id, e).y);
}
function readByKey(id, e) {
  const chart = charts.get(id),
    move = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[e.key];
  const now = state.cursor === null ? chart.grid.count - 1 : stepAt(chart, state.cursor);
  if (e.key === "Enter" || e.key === " ") {
    e.preventDefault();
    pickTime(chart.grid.start_ms + (now + 0.5) * chart.grid.step_ms);
    return;
  }
  if (move === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
  e.preventDefault();
  const i = clamp(now + move, 0, chart.grid.count - 1),
    box = e.currentTarget.getBoundingClientRect();
  moveTo(id, i, box.left + chart.axis.x(chart.grid.start_ms + (i + 0.5) * chart.grid.step_ms), box.top + chart.top + 50);
}
function moveTo(id, i, x, y, within) {
  const chart = charts.get(id),
    text = textAt(chart, i, within),
    host = document.querySelector(`[data-chart="${id}"]`);
  state.cursor = chart.grid.start_ms + (i + 0.5) * chart.grid.step_ms;
  host.setAttribute("aria-valuenow", String(i));
  host.setAttribute("aria-valuetext", text.join("; "));
  showCursors();
  showTip(text, x, y);
}
function showCursors() {
  for (const [id, chart] of charts) {
    const cursor = document.querySelector(`[data-chart="${id}"] .cursor`);
    if (!cursor) continue;
    const x = state.cursor === null ? -10 : chart.axis.x(state.cursor);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.classList.toggle("on", state.cursor !== null);
  }
}
function showTip(rows, x, y) {
  const tip = byId("tip");
  patch(
    tip,
    rows.map((row, i) => h(i ? "span" : "b", { key: i }, row)),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left =
    clamp(x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16, 4, Math.max(4, innerWidth - box.width - 4)) + "px";
  tip.style.top = clamp(y - box.height - 12, 4, Math.max(4, innerHeight - box.height - 4)) + "px";
}
function hideTip() {
  byId("tip").hidden = true;
  state.cursor = null;
  showCursors();
}
