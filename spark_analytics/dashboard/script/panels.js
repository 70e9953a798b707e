// The parts of the page, each from the report alone. A part that the report does not have is left out; a part that cannot be drawn
// says so, and the others stand.

/** A style that draws in one of the page's named colours. */
const tone = (colour) => ({ "--c": `var(--${colour})` });
const swatch = (colour) => h("span", { class: "swatch", style: tone(colour) });
function badge(status, meaning) {
  const state = String(status).replace(/[^A-Z]/g, "");
  return h("span", { class: "badge s-" + state, style: tone(state), title: (meaning || {})[status] || null }, String(status));
}
const brokers = (report) => Object.keys((report.timeline || {}).backups || {});
const colourOf = (report, name) => Math.max(0, brokers(report).indexOf(name)) % 6;
const backups = (report) => brokers(report).filter((name) => list(report.timeline.backups[name].status).some(Boolean));
const dot = (report, name) => h("span", { class: "key", style: tone("c" + colourOf(report, name)), "aria-hidden": "true" });
const soft = (...text) => h("span", { class: "soft" }, text);
const nothing = (text, good) => h("p", { key: "empty", class: "empty" + (good ? " good" : "") }, text);
const facts = (rows) =>
  h(
    "dl",
    { key: "facts", class: "facts" },
    rows
      .filter(Boolean)
      .map(([name, value, kind]) => h("div", { key: name, class: kind || null }, h("dt", null, name), h("dd", null, value))),
  );

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
/** An hour may begin before the span; its length is that of the part in the span. */
function timeButton(report, row) {
  const from = Math.max(row.start_ms, report.from_ms);
  return opens({ kind: "time", from, to: from + row.length_ms }, [day(row.start_ms).slice(5) + " " + clock(row.start_ms, false)]);
}
const bar = (text, part) =>
  h(
    "span",
    { class: "bar" },
    h("span", { class: "ink", "aria-hidden": "true", style: { width: clamp(part, 0, 1) * 100 + "%" } }),
    h("span", null, text),
  );
const logShare = (value, most) => Math.log10(1 + value) / Math.log10(1 + Math.max(most, 1));
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
  const rows = records(report.backups).filter((row) => !isNoBackup(row.now));
  const good = rows.filter((row) => row.now === "OK");
  const synced = rows.filter((row) => row.in_sync === true && !isGone(row.now));
  return { rows, good, synced };
}
/** How old the newest sample is now: in a page that is kept up to date it goes on ageing, by the server's clock. */
function ageOf(report) {
  const age = Math.max(0, (report.quality || {}).age_ms || 0);
  return live && state.clock ? age + Math.max(0, state.clock.ms + performance.now() - state.clock.came - report.made_ms) : age;
}
const QUIET_MS = 90e3; // a broker finishes a file every 30 s, and a summary takes a while
const isQuiet = (report) => live && ageOf(report) > QUIET_MS + state.refresh_ms + 3 * (report.interval_ms || 1000);
/** What a person asks first, and the answer; the words are the terminal's (jobs/loss.py). */
function canLose(report) {
  if (isQuiet(report))
    return {
      level: "bad",
      word: "Silent",
      title: "Nothing heard for " + duration(ageOf(report)),
      text: "The figures end with the newest telemetry. Is the cluster up, and does telemetry still reach this folder?",
    };
  const loss = report.loss,
    since = loss.since_ms > report.from_ms ? "since " + moment(loss.since_ms, report) : "all through the span";
  return {
    level: { yes: "good", "at risk": "warn", no: "bad" }[loss.answer],
    word: "Can I lose the primary now?",
    title: loss.said,
    text: `${loss.why[0].toUpperCase()}${loss.why.slice(1)} As of ${moment(loss.as_of_ms, report)}, and so ${since}.`,
  };
}
/** How the backups are, and whether they were so all along: a title, and what to say of it. */
function verdict(report) {
  const { rows, good } = standing(report),
    bad = rows.filter((row) => row.now !== "OK"),
    all = records(report.backups);
  if (!rows.length)
    return ["No backup at the end", "Nobody is expected to follow the primary: every record stands on one broker."];
  if (bad.length) {
    const one = (row) =>
      h("span", { key: row.backup, class: "said" }, backupButton(report, row.backup), badge(row.now), soft(report.meaning[row.now]));
    const many = rows.length === 1 ? "1 backup keeps" : `${rows.length} backups keep${good.length === 1 ? "s" : ""}`;
    return [`${good.length} of ${many} up`, bad.slice(0, 4).map(one)];
  }
  const always = all.every((row) => (row.p99_ms || 0) <= report.objective_ms && row.over_share <= 0.01);
  return [
    rows.length === 1 ? "The backup keeps up" : "Every backup keeps up",
    always
      ? "At the end of this span, and within the objective for 99 % of it."
      : "At the end of this span. Before, it was not always so.",
  ];
}
const changeButton = (report, f) =>
  opens({ kind: "time", from: f.at_ms - (f.gap_ms || 0) - 1000, to: f.at_ms + 5000 }, [moment(f.at_ms, report) + " UTC"]);
