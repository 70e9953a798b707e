// What somebody has picked, and the panel that tells more of it: a backup, a queue, or a time. The pick stands in the address, so
// that it can be sent to somebody, and the browser's way back closes it.

const samePick = (a, b) => Boolean(a && b && a.kind === b.kind && a.name === b.name && a.from === b.from && a.to === b.to);
function pickFromAddress(hash) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  for (const kind of ["backup", "queue"]) if (asked.get(kind)) return { kind, name: asked.get(kind) };
  const from = Number(asked.get("from")),
    to = Number(asked.get("to"));
  return asked.get("from") && isNumber(from) && isNumber(to) && to > from ? { kind: "time", from, to } : null;
}
function addressOf(what) {
  if (!what) return "#";
  return (
    "#" +
    new URLSearchParams(
      what.kind === "time" ? { from: Math.round(what.from), to: Math.round(what.to) } : { [what.kind]: what.name },
    )
  );
}
/** Show more of something, or nothing more (null). The panel takes the focus; closing gives it back. */
function pick(what) {
  if (samePick(what, state.picked)) return;
  const active = document.activeElement;
  if (what && !(active && active.closest("#detail"))) state.opener = active && active.closest("[data-pick], [data-chart]");
  state.picked = what;
  history.pushState(null, "", addressOf(what));
  redraw();
  if (what) {
    const head = byId("h-detail");
    if (head) head.focus({ preventScroll: innerWidth >= 1200 });
    return;
  }
  const opener = state.opener && state.opener.isConnected ? state.opener : null;
  if (opener) opener.focus({ preventScroll: true });
}
/** The step of the map around a moment: a time that is worth a look. */
function pickTime(t) {
  const report = report0(),
    grid = report.heat && report.heat.count ? report.heat : report.timeline;
  const from = grid.start_ms + Math.floor((t - grid.start_ms) / grid.step_ms) * grid.step_ms;
  pick({ kind: "time", from: Math.max(from, report.from_ms), to: Math.min(from + grid.step_ms, report.to_ms) });
}

function detail(report) {
  const what = state.picked;
  if (!what) return null;
  const [title, sub, body] = { backup: backupDetail, queue: queueDetail, time: timeDetail }[what.kind](report, what);
  return h(
    "aside",
    { key: "detail", id: "detail", "aria-labelledby": "h-detail" },
    h(
      "header",
      null,
      h(
        "div",
        null,
        h("p", { class: "kicker" }, { backup: "Backup", queue: "Queue", time: "Time" }[what.kind]),
        h("h2", { id: "h-detail", tabindex: "-1" }, title),
        sub && h("p", { class: "hint" }, sub),
      ),
      h(
        "button",
        { type: "button", class: "close", "aria-label": "Close details", title: "Close (Esc)", onclick: () => pick(null) },
        "×",
      ),
    ),
    h("div", { class: "body" }, body),
  );
}
const FACTS = [
  ["p50", "p50_ms", duration],
  ["p99", "p99_ms", duration],
  ["Worst", "worst_ms", duration],
  ["Over objective", "over_share", share],
  ["Longest stall", "stall_ms", duration],
  ["Longest silence", "silence_ms", duration],
  ["Most records", "max_records", count],
  ["Most bytes", "max_bytes", size],
];
const figuresIn = (row) => FACTS.map(([name, column, format]) => [name, format(row[column])]);
const lagLines = (report, options) =>
  lines(report, { format: duration, tick: lagTick, objective: report.objective_ms, height: 180, ...options });

function backupDetail(report, { name }) {
  const row = records(report.backups).find((one) => one.backup === name),
    s = ((report.timeline || {}).backups || {})[name];
  if (!row || !s) return [name, null, nothing("There is no such backup in this report.")];
  const c = colourOf(report, name);
  const mine = records(report.detail && report.detail.rows)
    .filter((one) => one.backup === name)
    .map((one) => ({ queue: one.queue, p99: highest(list(one.p99_ms)), worst: highest(list(one.worst_ms)) }))
    .sort((a, b) => b.worst - a.worst || b.p99 - a.p99)
    .slice(0, 10);
  return [
    name,
    h("span", null, badge(row.now, report.meaning), " ", (report.meaning || {})[row.now] || ""),
    [
      facts([
        ...figuresIn(row),
        ["Level again", levelAgain(row)],
        ["Until a full copy", row.headroom_bytes === null ? "–" : size(row.headroom_bytes)],
      ]),
      h("h3", { key: "h1" }, "Lag"),
      lagLines(report, {
        id: "d-lag",
        label: `Lag of ${name}: worst, p99 and median.`,
        grid: report.timeline,
        series: [
          { name: "worst", c, values: s.worst_ms, gone: s.status, thin: true, dashes: "2 3" },
          { name: "p99", c, values: lagValues(s) },
          { name: "p50", c, values: s.p50_ms, thin: true },
        ],
      }),
      table(
        "Time in each state",
        ["State", ">How long", ">Share"],
        timeInStates(report, s).map(([status, ms, part]) => [badge(status, report.meaning), duration(ms), share(part)]),
      ),
      mine.length > 0 && [
        h("h3", { key: "h4" }, "Its worst queues"),
        table(
          "Worst queues of " + name,
          ["Queue", ">p99", ">Worst"],
          mine.map((one) => [queueButton(one.queue), duration(one.p99), duration(one.worst)]),
        ),
      ],
      about(report, (e) => e.broker === name || e.sender === name),
    ],
  ];
}
function timeInStates(report, s) {
  const sums = new Map(),
    all = s.status.filter(Boolean);
  for (const status of all) sums.set(status, (sums.get(status) || 0) + 1);
  return [...sums].sort((a, b) => b[1] - a[1]).map(([status, n]) => [status, n * report.timeline.step_ms, n / all.length]);
}
function about(report, test) {
  const events = eventRows(report, records(report.events).filter(test)).slice(0, 30);
  return (
    events.length > 0 && [
      h("h3", { key: "he" }, "Events"),
      table("Events about it, newest first", EVENT_HEADS.slice(0, 5), events.map((row) => row.slice(0, 5)), { tall: true }),
    ]
  );
}

