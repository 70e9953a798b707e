// Pictures over one time axis: lines and areas, lanes of states, a map of queues. Each is drawn from the report and a width; each can
// be read step by step with the arrow keys, and Enter shows what was going on at that time.

const charts = new Map(); // id -> how to read the picture: {at, count, timeOf, textOf}
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
const lagTick = (ms) =>
  ({ 0: "0", 100000: "100 s", 10000: "10 s", 1000000: "17 min", 10000000: "2.8 h", 100000000: "28 h", 1000000000: "12 d" })[ms] ||
  duration(ms);

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

/**
 * Lines over time. `series`: [{name, c, values, band?: [low, high], gone?: [status], thin?, dashes?}] on the steps of `grid`
 * ({start_ms, step_ms, count}); `format` writes a value, `tick` one on the axis.
 */
function lines(
  report,
  {
    id,
    label,
    grid,
    series,
    height,
    scale = "linear",
    format,
    tick = format,
    objective = null,
    names = false,
    low = 0,
    hatch = true,
    ticks: wanted,
    left = 58,
    textOf,
  },
) {
  const u = unit(),
    width = widths.get(id) || 0;
  if (!width) return h("div", { key: id, class: "chart", "data-chart": id, style: { "min-height": height * u + "px" } });
  const ends = series.length > 1 ? shortNames(series.filter((s) => !s.nameless).map((s) => s.name)) : null;
  const axis = timeAxis(report, width, { left: left * u, right: (ends ? END_ROOM : 8) * u });
  const named = names ? placeNames(report, axis) : { places: [], rows: 0 };
  const top = (6 + named.rows * 16) * u,
    full = height * u + named.rows * 16 * u,
    bottom = full - 22 * u;
  const at = (i) => axis.x(grid.start_ms + (i + 0.5) * grid.step_ms);
  const all = series.flatMap((s) => [...s.values, ...(s.band ? s.band[1] : [])]);
  const { y, ticks } = scaleOf(scale, all, objective ? objective * 2 : low, bottom, top, wanted);
  const edge = (i) => axis.x(grid.start_ms + i * grid.step_ms);
  const shown = series.filter((s) => !state.hidden.has(s.name));
  const drawn = shown.map((s) =>
    h(
      "g",
      { key: s.name + (s.what || ""), class: "c" + s.c + (s.dim ? " dim" : "") },
      hatch &&
        s.gone &&
        runs(s.gone.map(isGone))
          .filter((run) => run[2])
          .map(([a, b]) => [
            h("rect", { x: edge(a), y: top, width: Math.max(1, edge(b) - edge(a)), height: bottom - top, class: "wash" }),
            h("rect", {
              x: edge(a),
              y: top,
              width: Math.max(1, edge(b) - edge(a)),
              height: bottom - top,
              fill: `url(#${id}-hatch${s.c})`,
            }),
          ]),
      s.band && h("path", { d: bandPath(s.band[0], s.band[1], at, y), class: "band" }),
      h("path", { d: linePath(s.values, at, y), class: "line" + (s.thin ? " thin" : ""), "stroke-dasharray": s.dashes || null }),
    ),
  );
  const labels = ends ? placeEnds(shown, at, y, bottom) : [];
  const colours = [...new Set(shown.map((s) => s.c))];
  charts.set(id, { grid, axis, top, bottom, label, textOf: textOf || ((i) => stepText(series, grid, i, format)) });
  return h(
    "div",
    { key: id, class: "chart", "data-chart": id, ...reader(id) },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${full}`, height: full, "aria-hidden": "true" },
      h(
        "defs",
        null,
        hatch &&
          colours.map((c) =>
            h(
              "pattern",
              {
                key: c,
                id: `${id}-hatch${c}`,
                class: "hatch c" + c,
                width: 7,
                height: 7,
                patternUnits: "userSpaceOnUse",
                patternTransform: `rotate(${45 + 30 * c})`,
              },
              h("path", { d: "M0 0V7" }),
            ),
          ),
      ),
      drawTimeAxis(axis, top, bottom),
      ticks.map((v) => [
        h("line", { x1: axis.left, x2: width - axis.right, y1: y(v), y2: y(v), class: "grid" }),
        h("text", { x: axis.left - 8 * u, y: y(v) + 4 * u, "text-anchor": "end", class: "axis" }, tick(v)),
      ]),
      drawn,
      objective !== null && [
        h("line", { x1: axis.left, x2: width - axis.right, y1: y(objective), y2: y(objective), class: "objective" }),
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
      labels.map((p) =>
        h(
          "text",
          { key: "end" + p.s.name + (p.s.what || ""), x: width - (END_ROOM - 5) * u, y: p.y + 4 * u, class: "end c" + p.s.c },
          ends.get(p.s.name),
        ),
      ),
      drawPicked(report, axis, top, bottom),
      h("line", { class: "cursor", y1: top, y2: bottom }),
    ),
  );
}
function stepText(series, grid, i, format) {
  return series.filter((s) => isNumber(s.values[i])).map((s) => `${s.name}${s.what ? " " + s.what : ""}: ${format(s.values[i])}`);
}
/** The time that the details are about, as a frame. */
function drawPicked(report, axis, top, bottom) {
  const picked = state.picked;
  if (!picked || picked.kind !== "time") return null;
  const x1 = axis.x(picked.from),
    x2 = axis.x(picked.to);
  return h("rect", { x: x1, y: top, width: Math.max(2, x2 - x1), height: bottom - top, class: "picked" });
}

/** How wide the names of brokers are, beside pictures that are wide enough for them; else 0. */
function gutterFor(names, id) {
  const width = widths.get(id) || 0,
    longest = Math.max(8, ...names.map((name) => name.length));
  return width > 640 * unit() ? clamp(longest * 7.2 + 14, 58, 190) : 0;
}
/** Bars of states, a lane a broker. `rows`: [{name, bars: [[from, to, status]]}]. */
function lanes(report, { id, label, rows, grid, textOf, wide: wideEnd = false }) {
  const u = unit(),
    width = widths.get(id) || 0,
    gutter = gutterFor(
      rows.map((row) => row.name),
      id,
    );
  const above = gutter ? 0 : 15 * u,
    high = 18 * u,
    lane = above + high + 7 * u,
    bottom = rows.length * lane,
    full = bottom + 20 * u;
  if (!width) return h("div", { key: id, class: "chart", "data-chart": id, style: { "min-height": full + "px" } });
  const axis = timeAxis(report, width, { left: (gutter || 58) * u, right: (wideEnd ? END_ROOM : 8) * u });
  charts.set(id, { grid, axis, top: 0, bottom, label, textOf });
  return h(
    "div",
    { key: id, class: "chart", "data-chart": id, ...reader(id) },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${full}`, height: full, "aria-hidden": "true" },
      h(
        "defs",
        null,
        h(
          "pattern",
          { id: id + "-silent", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          h("path", { d: "M0 0V6", class: "stripe" }),
        ),
        h(
          "pattern",
          { id: id + "-stopped", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" },
          h("path", { d: "M0 0V7", class: "stripe" }),
        ),
      ),
      drawTimeAxis(axis, 0, bottom),
      rows.map((row, r) => {
        const y = r * lane + above;
        return [
          h(
            "text",
            { x: gutter ? 0 : axis.left, y: gutter ? y + high * 0.7 : y - 4 * u, class: "lane" },
            row.name.length > 24 ? "…" + row.name.slice(-23) : row.name,
          ),
          merged(list(row.bars)).map(([a, b, s]) => {
            const x1 = axis.x(a),
              wide = Math.max(1, axis.x(b) - x1 - 1);
            return [
              h("rect", { x: x1, y, width: wide, height: high, rx: 2.5, class: "seg s-" + s }),
              isGone(s) &&
                h("rect", {
                  x: x1,
                  y,
                  width: wide,
                  height: high,
                  rx: 2.5,
                  fill: `url(#${id}-${s === "SILENT" ? "silent" : "stopped"})`,
                }),
              wide > s.length * 7.6 * u + 10 && h("text", { x: x1 + 6 * u, y: y + high * 0.69, class: "segtext s-" + s }, s),
            ];
          }),
        ];
      }),
      drawFailovers(report, axis, 0, bottom),
      drawPicked(report, axis, 0, bottom),
      h("line", { class: "cursor", y1: 0, y2: bottom }),
    ),
  );
}
/** At most some 400 bars a lane: what is too short to be seen goes to its longer neighbour, but never a state into a better one. */
function merged(bars) {
  if (bars.length <= 400) return bars;
  const rank = Object.keys(report0().meaning || {}),
    kept = [],
    per = Math.ceil(bars.length / 400);
  for (let i = 0; i < bars.length; i += per) {
    const group = bars.slice(i, i + per),
      worst = group.reduce((a, b) => (severity(b[2], rank) > severity(a[2], rank) ? b : a));
    kept.push([group[0][0], group[group.length - 1][1], worst[2]]);
  }
  return kept;
}
const severity = (status, rank) => (status === "PRIMARY" ? -1 : rank.length - rank.indexOf(status));

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
      pickTime(state.cursor);
    },
    onkeydown: (e) => readByKey(id, e),
  };
}
const stepAt = (chart, t) => clamp(Math.floor((t - chart.grid.start_ms) / chart.grid.step_ms), 0, chart.grid.count - 1);
function textAt(chart, i) {
  const t = chart.grid.start_ms + i * chart.grid.step_ms;
  return [moment(Math.max(t, report0().from_ms), report0()) + " UTC", ...chart.textOf(i)];
}
function localX(id, e) {
  const box = document.querySelector(`[data-chart="${id}"]`).getBoundingClientRect();
  return { x: e.clientX - box.left, y: e.clientY - box.top };
}
function hoverAt(id, e) {
  const chart = charts.get(id),
    i = stepAt(chart, chart.axis.time(localX(id, e).x));
  moveTo(id, i, e.clientX, e.clientY);
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
function moveTo(id, i, x, y) {
  const chart = charts.get(id),
    text = textAt(chart, i),
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

// -- the map of queues

const COLD = {
  light: [
    [236, 243, 248],
    [176, 208, 228],
    [92, 150, 190],
  ],
  dark: [
    [24, 37, 51],
    [33, 74, 108],
    [62, 124, 170],
  ],
};
const HOT = {
  light: [
    [250, 205, 130],
    [226, 122, 48],
    [133, 32, 28],
  ],
  dark: [
    [150, 92, 30],
    [226, 128, 52],
    [255, 176, 150],
  ],
};
function mix(stops, f) {
  const at = clamp(f, 0, 1) * (stops.length - 1),
    i = Math.min(stops.length - 2, Math.floor(at)),
    k = at - i;
  return "rgb(" + stops[i].map((v, n) => Math.round(v + (stops[i + 1][n] - v) * k)).join(",") + ")";
}
/** Blue within the objective, orange to dark red over it: safe for colour-blind eyes, and the border means something. */
function shade(ms, objective) {
  const theme = isDark() ? "dark" : "light",
    line = Math.max(1, objective);
  if (ms <= line) return mix(COLD[theme], Math.log(Math.max(1, ms)) / Math.log(Math.max(2, line)));
  return mix(HOT[theme], Math.log(ms / line) / Math.log(300));
}
function heatMap(report) {
  const id = "heat",
    heat = report.heat,
    u = unit(),
    rows = records(heat.rows),
    width = widths.get(id) || 0;
  const cell = Math.round((rows.length > 24 ? 15 : 22) * u),
    longest = highest(rows.map((row) => String(row.queue).length)),
    left = Math.round(clamp((longest * 7.4 + 14) * u, 58 * u, Math.min(width * 0.3, 190 * u))),
    full = rows.length * cell + 22 * u;
  if (!width) return h("div", { key: id, class: "chart", "data-chart": id, style: { height: full + "px" } });
  const axis = timeAxis(report, width, { left, right: 8 * u });
  const say = () => heatText(report, state.cell);
  return h(
    "div",
    {
      key: id,
      class: "chart map",
      "data-chart": id,
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of queues over time",
      "aria-label": `Worst lag of ${rows.length} queues over time. Arrow keys move from cell to cell, Enter shows the queue, T that time.`,
      "aria-describedby": "heat-said",
      style: { height: full + "px" },
      onpointermove: (e) => {
        const found = cellAt(report, axis, cell, e);
        if (!found) {
          hideTip();
          return;
        }
        state.cell = found;
        state.cursor = timeOfCell(heat, found);
        showCursors();
        showTip(say(), e.clientX, e.clientY);
        markCell(report, axis, cell);
      },
      onpointerleave: () => {
        hideTip();
        markCell(report, axis, cell, true);
      },
      onblur: () => {
        hideTip();
        markCell(report, axis, cell, true);
      },
      onclick: (e) => {
        const found = cellAt(report, axis, cell, e);
        if (found) {
          state.cell = found;
          pick({ kind: "queue", name: rows[found[0]].queue });
        } else {
          const t = axis.time(localX(id, e).x);
          if (t >= axis.from) pickTime(t);
        }
      },
      onkeydown: (e) => {
        const move = {
          ArrowLeft: [0, -1],
          ArrowRight: [0, 1],
          ArrowUp: [-1, 0],
          ArrowDown: [1, 0],
          PageUp: [0, -10],
          PageDown: [0, 10],
          Home: [0, -1e6],
          End: [0, 1e6],
        }[e.key];
        const now = state.cell || [0, 0];
        if (e.key === "Enter" || e.key === " ") {
          e.preventDefault();
          pick({ kind: "queue", name: rows[clamp(now[0], 0, rows.length - 1)].queue });
        }
        if (e.key === "t" || e.key === "T") pickTime(timeOfCell(heat, now));
        if (!move || e.altKey || e.ctrlKey || e.metaKey) return;
        e.preventDefault();
        state.cell = [clamp(now[0] + move[0], 0, rows.length - 1), clamp(now[1] + move[1], 0, heat.count - 1)];
        state.cursor = timeOfCell(heat, state.cell);
        showCursors();
        markCell(report, axis, cell);
        patch(byId("heat-said"), [say().join("; ")]);
        const box = e.currentTarget.getBoundingClientRect();
        showTip(say(), box.left + axis.x(state.cursor), box.top + state.cell[0] * cell);
      },
    },
    h("canvas", { "aria-hidden": "true", ref: (canvas) => paintHeat(canvas, report, axis, cell, full) }),
    h("div", { class: "frame", "aria-hidden": "true" }),
    h("p", { id: "heat-said", class: "unseen", "aria-live": "polite" }),
  );
}
const timeOfCell = (heat, [, i]) => heat.start_ms + (i + 0.5) * heat.step_ms;
function cellAt(report, axis, cell, e) {
  const { x, y } = localX("heat", e),
    heat = report.heat,
    r = Math.floor(y / cell),
    i = Math.floor((axis.time(x) - heat.start_ms) / heat.step_ms);
  if (r < 0 || r >= heat.rows.length || i < -1e5 || i >= heat.count) return null;
  return [r, Math.max(0, i)];
}
function heatText(report, [r, i]) {
  const heat = report.heat,
    row = heat.rows[clamp(r, 0, heat.rows.length - 1)],
    at = clamp(i, 0, heat.count - 1),
    t = heat.start_ms + at * heat.step_ms;
  const rows = [
    row.queue,
    moment(Math.max(t, report.from_ms), report) + " UTC, " + duration(heat.step_ms),
    isNumber(row.worst_ms[at]) ? "worst lag " + duration(row.worst_ms[at]) : "not replicated then",
  ];
  if (list(row.silent).includes(at)) rows.push("a backup was silent or not connected");
  return rows;
}
function markCell(report, axis, cell, off) {
  const frame = document.querySelector(".map .frame"),
    heat = report.heat;
  if (!frame) return;
  frame.classList.toggle("on", !off && Boolean(state.cell));
  if (off || !state.cell) return;
  const x1 = axis.x(heat.start_ms + state.cell[1] * heat.step_ms),
    x2 = axis.x(heat.start_ms + (state.cell[1] + 1) * heat.step_ms);
  for (const [name, value] of Object.entries({
    left: x1,
    top: state.cell[0] * cell,
    width: Math.max(3, x2 - x1),
    height: cell - 1,
  }))
    frame.style.setProperty(name, value + "px");
}
function paintHeat(canvas, report, axis, cell, full) {
  const heat = report.heat,
    u = unit(),
    ratio = Math.min(3, devicePixelRatio || 1),
    picked = state.picked;
  const sign = JSON.stringify([axis.width, cell, ratio, isDark(), report.made_ms, report.from_ms, heat.rows.length, picked]);
  if (canvas.drawnFor === sign) return;
  canvas.drawnFor = sign;
  canvas.width = axis.width * ratio;
  canvas.height = full * ratio;
  canvas.style.setProperty("height", full + "px");
  const g = canvas.getContext("2d"),
    style = getComputedStyle(document.documentElement),
    ink = style.getPropertyValue("--ink"),
    soft = style.getPropertyValue("--soft"),
    accent = style.getPropertyValue("--accent");
  g.scale(ratio, ratio);
  g.textBaseline = "middle";
  const font = (px, weight = 400) => {
    g.font = `${weight} ${px * u}px ${getComputedStyle(document.body).fontFamily}`;
  };
  records(heat.rows).forEach((row, r) => {
    const y = r * cell,
      silent = new Set(list(row.silent)),
      chosen = picked && picked.kind === "queue" && picked.name === row.queue;
    font(heat.rows.length > 24 ? 11 : 12.5, chosen ? 700 : 400);
    g.fillStyle = chosen ? accent : ink;
    g.fillText(fitted(g, row.queue, axis.left - 10 * u), 0, y + cell / 2);
    list(row.worst_ms).forEach((value, i) => {
      if (!isNumber(value)) return;
      const x1 = axis.x(heat.start_ms + i * heat.step_ms),
        x2 = axis.x(heat.start_ms + (i + 1) * heat.step_ms),
        wide = Math.max(0.6, x2 - x1 - (x2 - x1 > 5 ? 1 : 0));
      g.fillStyle = shade(value, report.objective_ms);
      g.fillRect(x1, y, wide, cell - 1);
      if (silent.has(i)) {
        g.strokeStyle = isDark() ? "rgba(0,0,0,.6)" : "rgba(255,255,255,.75)";
        g.lineWidth = 1.25;
        g.beginPath();
        g.moveTo(x1 + wide * 0.2, y + cell - 3);
        g.lineTo(x1 + wide * 0.8, y + 2);
        g.stroke();
      }
    });
  });
  font(11);
  g.fillStyle = soft;
  g.textAlign = "center";
  for (const { x, text } of timeTicks(axis))
    if (x > axis.left + 14 && x < axis.width - 16) g.fillText(text, x, heat.rows.length * cell + 12 * u);
  g.strokeStyle = ink;
  g.lineWidth = 1.25;
  for (const f of records(report.failovers).slice(-200)) {
    g.setLineDash(f.kind === "switchover" ? [2, 3] : []);
    const x = Math.round(axis.x(f.at_ms)) + 0.5;
    g.beginPath();
    g.moveTo(x, 0);
    g.lineTo(x, heat.rows.length * cell);
    g.stroke();
  }
  g.setLineDash([]);
  if (picked && picked.kind === "time") {
    g.strokeStyle = accent;
    g.lineWidth = 2;
    g.strokeRect(axis.x(picked.from), 1, Math.max(3, axis.x(picked.to) - axis.x(picked.from)), heat.rows.length * cell - 2);
  }
}
function fitted(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let low = 0,
    high = text.length;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (g.measureText(text.slice(0, mid) + "…").width <= room) low = mid;
    else high = mid - 1;
  }
  return text.slice(0, low) + "…";
}
function heatScale(report) {
  return h(
    "div",
    { class: "legend small", "aria-hidden": "true" },
    h("span", null, "1 ms"),
    h("canvas", {
      width: 200,
      height: 8,
      ref: (canvas) => {
        const g = canvas.getContext("2d"),
          objective = Math.max(1, report.objective_ms);
        for (let x = 0; x < 200; x++) {
          g.fillStyle =
            x < 100 ? shade(objective ** (x / 100), objective) : shade(objective * 300 ** ((x - 99) / 100), objective);
          g.fillRect(x, 0, 1, 8);
        }
      },
    }),
    h("span", null, duration(report.objective_ms * 300) + " and more"),
    h(
      "span",
      { class: "soft" },
      "The colour turns at the objective, " + duration(report.objective_ms) + ". A stroke: a backup was silent or not connected.",
    ),
  );
}