/** The newest failover and the newest switchover, which is what somebody looks for who comes because of one. */
function lastChanges(report) {
  const changes = records(report.failovers).filter((f) => isNumber(f.at_ms));
  return ["failover", "switchover"].map((kind) => {
    const f = changes.filter((one) => one.kind === kind).pop();
    if (!f) return null;
    return h(
      "p",
      { key: kind, class: "said" },
      h("span", { class: "badge k-" + kind }, "last " + kind),
      changeButton(report, f),
      h("span", null, `to ${f.primary}, ${f.measured ? "" : "about "}${duration(f.gap_ms)} without a primary`),
    );
  });
}
const SIGNS = {
  good: ["M12 1a11 11 0 1 0 0 22a11 11 0 1 0 0-22Z", "M6 12.5l4 4 8-9"],
  warn: ["M12 1.5L23 21.5H1Z", "M12 8v7M12 17.5v.5"],
  bad: ["M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9Z", "M7.5 7.5l9 9M16.5 7.5l-9 9"],
};
function sign(level) {
  const [frame, inside] = SIGNS[level];
  const svg = { key: level, class: "sign", viewBox: "0 0 24 24", "aria-hidden": "true" };
  return h("svg", svg, h("path", { d: frame }), h("path", { d: inside, class: "in" }));
}
/** Rows of name, value, note, and perhaps what kind it is and a share of 1 to be drawn. */
function figuresOf(report) {
  const { rows, synced } = standing(report),
    all = records(report.backups),
    changes = records(report.failovers),
    last = records(report.terms).pop();
  const expected = all.reduce((n, row) => n + row.expected, 0),
    within = expected ? 1 - all.reduce((n, row) => n + row.over_share * row.expected, 0) / expected : null;
  const worst = all.reduce((a, row) => (!a || (row.p99_ms || 0) > (a.p99_ms || 0) ? row : a), null);
  const together = records((report.slo || {}).backups).find((row) => row.backup === null) || {},
    allowed = report.slo && percent(1 - report.slo.target);
  const spent = together.spent > 1;
  return [
    ["Primary", last ? last.primary : "nobody", last ? "epoch " + last.epoch : "", "name"],
    ["In sync", `${synced.length} of ${rows.length}`, "backups at the end", synced.length < rows.length ? "bad" : ""],
    worst && ["Worst p99", duration(worst.p99_ms), worst.backup, worst.p99_ms > report.objective_ms ? "warn" : ""],
    ["Within objective", share(within), "of the time at most " + duration(report.objective_ms), "", within],
    isNumber(together.spent) && [
      "Budget left",
      spent ? "none" : share(1 - together.spent),
      spent ? `${times(together.spent)} the allowed ${allowed} is spent` : `of the ${allowed} that may be over it`,
      spent ? "bad" : "",
      1 - together.spent,
    ],
    [
      "Changes of primary",
      String(changes.length),
      changes.length ? "longest gap " + duration(highest(changes.map((f) => f.gap_ms))) : "none in this span",
    ],
    ["Newest sample", duration(ageOf(report)), live ? "old now" : "old when this was made", isQuiet(report) ? "warn" : ""],
  ].filter(Boolean);
}
function overview(report) {
  const said = canLose(report),
    [title, how] = verdict(report);
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
        h("p", { class: "text" }, said.text),
        h("h3", null, title),
        h("div", { class: "text" }, how),
        h("div", { class: "text" }, lastChanges(report)),
        isNumber(report.dropped_before_ms) &&
          h("p", { class: "text" }, `The stream has dropped what is older than ${day(report.dropped_before_ms)} (UTC).`),
      ),
    ),
    h(
      "dl",
      { class: "figures" },
      figuresOf(report).map(([name, value, note, kind, part]) =>
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

// -- lag and states over time

const lagTick = (ms) =>
  ({ 0: "0", 100000: "100 s", 10000: "10 s", 1000000: "17 min", 10000000: "2.8 h", 100000000: "28 h", 1000000000: "12 d" })[ms] ||
  duration(ms);
/** What the picture over time can show; `series` makes it of the report and a backup's series `s`. */
const MEASURES = {
  lag: {
    title: "Lag",
    hint: (report) =>
      `The line is the 99th percentile of each ${duration(report.timeline.step_ms)}, the band reaches from the median to the worst. ` +
      "Hatched: silent or not connected, and the line is the time since it was last heard.",
    series: (s) => ({
      values: lagValues(s),
      band: [s.p50_ms, s.worst_ms.map((v, i) => (isGone(s.status[i]) ? null : v))],
      gone: s.status,
    }),
    format: duration,
    tick: lagTick,
    objective: true,
  },
  records: {
    title: "Waiting records",
    hint: () => "The most records that a backup had not acknowledged.",
    series: (s) => ({ values: s.max_records, gone: s.status }),
    format: count,
  },
  bytes: {
    title: "Waiting bytes",
    hint: () => "The most bytes that a backup had not acknowledged.",
    series: (s) => ({ values: s.max_bytes, gone: s.status }),
    format: size,
    ticks: [1, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4],
  },
  stalls: {
    title: "Stalls",
    hint: () => "How long an acknowledged index stood still with something to acknowledge.",
    series: (s) => ({ values: s.stall_ms, gone: s.status }),
    format: duration,
    tick: lagTick,
  },
  rates: {
    title: "Rates",
    hint: () => "Batches acknowledged in a second; dashed: committed. A backup catches up while its line is above the dashed one.",
    series: (s) => ({ values: s.ack_rate }),
    beside: (report) => [
      {
        name: "committed",
        c: 9,
        dashes: "5 4",
        nameless: true,
        values: highestOf(backups(report).map((name) => report.timeline.backups[name].commit_rate)),
      },
    ],
    format: perSecond,
    tick: count,
    scale: "linear",
  },
  burn: {
    title: "Burn",
    hint: (report) =>
      `How fast the allowance of ${percent(1 - (report.slo || {}).target)} over the objective was spent, ` +
      "over the hour before: 1 × spends exactly all of it.",
    series: (s, report, name) => ({ values: list((report.slo?.series?.backups?.[name] || {})["1h"]) }),
    format: times,
    scale: "linear",
  },
};
/** p99 as a line; where nobody was heard, the time since. */
const lagValues = (s) => s.p99_ms.map((v, i) => (isGone(s.status[i]) ? Math.max(s.worst_ms[i] || 0, v || 0) : v));
const highestOf = (several) =>
  list(several[0]).map((_, i) =>
    worstIn(
      several.map((values) => list(values)[i]),
      [0, several.length],
    ),
  );
function stepLines(report) {
  const line = report.timeline;
  const primaryAt = (t) => records(report.terms).filter((r) => r.begin_ms <= t).pop();
  return (i) =>
    brokers(report)
      .map((name) => {
        const s = line.backups[name],
          status = s.status[i],
          term = primaryAt(line.start_ms + (i + 1) * line.step_ms);
        if (!status) return term && term.primary === name ? `${name}: primary, epoch ${term.epoch}` : null;
        if (isGone(status)) return `${name}: ${status}, unheard for ${duration(s.silence_ms[i] || s.worst_ms[i])}`;
        return `${name}: ${status}, p50 ${duration(s.p50_ms[i])}, p99 ${duration(s.p99_ms[i])}, worst ${duration(s.worst_ms[i])}`;
      })
      .filter(Boolean);
}
function lagCard(report) {
  const line = report.timeline,
    measure = MEASURES[state.measure],
    picked = state.picked && state.picked.kind === "backup" ? state.picked.name : null;
  const own = backups(report).map((name) => ({
    name,
    c: colourOf(report, name),
    dim: picked && picked !== name,
    ...measure.series(line.backups[name], report, name),
  }));
  const series = own.filter((s) => s.values.some(isNumber)).concat(measure.beside ? measure.beside(report) : []);
  const used = new Set(Object.values(report.lanes || {}).flatMap((bars) => bars.map((one) => one[2])));
  const textOf = stepLines(report);
  const choice = (name) =>
    h(
      "button",
      {
        key: name,
        type: "button",
        "aria-pressed": String(state.measure === name),
        onclick: () => {
          state.measure = name;
          redraw();
        },
      },
      MEASURES[name].title,
    );
  return card(
    "lag",
    "Lag over time",
    measure.hint(report),
    h(
      "div",
      { key: "choices", class: "legend" },
      h("div", { class: "choices", role: "group", "aria-label": "What is shown" }, Object.keys(MEASURES).map(choice)),
      own.map((s) => backupButton(report, s.name)),
    ),
    series.length
      ? lines(report, {
          ...measure,
          id: "lag",
          label: `${measure.title} of ${own.length} backups over time, with ${records(report.failovers).length} changes of primary.`,
          grid: line,
          series,
          height: isNarrow() ? 250 : 310,
          objective: measure.objective ? report.objective_ms : null,
          names: true,
          left: gutterFor(brokers(report), "lag") || 58,
          textOf: state.measure === "lag" ? textOf : null,
        })
      : nothing(own.length ? "Nothing is known of it in this span." : "No backup was expected in this span."),
    h("h3", { key: "states" }, "States"),
    lanes(report, {
      id: "lanes",
      label: "State of each broker over time.",
      grid: line,
      rows: brokers(report)
        .slice(0, 24)
        .map((name) => ({ name, bars: list((report.lanes || {})[name]) })),
      textOf,
      wide: own.length > 1,
    }),
    h(
      "div",
      { key: "legend-states", class: "legend small" },
      Object.keys(report.meaning || {})
        .filter((s) => used.has(s))
        .map((s) => h("span", { key: s }, swatch(s), h("b", null, s.toLowerCase()), report.meaning[s])),
    ),
    behind("lag", measure.title + " and state of each backup over time", (caption) =>
      table(
        caption,
        ["From (UTC)", ...own.map((s) => s.name)],
        thinned(line.count).map((span) => [
          moment(line.start_ms + span[0] * line.step_ms, report),
          ...own.map((s) => {
            const seen = line.backups[s.name].status.slice(...span).filter(Boolean);
            return seen.length ? `${worstStatus(seen)} ${measure.format(worstIn(s.values, span))}` : "–";
          }),
        ]),
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
        levelAgain(row),
      ]),
    ),
  );
}
/** When it will be level, as people say it. */
function levelAgain(row) {
  if (isNoBackup(row.now)) return "–";
  if (isNumber(row.forecast_ms)) return "in " + duration(row.forecast_ms);
  if (!(row.backlog > 0)) return "nothing waits";
  return row.now === "OK" ? "keeps up" : "never at this rate";
}

// -- the objective

const ALERTS = { fast: "14.4 × over 1 h and 5 min", slow: "6 × over 6 h and 1 h", steady: "1 × over 3 d and 6 h" };
function sloCard(report) {
  const slo = report.slo;
  if (!slo) return null;
  const rows = records(slo.backups),
    names = { "5m": "5 min", "1h": "1 h", "6h": "6 h", "3d": "3 d" },
    budgeted = rows.some((row) => isNumber(row.spent));
  const alerts = (row) =>
    list(row.alerts).length
      ? row.alerts.map((alert) => h("span", { key: alert, class: "badge alert", title: ALERTS[alert] }, alert + " burn"))
      : soft("none");
  return card(
    "slo",
    "Objective",
    `${percent(slo.target)} of the time within ${duration(report.objective_ms)}. ` +
      (budgeted
        ? `A burn rate of 1 × spends exactly the allowance of ${duration(slo.budget_ms)} a backup in this span.`
        : "The span is too short for a budget: a restart of some seconds would spend all of it."),
    table(
      "Burn rates at the end of the span",
      ["Backup", ">Over", ...(budgeted ? [">Budget spent"] : []), ...Object.values(names).map((name) => ">" + name), "Alerts"],
      rows.map((row) => [
        row.backup === null ? "all together" : backupButton(report, row.backup),
        duration(row.over_ms),
        ...(budgeted ? [row.spent > 1 ? times(row.spent) : share(row.spent)] : []),
        ...Object.keys(names).map((name) => times((row.rates || {})[name])),
        alerts(row),
      ]),
    ),
  );
}

// -- queues

function heatCard(report) {
  const heat = report.heat;
  if (!heat || !records(heat.rows).length)
    return card("heat", "Queues over time", null, nothing("No replicated queue was sampled in this span."));
  const all = heat.queues_in_all.toLocaleString("en"),
    which = heat.queues_in_all > heat.rows.length ? `the worst ${heat.rows.length} of ${all} queues` : `all ${all} queues`;
  return card(
    "heat",
    "Queues over time",
    `Worst lag of any backup: ${which}, in steps of ${duration(heat.step_ms)}. ` +
      "Click a row to see the queue, or the times below it to see that time.",
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
            bar(duration(row.worst_ms), logShare(row.worst_ms, most)),
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
const HOURS_SHOWN = 24;
function hoursCard(report) {
  if (!report.worst_hours) return null;
  const hours = records(report.worst_hours).filter((row) => row.queue === null);
  return card(
    "hours",
    "Worst hours",
    "Hours in which a backup was over the objective, the worst first. A queue's own are told when it is picked.",
    hours.length ? hourTable(report, hours.slice(0, HOURS_SHOWN)) : nothing("In no hour was a backup over the objective.", true),
  );
}
const hourTable = (report, rows) =>
  table(
    "Worst hours",
    ["Hour (UTC)", "Backup", ">Over objective", ">p99", ">Worst", ">Longest stall"],
    rows.map((row) => [
      timeButton(report, row),
      row.backup,
      share(row.over_share),
      duration(row.p99_ms),
      duration(row.worst_ms),
      duration(row.stall_ms),
    ]),
    { tall: true },
  );

// -- failovers

const PHASES = [
  ["detection_ms", "noticed", "until somebody noticed"],
  ["decision_ms", "asked for", "until the promotion was asked for"],
  ["promotion_ms", "promoted", "until the new primary served"],
];
const phasesOf = (f) => PHASES.map(([name, text], i) => ({ i, text, ms: f[name] })).filter((p) => isNumber(p.ms) && p.ms >= 0);
/** How long each phase was, as a strip; what nobody told is its rest. */
function failoverBar(f, most) {
  const phases = phasesOf(f),
    sum = phases.reduce((n, p) => n + p.ms, 0),
    whole = Math.max(sum, f.gap_ms || 0, 1);
  const parts = [...phases, { i: 3, text: "not reported", ms: whole - sum }].filter((p) => p.ms > 0);
  return h(
    "div",
    { class: "strip", "aria-hidden": "true", style: { width: Math.max(12, (whole / most) * 100) + "%" } },
    parts.map((p) => {
      const room = { "flex-grow": String(Math.max(p.ms, whole * 0.02)) };
      return h("span", { key: p.i, class: "phase", style: { ...tone("p" + p.i), ...room } });
    }),
  );
}
/** All that is known of one, in words. */
function storyOf(f) {
  const away = records(f.peers).filter((peer) => peer.connected === false);
  return [
    ...phasesOf(f).map((p) => `${p.text} ${p.i === 0 ? "after" : "+"} ${duration(p.ms)}`),
    isNumber(f.recovery_ms) && (f.recovery_ms > 0 ? "all level after " + duration(f.recovery_ms) : "all level at once"),
    f.detail,
    f.lost_records > 0 && count(f.lost_records) + " records lost",
    isNumber(f.unreplicated_records) && count(f.unreplicated_records) + " records not yet on its peers",
    away.length > 0 && listNames(away.map((peer) => peer.backup)) + " away",
  ].filter(Boolean);
}
const FAILOVERS_SHOWN = 40;
function failoversCard(report) {
  const all = records(report.failovers),
    title = "Failovers and switchovers";
  if (!all.length) return card("failovers", title, null, nothing("The primary did not change in this span.", true));
  const shown = all.slice(-FAILOVERS_SHOWN).reverse(),
    most = highest(shown.map((f) => f.gap_ms), 1);
  const item = (f) =>
    h(
      "li",
      { key: f.epoch + "-" + f.at_ms },
      h(
        "div",
        { class: "what" },
        h("span", { class: "badge k-" + f.kind }, f.kind),
        changeButton(report, f),
        soft("epoch " + f.epoch),
      ),
      h("div", null, f.previous, soft(" → "), h("b", null, f.primary)),
      h(
        "div",
        { class: "gap", title: f.measured ? "measured by the new primary" : "estimated from the samples" },
        h("b", null, (f.measured ? "" : "≈ ") + duration(f.gap_ms)),
        soft(" without a primary"),
      ),
      failoverBar(f, most),
      h("p", { class: "soft note" }, storyOf(f).join(" · ")),
    );
  return card(
    "failovers",
    title,
    `${all.length > shown.length ? `The newest ${shown.length} of ${all.length}. ` : ""}From the old primary's end to the new one serving.`,
    h("ol", { key: "list", class: "failovers" }, shown.map(item)),
    h(
      "div",
      { key: "phases", class: "legend small" },
      [...PHASES, ["", "", "not reported"]].map(([, , text], i) => h("span", { key: i }, swatch("p" + i), text)),
    ),
  );
}

// -- comparison, events, data

const COMPARED = [
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
function comparisonCard(report) {
  const c = report.comparison;
  if (!c) return null;
  const cell = (row, [column, , format]) => {
    const before = row.before[column],
      after = row.after[column];
    if (!isNumber(before) && !isNumber(after)) return "–";
    if (!isNumber(before) || !isNumber(after)) return `${format(before)} → ${format(after)}`; // nothing to compare with
    const [way, sign] = before === after ? ["same", "="] : after > before ? ["worse", "▲"] : ["better", "▼"];
    return h("span", { class: "change " + way }, soft(format(before) + " → "), h("b", null, format(after)), ` ${sign} ${way}`);
  };
  return card(
    "comparison",
    "Compared with before",
    `Before: ${spanText(c.from_ms, c.to_ms)}.`,
    table(
      "Compared with the span before",
      ["Backup", ...COMPARED.map(([, name]) => ">" + name)],
      [{ ...c.all, backup: null }, ...records(c.backups)].map((row) => [
        row.backup === null ? "all together" : backupButton(report, row.backup),
        ...COMPARED.map((column) => cell(row, column)),
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
      [e.to ? `${e.from || ""} → ${e.to}` : "", e.detail || "", e.lost_records ? count(e.lost_records) + " lines" : ""]
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
  const q = report.quality || {},
    drops = q.drops || {},
    clean = !q.bad && !q.holes && !drops.lines && !q.unreadable_files;
  const figures = [
    ["Lines read", q.lines],
    ["Files", q.files],
    ["Samples used", q.samples_used],
    ["Kept aside as unreadable", q.bad, "warn"],
    ["Repeated, counted once", q.repeated],
    ["Numbered but missing", q.holes, "warn"],
    ["Came late", q.late],
    ["Senders could not write", drops.lines, "warn"],
    ["Files not finished yet", q.unfinished_files],
    ["Files that could not be read", q.unreadable_files, "warn"],
    ["Lines of other clusters", q.other_clusters],
  ];
  const reasons = [
    ...Object.entries(q.problems || {}).map(([reason, n]) => ["kept aside", reason, count(n)]),
    ...Object.entries(drops.reasons || {}).map(([reason, n]) => ["not written", reason, count(n)]),
  ];
  const clocks = records(q.clocks);
  return card(
    "quality",
    "Data quality",
    clean
      ? "Nothing was unreadable, and nothing is missing."
      : "What could not be used is counted here, and was left out of every figure above.",
    facts(figures.filter(([, n]) => isNumber(n)).map(([name, n, kind]) => [name, Math.round(n).toLocaleString("en"), n ? kind : null])),
    reasons.length > 0 && table("Lines that are missing", ["Lines", "Why", ">How many"], reasons),
    clocks.length > 0 &&
      table(
        "Clocks",
        ["Clock of", "Compared with", ">Ahead by", ">Comparisons"],
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
          q.examples.map((e, i) => h("li", { key: i }, h("b", null, e.problem), " ", h("code", null, e.text))),
        ),
      ),
  );
}