function queueDetail(report, { name }) {
  const whole = records(report.queues).find((one) => one.queue === name),
    grid = report.detail,
    each = records(grid && grid.rows).filter((one) => one.queue === name);
  if (!whole && !each.length)
    return [name, null, nothing("There is no such queue in this report: only the worst ones have one of their own.")];
  const statusOf = (one) => [...one.status].map((letter) => grid.letters[letter] || null),
    hours = records(report.worst_hours).filter((row) => row.queue === name);
  const lane = (one) =>
    runs(statusOf(one))
      .filter((run) => run[2])
      .map(([a, b, s]) => [grid.start_ms + a * grid.step_ms, grid.start_ms + b * grid.step_ms, s]);
  return [
    name,
    whole ? `Worst backup: ${whole.backup}.` : null,
    [
      whole && facts(figuresIn(whole)),
      each.length > 0 && [
        h("h3", { key: "h1" }, "Worst lag by backup"),
        lagLines(report, {
          id: "d-queue",
          label: `Worst lag of queue ${name}.`,
          grid,
          series: each.map((one) => ({
            name: one.backup,
            c: colourOf(report, one.backup),
            values: list(one.worst_ms),
            gone: statusOf(one),
          })),
        }),
        h("h3", { key: "h2" }, "States"),
        lanes(report, {
          id: "d-lanes",
          label: `States of the backups of queue ${name}.`,
          grid,
          textOf: (i) => each.map((one) => `${one.backup}: ${statusOf(one)[i] || "–"}`),
          rows: each.map((one) => ({ name: one.backup, bars: lane(one) })),
        }),
        table(
          "Backups of queue " + name,
          ["Backup", ">p50", ">p99", ">Worst"],
          each.map((one) => [
            backupButton(report, one.backup),
            ...["p50_ms", "p99_ms", "worst_ms"].map((column) => duration(highest(list(one[column])))),
          ]),
        ),
      ],
      hours.length > 0 && [h("h3", { key: "h3" }, "Its worst hours"), hourTable(report, hours.slice(0, 8))],
    ],
  ];
}

/** The report moves on, and links to a time stay: nothing is told of a time, or of a part of it, that is not in the report. */
const isOutside = (report, { from, to }) => to <= report.from_ms || from >= report.to_ms;
function timeDetail(report, picked) {
  if (isOutside(report, picked)) {
    const said = `This report is of ${spanText(report.from_ms, report.to_ms)} only: that time is not in it.`;
    return [spanText(picked.from, picked.to), null, nothing(said)];
  }
  const from = Math.max(picked.from, report.from_ms),
    to = Math.min(picked.to, report.to_ms);
  const line = report.timeline,
    span = (grid) => [
      clamp(Math.floor((from - grid.start_ms) / grid.step_ms), 0, grid.count - 1),
      clamp(Math.ceil((to - grid.start_ms) / grid.step_ms), 1, grid.count),
    ];
  const [a, b] = span(line),
    length = picked.to - picked.from;
  const at = records(report.terms)
    .filter((r) => r.begin_ms < to && r.end_ms >= from)
    .map((r) => `${r.primary} (epoch ${r.epoch})`);
  const rows = brokers(report)
    .map((name) => {
      const s = line.backups[name],
        seen = s.status.slice(a, b).filter(Boolean);
      return seen.length
        ? [
            backupButton(report, name),
            badge(worstStatus(seen), report.meaning),
            duration(worstIn(s.p50_ms, [a, b])),
            duration(worstIn(s.p99_ms, [a, b])),
            duration(worstIn(s.worst_ms, [a, b])),
            count(worstIn(s.max_records, [a, b])),
          ]
        : null;
    })
    .filter(Boolean);
  const heat = report.heat || {},
    worst = records(heat.rows)
      .map((row) => ({ queue: row.queue, worst: worstIn(row.worst_ms, span(heat)) }))
      .filter((row) => row.worst !== null)
      .sort((x, y) => y.worst - x.worst)
      .slice(0, 12);
  const move = (way) => () => {
    const next = { kind: "time", from: picked.from + way * length, to: picked.to + way * length };
    if (!isOutside(report, next)) pick(next);
  };
  return [
    `${moment(from, report)} – ${clock(to)}`,
    `${day(from)} UTC, ${duration(to - from)}. ${at.length ? "Primary: " + listNames(at) + "." : "Nobody was primary."}`,
    [
      h(
        "p",
        { key: "move", class: "move" },
        h("button", { type: "button", onclick: move(-1), disabled: from <= report.from_ms || null }, "← Earlier"),
        h("button", { type: "button", onclick: move(1), disabled: to >= report.to_ms || null }, "Later →"),
      ),
      rows.length
        ? table("Backups at that time", ["Backup", "Status", ">p50", ">p99", ">Worst", ">Records"], rows)
        : nothing("No backup was expected then."),
      worst.length > 0 && [
        h("h3", { key: "h1" }, "Queues, worst first"),
        table(
          "Queues at that time",
          ["Queue", ">Worst lag"],
          worst.map((row) => [
            queueButton(row.queue),
            bar(duration(row.worst), logShare(row.worst, worst[0].worst)),
          ]),
        ),
      ],
      about(report, (e) => e.ts_ms >= from - 1 && e.ts_ms < to),
    ],
  ];
}
