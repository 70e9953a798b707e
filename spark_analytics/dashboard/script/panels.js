// The parts of the page, each from the report alone. A part that the report does not have is left out; a part that cannot be drawn
// says so, and the others stand.

const badge = (status, meaning) =>
  h(
    "span",
    { class: "badge s-" + String(status).replace(/[^A-Z]/g, ""), title: (meaning || {})[status] || null },
    String(status),
  );
const colourOf = (report, name) => Math.max(0, brokers(report).indexOf(name)) % 6;
const brokers = (report) => Object.keys((report.timeline || {}).backups || {});
const backups = (report) => brokers(report).filter((name) => list(report.timeline.backups[name].status).some(Boolean));
const dot = (report, name) => h("span", { class: "key c" + colourOf(report, name), "aria-hidden": "true" });

function card(id, title, hint, ...body) {
  return h(
    "section",
    { key: id, class: "card", id: "card-" + id, "aria-labelledby": "h-" + id },
    h("header", null, h("h2", { id: "h-" + id }, title), hint && h("p", { class: "hint" }, hint)),
    body,
  );
}

/** A table in a frame that scrolls by itself. `heads`: names, a leading ">" for figures. Cells are texts or nodes. */
function table(caption, heads, rows, { tall = false, key } = {}) {
  return h(
    "div",
    { key: key || caption, class: "scroll" + (tall ? " tall" : ""), tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          heads.map((head) => h("th", { scope: "col", class: head[0] === ">" ? "num" : null }, head.replace(">", ""))),
        ),
      ),
      h(
        "tbody",
        null,
        rows.map((cells) =>
          h(
            "tr",
            { class: cells.picked ? "chosen" : null },
            cells.map((cell, i) =>
              h(i ? "td" : "th", { scope: i ? null : "row", class: heads[i][0] === ">" ? "num" : null }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}
/** The figures of a picture, made only when somebody opens them. */
function behind(id, caption, make) {
  const open = state.open.has(id);
  return h(
    "details",
    {
      key: id + "-table",
      class: "behind",
      open: open || null,
      ontoggle: (e) => {
        if (e.currentTarget.open !== state.open.has(id)) {
          state.open[e.currentTarget.open ? "add" : "delete"](id);
          redraw();
        }
      },
    },
    h("summary", null, "As a table"),
    open && make(caption),
  );
}
function opens(what, text, key) {
  const chosen = samePick(what, state.picked);
  return h(
    "button",
    {
      key,
      type: "button",
      class: "open",
      "data-pick": JSON.stringify(what),
      "aria-pressed": String(chosen),
      onclick: () => pick(chosen ? null : what),
    },
    text,
  );
}
const backupButton = (report, name) => opens({ kind: "backup", name }, [dot(report, name), h("span", null, name)]);
const queueButton = (name) => opens({ kind: "queue", name }, [name]);
/** At most so many rows of a series in a table: the worst of each group stands for it. */
function thinned(n, most = 120) {
  const per = Math.ceil(n / most);
  return Array.from({ length: Math.ceil(n / per) }, (_, i) => [i * per, Math.min(n, (i + 1) * per)]);
}
const worstIn = (values, [a, b]) => {
  const piece = list(values).slice(a, b).filter(isNumber);
  return piece.length ? Math.max(...piece) : null;
};

// -- overview

function standing(report) {
  const rows = records(report.backups).filter((row) => row.now !== "PRIMARY");
  const good = rows.filter((row) => row.now === "OK");
  const synced = rows.filter((row) => row.in_sync === true && !isGone(row.now));
  return { rows, good, synced };
}
/** How old the newest sample is now: in a page that is kept up to date it goes on ageing. */
function ageOf(report) {
  const age = Math.max(0, (report.quality || {}).age_ms || 0);
  return live ? age + Math.max(0, Date.now() - report.made_ms) : age;
}
const QUIET_MS = 90e3; // a broker finishes a file every 30 s, and a summary takes a while
/** What of it a person asks first; the words are the terminal's (jobs/loss.py). */
function canLose(report) {
  const loss = report.loss;
  if (!loss) return null;
  const since = loss.since_ms > report.from_ms ? "since " + moment(loss.since_ms, report) : "all through the span";
  const level = { yes: "good", "at risk": "warn", no: "bad" }[loss.answer];
  const why = loss.why[0].toUpperCase() + loss.why.slice(1);
  return { level, word: "Can I lose the primary now?", title: loss.said, text: [`${why} As of ${moment(loss.as_of_ms, report)}, and so ${since}.`] };
}
function verdict(report) {
  const { rows, good } = standing(report),
    bad = rows.filter((row) => row.now !== "OK");
  const quiet = live && ageOf(report) > QUIET_MS + 3 * (report.interval_ms || 1000);
  const many = (n) => (n === 1 ? "1 backup" : n + " backups");
  if (quiet)
    return {
      level: "bad",
      word: "Silent",
      title: "Nothing heard for " + duration(ageOf(report)),
      text: ["The figures end with the newest telemetry. Is the cluster up, and does telemetry still reach this folder?"],
    };
  if (!rows.length)
    return {
      level: "warn",
      word: "Alone",
      title: "No backup at the end",
      text: ["Nobody is expected to follow the primary: every record stands on one broker."],
    };
  if (bad.length) {
    const worst = bad.some((row) => isGone(row.now) || row.now === "REWOUND" || row.now === "STALLED");
    return {
      level: worst ? "bad" : "warn",
      word: worst ? "Degraded" : "Behind",
      title: `${good.length} of ${many(rows.length)} keep${good.length === 1 ? "s" : ""} up`,
      text: bad
        .slice(0, 4)
        .map((row) =>
          h(
            "span",
            { key: row.backup, class: "said" },
            backupButton(report, row.backup),
            badge(row.now),
            h("span", { class: "soft" }, (report.meaning || {})[row.now] || ""),
          ),
        ),
    };
  }
  const whole = records(report.backups);
  const always = highest(whole.map((row) => row.p99_ms)) <= report.objective_ms && highest(whole.map((row) => row.over_share)) <= 0.01;
  return {
    level: "good",
    word: "Healthy",
    title: rows.length === 1 ? "The backup keeps up" : "Every backup keeps up",
    text: [
      always
        ? "At the end of this span, and within the objective for 99 % of it."
        : "At the end of this span. Before, it was not always so.",
    ],
  };
}
/** The newest failover and the newest switchover, which is what somebody looks for who comes because of one. */
function lastChanges(report) {
  const changes = records(report.failovers).filter((f) => isNumber(f.at_ms));
  return ["failover", "switchover"].map((kind) => {
    const f = changes.filter((one) => one.kind === kind).pop();
    if (!f) return null;
    const span = { kind: "time", from: f.at_ms - (f.gap_ms || 0) - 1000, to: f.at_ms + 5000 };
    return h(
      "p",
      { key: kind, class: "said" },
      h("span", { class: "badge k-" + kind }, "last " + kind),
      opens(span, [moment(f.at_ms, report)], kind),
      h("span", null, `to ${f.primary}, ${f.measured ? "" : "about "}${duration(f.gap_ms)} without a primary`),
    );
  });
}
const SHAPES = { good: ["M6 12.5l4 4 8-9"], warn: ["M12 6v8", "M12 17.5v.5"], bad: ["M7.5 7.5l9 9", "M16.5 7.5l-9 9"] };
function sign(level) {
  const frame =
    level === "good"
      ? h("circle", { cx: 12, cy: 12, r: 11 })
      : level === "warn"
        ? h("path", { d: "M12 1.5L23 21.5H1Z" })
        : h("path", { d: "M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9Z" });
  return h(
    "svg",
    { key: level, class: "sign", viewBox: "0 0 24 24", "aria-hidden": "true" },
    frame,
    SHAPES[level].map((d) => h("path", { d, class: "in" })),
  );
}
function overview(report) {
  const first = canLose(report),
    state = verdict(report);
  const both = first && [...first.text, h("h3", { key: "state" }, state.title), ...state.text];
  const said = first && state.word !== "Silent" ? { ...first, text: both } : state;
  const { rows, synced } = standing(report),
    all = records(report.backups);
  const last = records(report.terms)[records(report.terms).length - 1];
  const expected = all.reduce((n, row) => n + (row.expected || 0), 0),
    over = all.reduce((n, row) => n + (row.over_share || 0) * (row.expected || 0), 0);
  const worst = all.reduce((a, row) => (!a || (row.p99_ms || 0) > (a.p99_ms || 0) ? row : a), null);
  const together = report.slo && records(report.slo.backups).find((row) => row.backup === null);
  const gap = highest(
      records(report.failovers).map((f) => f.gap_ms),
      -1,
    ),
    age = ageOf(report);
  const figures = [
    ["Primary", last ? last.primary : "nobody", last ? "epoch " + last.epoch : "", "name"],
    [
      "In sync",
      `${synced.length} of ${rows.length}`,
      rows.length ? "backups at the end" : "no backup is expected",
      synced.length < rows.length ? "bad" : "",
    ],
    [
      "Worst p99",
      worst ? duration(worst.p99_ms) : "–",
      worst ? worst.backup : "",
      worst && worst.p99_ms > report.objective_ms ? "warn" : "",
    ],
    [
      "Within objective",
      share(expected ? 1 - over / expected : null),
      "of the time at most " + duration(report.objective_ms),
      "",
      expected ? 1 - over / expected : null,
    ],
    together &&
      isNumber(together.spent) && [
        "Budget left",
        together.spent > 1 ? "none" : share(1 - together.spent),
        together.spent > 1
          ? `${brief(together.spent)} × the allowed ${percent(1 - report.slo.target)} is spent`
          : `of the ${percent(1 - report.slo.target)} that may be over it`,
        together.spent > 1 ? "bad" : "",
        clamp(1 - together.spent, 0, 1),
      ],
    [
      "Changes of primary",
      String(records(report.failovers).length),
      gap >= 0 ? "longest gap " + duration(gap) : "none in this span",
    ],
    ["Newest sample", duration(age), live ? "old now" : "old when this was made", live && age > QUIET_MS ? "warn" : ""],
  ].filter(Boolean);
  return h(
    "section",
    { key: "overview", class: "hero", "aria-labelledby": "h-overview" },
    h(
      "div",
      { class: "verdict " + said.level },
      sign(said.level),
      h(
        "div",
        null,
        h("p", { class: "word" }, said.word),
        h("h2", { id: "h-overview" }, said.title),
        h(
          "div",
          { class: "text" },
          said.text.map((one) => (typeof one === "string" ? h("p", { key: one }, one) : one)),
        ),
        h("div", { class: "text changes" }, lastChanges(report)),
        isNumber(report.dropped_before_ms) &&
          h("p", { class: "text" }, `The stream has dropped what is older than ${day(report.dropped_before_ms)} (UTC).`),
      ),
    ),
    h(
      "dl",
      { class: "figures" },
      figures.map(([name, value, note, kind, part]) =>
        h(
          "div",
          { key: name, class: "figure " + (kind || "") },
          h("dt", null, name),
          h("dd", null, value),
          isNumber(part) &&
            h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: clamp(part, 0, 1) * 100 + "%" } })),
          h("dd", { class: "note" }, note),
        ),
      ),
    ),
  );
}

// -- lag, states

function stepLines(report) {
  const line = report.timeline;
  return (i) =>
    brokers(report)
      .map((name) => {
        const s = line.backups[name],
          status = s.status[i];
        if (!status) {
          const t = line.start_ms + (i + 1) * line.step_ms,
            term = records(report.terms)
              .filter((r) => r.begin_ms <= t)
              .pop();
          return term && term.primary === name ? `${name}: primary, epoch ${term.epoch}` : null;
        }
        return (
          `${name}: ${status}, ` +
          (isGone(status)
            ? "unheard for " + duration(s.silence_ms[i] || s.worst_ms[i])
            : `p50 ${duration(s.p50_ms[i])}, p99 ${duration(s.p99_ms[i])}, worst ${duration(s.worst_ms[i])}`)
        );
      })
      .filter(Boolean);
}
/** p99 as a line; where nobody was heard, the time since. */
const lagValues = (s) => s.p99_ms.map((v, i) => (isGone(s.status[i]) ? Math.max(s.worst_ms[i] || 0, v || 0) : v));
function legend(report, id) {
  return h(
    "div",
    { key: id + "-legend", class: "legend", role: "group", "aria-label": "Backups shown" },
    backups(report).map((name) => {
      const off = state.hidden.has(name);
      return h(
        "span",
        { key: name, class: "chip" + (off ? " off" : "") },
        h(
          "button",
          {
            type: "button",
            class: "eye",
            "aria-pressed": String(!off),
            "aria-label": (off ? "Show " : "Hide ") + name,
            title: off ? "Show it" : "Hide it",
            onclick: () => {
              state.hidden[off ? "delete" : "add"](name);
              redraw();
            },
          },
          dot(report, name),
        ),
        opens({ kind: "backup", name }, [name]),
      );
    }),
  );
}
function lagCard(report) {
  const line = report.timeline,
    chosen = state.picked && state.picked.kind === "backup" ? state.picked.name : null;
  const series = backups(report).map((name) => {
    const s = line.backups[name];
    return {
      name,
      c: colourOf(report, name),
      values: lagValues(s),
      band: [s.p50_ms, s.worst_ms.map((v, i) => (isGone(s.status[i]) ? null : v))],
      gone: s.status,
      dim: chosen && chosen !== name,
    };
  });
  const bars = (name) =>
    report.lanes
      ? list(report.lanes[name])
      : runs(line.backups[name].status)
          .filter((run) => run[2])
          .map(([a, b, s]) => [line.start_ms + a * line.step_ms, line.start_ms + b * line.step_ms, s])
          .concat(
            records(report.terms)
              .filter((r) => r.primary === name)
              .map((r) => [r.begin_ms, Math.min(r.end_ms, r.last_said_ms + report.interval_ms), "PRIMARY"]),
          );
  const used = new Set(brokers(report).flatMap((name) => bars(name).map((bar) => bar[2])));
  const textOf = stepLines(report);
  return card(
    "lag",
    "Lag over time",
    `The line is the 99th percentile of each ${duration(line.step_ms)}, the band reaches from the median to the worst. Hatched: silent or not connected, and the line is the time since it was last heard.`,
    legend(report, "lag"),
    series.length === 0
      ? h("p", { key: "none", class: "empty" }, "No backup was expected in this span.")
      : lines(report, {
          id: "lag",
          label: `Lag of ${series.length} backups over time on a log scale, with ${records(report.failovers).length} changes of primary.`,
          grid: line,
          series,
          height: isNarrow() ? 250 : 310,
          scale: "log",
          format: duration,
          tick: lagTick,
          objective: report.objective_ms,
          names: true,
          left: gutterFor(brokers(report), "lag") || 58,
          textOf,
        }),
    h("h3", { key: "states" }, "States"),
    lanes(report, {
      id: "lanes",
      label: "State of each broker over time.",
      grid: line,
      rows: brokers(report)
        .slice(0, 24)
        .map((name) => ({ name, bars: bars(name) })),
      textOf,
      wide: series.length > 1,
    }),
    h(
      "div",
      { key: "legend-states", class: "legend small" },
      Object.keys(report.meaning || {})
        .filter((s) => used.has(s))
        .map((s) =>
          h("span", { key: s }, h("span", { class: "swatch s-" + s }), h("b", null, s.toLowerCase()), " " + report.meaning[s]),
        ),
    ),
    behind("lag", "Lag and state of each backup over time", (caption) =>
      table(
        caption,
        ["From (UTC)", "Backup", "Status", ">p50", ">p99", ">Worst", ">Records"],
        thinned(line.count, Math.max(20, Math.floor(240 / Math.max(1, series.length)))).flatMap((span) =>
          backups(report)
            .map((name) => {
              const s = line.backups[name],
                seen = s.status.slice(...span).filter(Boolean),
                rank = Object.keys(report.meaning || {});
              if (!seen.length) return null;
              return [
                moment(line.start_ms + span[0] * line.step_ms, report),
                name,
                seen.reduce((a, b) => (severity(b, rank) > severity(a, rank) ? b : a)),
                duration(worstIn(s.p50_ms, span)),
                duration(worstIn(s.p99_ms, span)),
                duration(worstIn(s.worst_ms, span)),
                count(worstIn(s.max_records, span)),
              ];
            })
            .filter(Boolean),
        ),
        { tall: true },
      ),
    ),
  );
}

function backupsCard(report) {
  const m = report.meaning;
  if (!records(report.backups).length) return null;
  return card(
    "backups",
    "Backups",
    "Each backup's whole log over the whole span. Silence counts as lag.",
    table(
      "Each backup over the whole span",
      [
        "Backup",
        "Now",
        ">p50",
        ">p95",
        ">p99",
        ">Worst",
        ">Over objective",
        ">Longest stall",
        ">Longest silence",
        ">Most records",
        ">Most bytes",
        ">Level again",
      ],
      records(report.backups).map((row) => [
        backupButton(report, row.backup),
        badge(row.now, m),
        duration(row.p50_ms),
        duration(row.p95_ms),
        duration(row.p99_ms),
        duration(row.worst_ms),
        share(row.over_share),
        duration(row.stall_ms),
        duration(row.silence_ms),
        count(row.max_records),
        size(row.max_bytes),
        row.now === "PRIMARY" ? "–" : levelAgain(row),
      ]),
    ),
  );
}
/** When it will be level, as people say it. */
function levelAgain(row) {
  if (row.forecast_ms !== undefined)
    return row.forecast_ms === null
      ? row.backlog > 0
        ? row.now === "OK"
          ? "keeps up"
          : "never at this rate"
        : "nothing waits"
      : "in " + duration(row.forecast_ms);
  return row.forecast_s === undefined ? "–" : forecast(row.forecast_s);
}

/** The same beside how much waits. */
function waitingOf(row) {
  if (!(row.backlog > 0)) return "level";
  const again = levelAgain(row);
  const batches = `${count(row.backlog)} ${row.backlog === 1 ? "batch" : "batches"} behind`;
  return again === "keeps up" ? `${batches}, ${again}` : `${batches}, level ${again}`;
}

// -- more pictures over time

function seriesOf(report, column, more = () => ({})) {
  return backups(report)
    .filter((name) => list(report.timeline.backups[name][column]).some(isNumber))
    .map((name) => ({
      name,
      c: colourOf(report, name),
      values: report.timeline.backups[name][column],
      gone: report.timeline.backups[name].status,
      ...more(name),
    }));
}
function small(report, id, title, hint, options, ...more) {
  if (!options.series.length) return null;
  const caption = title + " over time";
  return card(
    id,
    title,
    hint,
    lines(report, { id, label: caption + ".", grid: report.timeline, height: 170, ...options }),
    more,
    behind(id, caption, (text) =>
      table(
        text,
        ["From (UTC)", ...options.series.map((s) => ">" + s.name + (s.what ? " " + s.what : ""))],
        thinned(report.timeline.count, 60).map((span) => [
          moment(report.timeline.start_ms + span[0] * report.timeline.step_ms, report),
          ...options.series.map((s) => options.format(worstIn(s.values, span))),
        ]),
        { tall: true },
      ),
    ),
  );
}
function recordsCard(report) {
  return small(report, "records", "Unreplicated records", "Most records that a backup had not acknowledged, on a log scale.", {
    series: seriesOf(report, "max_records"),
    scale: "log",
    format: count,
    tick: count,
  });
}
function bytesCard(report) {
  return small(report, "bytes", "Unreplicated bytes", "Most bytes that a backup had not acknowledged, on a log scale.", {
    series: seriesOf(report, "max_bytes"),
    scale: "log",
    format: size,
    tick: size,
    ticks: [1, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4],
  });
}
function stallsCard(report) {
  const series = seriesOf(report, "stall_ms");
  if (!series.some((s) => highest(s.values) > 0))
    return series.length
      ? card(
          "stalls",
          "Stalls",
          null,
          h("p", { class: "empty good" }, "Nobody stalled: whatever was sent was acknowledged within a sampling interval."),
        )
      : null;
  return small(
    report,
    "stalls",
    "Stalls",
    "How long an acknowledged index stood still with something to acknowledge, on a log scale.",
    { series, scale: "log", format: duration, tick: lagTick },
  );
}
function ratesCard(report) {
  const acked = seriesOf(report, "ack_rate", () => ({ what: "acknowledged" }));
  if (!acked.length) return null;
  const committed = report.timeline.backups,
    all = Array.from({ length: report.timeline.count }, (_, i) => {
      const rates = backups(report)
        .map((name) => list(committed[name].commit_rate)[i])
        .filter(isNumber);
      return rates.length ? Math.max(...rates) : null;
    });
  const waiting = records(report.backups)
    .filter((row) => row.now !== "PRIMARY")
    .map((row) =>
      h(
        "li",
        { key: row.backup },
        dot(report, row.backup),
        h("span", null, row.backup),
        h("b", null, waitingOf(row)),
      ),
    );
  return small(
    report,
    "rates",
    "Committed and acknowledged",
    "Batches a second; dashed: committed. A backup catches up while its line is above the dashed one.",
    {
      series: [...acked, { name: "cluster", what: "committed", c: 9, values: all, dashes: "5 4", nameless: true }],
      format: perSecond,
      tick: count,
      hatch: false,
    },
    h("ul", { key: "level", class: "plain" }, waiting),
  );
}

// -- the objective

const BURN_LIMITS = { fast: "14.4 × over 1 h and 5 min", slow: "6 × over 6 h and 1 h", steady: "1 × over 3 d and 6 h" };
function sloCard(report) {
  const slo = report.slo;
  if (!slo) return null;
  const rows = records(slo.backups),
    names = ["5m", "1h", "6h", "3d"],
    budgeted = rows.some((row) => isNumber(row.spent)),
    rate = (x) => (isNumber(x) ? brief(x) + " ×" : "–");
  const said = (row) =>
    list(row.alerts).length
      ? list(row.alerts).map((alert) =>
          h("span", { key: alert, class: "badge alert", title: BURN_LIMITS[alert] || "" }, alert + " burn"),
        )
      : h("span", { class: "soft" }, "none");
  const series =
    slo.series && slo.series.backups
      ? Object.entries(slo.series.backups).flatMap(([name, s]) => {
          const column = ["1h", "5m", "6h", "3d"].find((w) => list(s[w]).filter(isNumber).length > 1);
          return column ? [{ name, what: "over " + column, c: colourOf(report, name), values: s[column] }] : [];
        })
      : [];
  return card(
    "slo",
    "Objective",
    `${percent(slo.target)} of the time within ${duration(report.objective_ms)}. ` +
      (budgeted
        ? `A burn rate of 1 × spends exactly the allowance of ${duration(slo.budget_ms)} a backup in this span.`
        : "The span is too short for a budget: a restart of some seconds would spend all of it."),
    budgeted &&
      h(
        "ul",
        { key: "bars", class: "budgets" },
        rows.map((row) =>
          h(
            "li",
            { key: String(row.backup), class: row.spent > 1 ? "over" : null },
            h("span", { class: "who" }, row.backup === null ? "all together" : backupButton(report, row.backup)),
            h(
              "span",
              { class: "meter", "aria-hidden": "true" },
              h("span", { style: { width: clamp(row.spent || 0, 0, 1) * 100 + "%" } }),
            ),
            h("b", null, isNumber(row.spent) ? (row.spent > 1 ? brief(row.spent) + " × spent" : share(row.spent) + " spent") : "–"),
          ),
        ),
      ),
    series.length > 0 &&
      lines(report, {
        id: "burn",
        label: "Burn rates over time.",
        grid: slo.series,
        series,
        height: 130,
        format: rate,
        tick: (v) => brief(v) + " ×",
        scale: "linear",
        low: 2,
      }),
    table(
      "Burn rates at the end of the span",
      ["Backup", ">Over", ...names.map((n) => ">" + n.replace("m", " min").replace("h", " h").replace("d", " d")), "Alerts"],
      rows.map((row) => [
        row.backup === null ? "all together" : row.backup,
        duration(row.over_ms),
        ...names.map((n) => rate((row.rates || {})[n])),
        said(row),
      ]),
    ),
  );
}

// -- queues

function heatCard(report) {
  const heat = report.heat;
  if (!heat || !records(heat.rows).length)
    return card("heat", "Queues over time", null, h("p", { class: "empty" }, "No replicated queue was sampled in this span."));
  const which =
    heat.queues_in_all > heat.rows.length
      ? `the worst ${heat.rows.length} of ${heat.queues_in_all.toLocaleString("en")} queues`
      : heat.rows.length === 1
        ? "the one queue"
        : `all ${heat.rows.length} queues`;
  return card(
    "heat",
    "Queues over time",
    `Worst lag of any backup: ${which}, in steps of ${duration(heat.step_ms)}. Click a row to see the queue, or the times below it to see that time.`,
    heatMap(report),
    heatScale(report),
    behind("heat", "Worst lag of each queue over time", (caption) =>
      table(
        caption,
        ["Queue", ...thinned(heat.count, 24).map(([a]) => ">" + moment(heat.start_ms + a * heat.step_ms, report))],
        heat.rows.map((row) => [
          queueButton(row.queue),
          ...thinned(heat.count, 24).map((span) => duration(worstIn(row.worst_ms, span))),
        ]),
        { tall: true },
      ),
    ),
  );
}
const QUEUES_SHOWN = 50;
function queuesCard(report) {
  const rows = records(report.queues).slice(0, QUEUES_SHOWN),
    most = highest(
      rows.map((row) => row.worst_ms),
      1,
    );
  if (!rows.length) return null;
  return card(
    "queues",
    "Worst queues",
    `Each with its worst backup, by time over the objective${(report.heat || {}).queues_in_all > rows.length ? `; ${rows.length} of ${report.heat.queues_in_all.toLocaleString("en")}` : ""}.`,
    table(
      "Worst queues",
      ["Queue", "Worst backup", ">p50", ">p99", ">Worst", ">Over objective", ">Records"],
      rows.map((row) =>
        Object.assign(
          [
            queueButton(row.queue),
            row.backup,
            duration(row.p50_ms),
            duration(row.p99_ms),
            bar(duration(row.worst_ms), Math.log10(1 + row.worst_ms) / Math.log10(1 + most)),
            share(row.over_share),
            count(row.max_records),
          ],
          { picked: samePick({ kind: "queue", name: row.queue }, state.picked) },
        ),
      ),
      { tall: true },
    ),
  );
}
const bar = (text, part) =>
  h(
    "span",
    { class: "bar" },
    h("span", { class: "ink", "aria-hidden": "true", style: { width: clamp(part, 0, 1) * 100 + "%" } }),
    h("span", null, text),
  );
function hoursCard(report) {
  const rows = records(report.worst_hours);
  if (!report.worst_hours) return null;
  if (!rows.length)
    return card("hours", "Worst hours", null, h("p", { class: "empty good" }, "In no hour was anything over the objective."));
  const whole = rows.filter((row) => row.queue === null).slice(0, 24),
    queues = rows.filter((row) => row.queue !== null).slice(0, 24);
  const line = (row) => [
    opens(
      { kind: "time", from: row.start_ms, to: row.start_ms + row.length_ms },
      [day(row.start_ms).slice(5) + " " + clock(row.start_ms, false)],
      `${row.start_ms}${row.backup}${row.queue}`,
    ),
    row.queue === null ? row.backup : row.queue,
    share(row.over_share),
    duration(row.p99_ms),
    duration(row.worst_ms),
    duration(row.stall_ms),
  ];
  const heads = (what) => ["Hour (UTC)", what, ">Over objective", ">p99", ">Worst", ">Longest stall"];
  return card(
    "hours",
    "Worst hours",
    "Hours in which a backup or queue was over the objective, the worst first.",
    table("Worst hours of backups", heads("Backup"), whole.map(line), { tall: queues.length > 0 }),
    queues.length > 0 && [
      h("h3", { key: "q" }, "By queue"),
      table("Worst hours of queues", heads("Queue"), queues.map(line), { tall: true }),
    ],
  );
}

// -- failovers

const PHASES = [
  ["detection_ms", "noticed"],
  ["decision_ms", "asked for"],
  ["promotion_ms", "promoted"],
];
function phasesOf(f) {
  const known = PHASES.map(([name, text], i) => ({ i, text, ms: f[name] })).filter((p) => isNumber(p.ms) && p.ms >= 0);
  if (known.length) return known;
  if (isNumber(f.detected_ms) && isNumber(f.asked_ms)) {
    const begin = f.at_ms - f.gap_ms;
    return [
      { i: 0, text: "noticed", ms: Math.max(0, f.detected_ms - begin) },
      { i: 1, text: "asked for", ms: Math.max(0, f.asked_ms - f.detected_ms) },
      { i: 2, text: "promoted", ms: Math.max(0, f.at_ms - f.asked_ms) },
    ];
  }
  return [];
}
function failoverBar(f, most) {
  const phases = phasesOf(f),
    sum = phases.reduce((n, p) => n + p.ms, 0),
    whole = Math.max(sum, f.gap_ms || 0, 1);
  return h(
    "div",
    {
      class: "phases",
      role: "img",
      "aria-label": phases.map((p) => `${p.text} after ${duration(p.ms)}`).join(", ") || "no breakdown was reported",
    },
    h(
      "div",
      { class: "strip", style: { width: Math.max(12, (whole / most) * 100) + "%" } },
      phases.map((p) =>
        h("span", {
          key: p.text,
          class: "phase p" + p.i,
          title: `${p.text} after ${duration(p.ms)}`,
          style: { "flex-grow": String(Math.max(p.ms, whole * 0.02)) },
        }),
      ),
      whole > sum &&
        h("span", { key: "rest", class: "phase p3", title: "not reported", style: { "flex-grow": String(whole - sum) } }),
    ),
  );
}
const FAILOVERS_SHOWN = 40;
function failoversCard(report) {
  const all = records(report.failovers);
  if (!all.length)
    return card(
      "failovers",
      "Failovers and switchovers",
      null,
      h("p", { class: "empty good" }, "The primary did not change in this span."),
    );
  const shown = all.slice(-FAILOVERS_SHOWN).reverse(),
    most = highest(
      shown.map((f) =>
        Math.max(
          f.gap_ms || 0,
          phasesOf(f).reduce((n, p) => n + p.ms, 0),
        ),
      ),
      1,
    );
  const awayOf = (f) =>
    records(f.peers)
      .filter((peer) => peer.connected === false)
      .map((peer) => peer.backup)
      .join(" and ");
  const unsafe = (f) =>
    [
      isNumber(f.lost_records) && f.lost_records > 0 ? count(f.lost_records) + " records lost" : "",
      isNumber(f.unreplicated_records) ? count(f.unreplicated_records) + " records not yet on its peers" : "",
      awayOf(f) ? awayOf(f) + " away" : "",
    ]
      .filter(Boolean)
      .join(", ");
  return card(
    "failovers",
    "Failovers and switchovers",
    `${all.length > shown.length ? `The newest ${shown.length} of ${all.length}. ` : ""}From the old primary's end to the new one serving.`,
    h(
      "ol",
      { key: "list", class: "failovers" },
      shown.map((f, i) =>
        h(
          "li",
          { key: f.epoch + "-" + f.at_ms },
          h(
            "div",
            { class: "what" },
            h("span", { class: "badge k-" + (f.kind === "switchover" ? "switchover" : "failover") }, f.kind),
            opens(
              { kind: "time", from: f.at_ms - (f.gap_ms || 0) - 1000, to: f.at_ms + 5000 },
              [moment(f.at_ms, report) + " UTC"],
              "t" + i,
            ),
            h("span", { class: "soft" }, "epoch " + f.epoch),
          ),
          h("div", { class: "who" }, h("span", null, f.previous), h("span", { class: "soft" }, " → "), h("b", null, f.primary)),
          h(
            "div",
            { class: "gap" },
            h(
              "b",
              { title: f.measured ? "measured by the new primary" : "estimated from the samples" },
              (f.measured ? "" : "≈ ") + duration(f.gap_ms),
            ),
            h("span", { class: "soft" }, " without a primary"),
          ),
          failoverBar(f, most),
          h(
            "p",
            { class: "soft note" },
            [
              ...phasesOf(f).map((p) => `${p.text} ${p.i === 0 ? "after" : "+"} ${duration(p.ms)}`),
              isNumber(f.recovery_ms)
                ? f.recovery_ms > 0
                  ? "all level after " + duration(f.recovery_ms)
                  : "all level at once"
                : "",
              f.detail || "",
              unsafe(f),
            ]
              .filter(Boolean)
              .join(" · "),
          ),
        ),
      ),
    ),
    h(
      "div",
      { key: "phases", class: "legend small" },
      [
        ["p0", "until somebody noticed"],
        ["p1", "until the promotion was asked for"],
        ["p2", "until the new primary served"],
        ["p3", "not reported"],
      ].map(([c, text]) => h("span", { key: c }, h("span", { class: "swatch " + c }), text)),
    ),
    behind("failovers", "Failovers and switchovers", (caption) =>
      table(
        caption,
        [
          "When (UTC)",
          "What",
          "From",
          "To",
          "Why",
          ">Epoch",
          ">Gap",
          ">Noticed",
          ">Asked for",
          ">Promoted",
          ">All level",
          ">Records lost",
          ">Not on peers",
          "Away",
        ],
        shown.map((f) => {
          const by = Object.fromEntries(phasesOf(f).map((p) => [p.i, p.ms]));
          return [
            moment(f.at_ms, report),
            f.kind,
            f.previous,
            f.primary,
            f.detail || "–",
            String(f.epoch),
            (f.measured ? "" : "≈ ") + duration(f.gap_ms),
            duration(by[0]),
            duration(by[1]),
            duration(by[2]),
            duration(f.recovery_ms),
            count(f.lost_records),
            count(f.unreplicated_records),
            awayOf(f) || "–",
          ];
        }),
      ),
    ),
  );
}

// -- comparison, events, data

function comparisonCard(report) {
  const c = report.comparison;
  if (!c) return null;
  const rows = [...list(c.all ? [{ ...c.all, backup: null }] : []), ...records(c.backups)],
    columns = [
      ["p50_ms", "p50", duration],
      ["p99_ms", "p99", duration],
      ["worst_ms", "Worst", duration],
      ["over_share", "Over objective", share],
      ["stall_ms", "Longest stall", duration],
      ["silence_ms", "Longest silence", duration],
      ["stalls", "Stalls", count],
      ["silences", "Silences", count],
      ["failovers", "Changes of primary", count],
    ];
  const value = (row, column, when) => (row[when] || {})[column];
  const used = columns.filter(([column]) =>
    rows.some((row) => isNumber(value(row, column, "before")) || isNumber(value(row, column, "after"))),
  );
  const cell = (row, [column, , format]) => {
    const before = value(row, column, "before"),
      after = value(row, column, "after");
    if (!isNumber(before) && !isNumber(after)) return "–";
    const way =
      !isNumber(before) || !isNumber(after) || before === after
        ? ["=", "same"]
        : after > before
          ? ["▲", "worse"]
          : ["▼", "better"];
    return h(
      "span",
      { class: "change " + way[1] },
      h("span", { class: "soft" }, format(before) + " → "),
      h("b", null, format(after)),
      h("span", { class: "way", "aria-hidden": "true" }, " " + way[0]),
      h("span", { class: "unseen" }, " " + way[1]),
    );
  };
  return card(
    "comparison",
    "Compared with before",
    `Before: ${spanText(c.from_ms, c.to_ms)}. ▲ worse, ▼ better, = the same.`,
    table(
      "Compared with the span before",
      ["Backup", ...used.map(([, name]) => ">" + name)],
      rows.map((row) => [
        row.backup === null ? "all together" : backupButton(report, row.backup),
        ...used.map((column) => cell(row, column)),
      ]),
    ),
  );
}
const EVENTS_SHOWN = 200;
function eventRows(report, events) {
  return events
    .slice(-EVENTS_SHOWN)
    .reverse()
    .map((e) => [
      moment(e.ts_ms, report),
      String(e.type).replace(/_/g, " "),
      e.broker || "–",
      e.sender || "–",
      [e.to ? `${e.from || ""} → ${e.to}` : "", e.detail || "", e.lost_records ? count(e.lost_records) + " records" : ""]
        .filter(Boolean)
        .join(" · ") || "–",
      String(e.epoch),
      duration(e.duration_ms),
    ]);
}
const EVENT_HEADS = ["When (UTC)", "Event", "Broker", "Reported by", "Detail", ">Epoch", ">Took"];
function eventsCard(report) {
  const events = records(report.events);
  return card(
    "events",
    "Events",
    events.length > EVENTS_SHOWN ? `The newest ${EVENTS_SHOWN} of ${events.length}.` : null,
    events.length
      ? table("Events, newest first", EVENT_HEADS, eventRows(report, events), { tall: true })
      : h("p", { class: "empty" }, "No event in this span."),
  );
}
function qualityCard(report) {
  const q = report.quality || {};
  const facts = [
    ["Lines read", q.lines],
    ["Files", q.files],
    ["Samples used", q.samples_used],
    ["Kept aside as unreadable", q.bad],
    ["Repeated, counted once", q.repeated],
    ["Numbered but missing", q.holes],
    ["Came late", q.late],
    ["Senders could not write", (q.drops || {}).lines],
    ["Files not finished yet", q.unfinished_files],
    ["Files that could not be read", q.unreadable_files],
    ["Lines of other clusters", q.other_clusters],
  ].filter(([, value]) => isNumber(value));
  const clean = !q.bad && !q.holes && !(q.drops || {}).lines && !q.unreadable_files;
  const problems = Object.entries(q.problems || {}),
    reasons = Object.entries((q.drops || {}).reasons || {}),
    clocks = records(q.clocks);
  return card(
    "quality",
    "Data quality",
    clean
      ? "Nothing was unreadable, and nothing is missing."
      : "What could not be used is counted here, and was left out of every figure above.",
    h(
      "dl",
      { key: "facts", class: "facts" },
      facts.map(([name, value]) =>
        h(
          "div",
          {
            key: name,
            class:
              value &&
              [
                "Kept aside as unreadable",
                "Numbered but missing",
                "Senders could not write",
                "Files that could not be read",
              ].includes(name)
                ? "warn"
                : null,
          },
          h("dt", null, name),
          h("dd", null, Math.round(value).toLocaleString("en")),
        ),
      ),
    ),
    problems.length > 0 &&
      table(
        "Why lines were kept aside",
        ["Problem", ">Lines"],
        problems.map(([problem, n]) => [problem, n.toLocaleString("en")]),
      ),
    reasons.length > 0 &&
      table(
        "Why senders could not write",
        ["Reason", ">Lines"],
        reasons.map(([reason, n]) => [reason, count(n)]),
      ),
    clocks.length > 0 &&
      table(
        "Clocks",
        ["Sender", "Compared with", ">Ahead by", ">Comparisons"],
        clocks.map((c) => [
          c.sender,
          c.against || "–",
          (c.offset_ms < 0 ? "−" : "") + duration(Math.abs(c.offset_ms)),
          count(c.pairs),
        ]),
      ),
    records(q.examples).length > 0 &&
      h(
        "details",
        { key: "examples", class: "behind" },
        h("summary", null, "Examples of lines kept aside"),
        h(
          "ul",
          { class: "examples" },
          q.examples.slice(0, 20).map((e, i) => h("li", { key: i }, h("b", null, e.problem), " ", h("code", null, e.text))),
        ),
      ),
  );
}
