// The page's life: draw the report that it carries; in a page that `qpid-lag dashboard` serves, ask for the next one, which the
// server answers when there is one, and draw what has changed.

const embedded = JSON.parse(byId("report").textContent);
const live = document.documentElement.dataset.live || "";
const state = {
  report: embedded.report,
  tag: embedded.tag || "",
  problem: embedded.problem || "",
  doing: embedded.doing || "",
  refresh_ms: embedded.refresh_ms || 0,
  clock: null,
  lost: "",
  picked: pickFromAddress(location.hash),
  measure: "lag",
  open: new Set(),
  cursor: null,
  opener: null,
};
const report0 = () => state.report || {};

// Colours are the system's, or those that the address asks for, as for a picture.
document.documentElement.dataset.theme = new URLSearchParams(location.search).get("theme") || "auto";

// -- drawing

/** A part of the page; when it cannot be drawn, that is said in its place. */
function part(name, make, report) {
  try {
    return make(report);
  } catch (error) {
    return h(
      "section",
      { key: name, class: "card failed" },
      h("h2", null, name),
      h(
        "p",
        { class: "empty" },
        "This part could not be drawn: the report is not as expected (" + String(error.message || error) + ").",
      ),
    );
  }
}
const PARTS = [
  ["Overview", overview, "whole"],
  ["Lag over time", lagCard, "whole"],
  ["Backups", backupsCard, "whole"],
  ["Objective", sloCard, "half"],
  ["Failovers", failoversCard, "half"],
  ["Queues over time", heatCard, "whole"],
  ["Worst queues", queuesCard, "half"],
  ["Worst hours", hoursCard, "half"],
  ["Comparison", comparisonCard, "whole"],
  ["Events", eventsCard, "half"],
  ["Data quality", qualityCard, "half"],
];
function header(report) {
  return h(
    "header",
    { key: "top", class: "top" },
    h(
      "div",
      { class: "brand" },
      h("p", { class: "kicker" }, "Understudy · replication lag"),
      h("h1", { title: report ? report.cluster : null }, report ? clusterName(report) : "replication lag"),
    ),
    report &&
      h(
        "p",
        { class: "span" },
        h("b", null, spanText(report.from_ms, report.to_ms)),
        h("span", null, `objective ${duration(report.objective_ms)} · made ${day(report.made_ms)} ${clock(report.made_ms)}`),
      ),
    live &&
      h(
        "p",
        { class: "live" + (state.lost || state.problem ? " off" : ""), role: "status" },
        h("span", { class: "pulse", "aria-hidden": "true" }),
        state.lost ? "not connected" : state.problem ? "last summary failed" : "live",
      ),
  );
}
function notices() {
  const said = [];
  if (state.lost)
    said.push(["lost", "The server does not answer", state.lost + (state.report ? " The figures are the last that came." : "")]);
  if (state.problem)
    said.push([
      "problem",
      state.report ? "The last summary failed: these figures are older" : "There is no summary yet",
      state.problem,
    ]);
  return said.map(([key, title, text]) =>
    h("div", { key, class: "notice", role: "alert" }, sign("warn"), h("p", null, h("b", null, title), h("span", null, text))),
  );
}
function waiting() {
  return h(
    "section",
    { key: "waiting", class: "card waiting", "aria-busy": "true" },
    h("h2", null, state.problem ? "Waiting for telemetry" : "Spark makes the first summary"),
    h(
      "p",
      { class: "hint" },
      state.problem
        ? "This page tries again by itself."
        : "That takes some ten seconds, and longer for much data. This page shows it when it is there.",
    ),
    state.doing && h("p", { key: "doing", class: "doing", role: "status" }, "Now: " + state.doing + " …"),
    h("div", { class: "ghost", "aria-hidden": "true" }),
  );
}
/** The parts that this report has. Those that take half the width stand in pairs; one without a neighbour takes all of it. */
function placed(report) {
  const made = PARTS.map(([name, make, width]) => ({ node: part(name, make, report), width })).filter((one) => one.node);
  for (let i = 0; i + 1 < made.length; i++) {
    if (made[i].width !== "half" || made[i + 1].width !== "half") continue;
    for (const one of [made[i], made[++i]]) one.node.props.class += " half";
  }
  return made.map((one) => one.node);
}
function body() {
  const report = state.report;
  const parts = report ? placed(report) : [waiting()];
  return [
    part("Head", header, report),
    h(
      "div",
      { key: "page", class: "page" + (state.picked && report ? " with-detail" : "") },
      h("main", { id: "main", tabindex: "-1" }, notices(), parts),
      report && part("Details", detail, report),
    ),
  ];
}
function redraw() {
  const root = byId("root"),
    begin = performance.now();
  charts.clear();
  patch(root, body());
  if (measure()) {
    charts.clear();
    patch(root, body());
  }
  showCursors();
  document.title = state.report
    ? (state.lost || state.problem ? "! " : "") +
      part("t", (r) => `${canLose(r).title}: ${verdict(r)[0]}`, state.report) +
      " · " +
      clusterName(state.report)
    : "Replication lag";
  document.documentElement.dataset.drawn = "yes";
  document.documentElement.dataset.height = String(document.documentElement.scrollHeight);
  document.documentElement.dataset.drawMs = (performance.now() - begin).toFixed(1);
}
/** Learn how wide the pictures are. True when one has changed. */
function measure() {
  let changed = false;
  for (const host of document.querySelectorAll("[data-chart]")) {
    const width = Math.floor(host.clientWidth);
    if (width && widths.get(host.dataset.chart) !== width) {
      widths.set(host.dataset.chart, width);
      changed = true;
    }
  }
  return changed;
}
let pending = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(redraw);
});
addEventListener("popstate", () => {
  state.picked = pickFromAddress(location.hash);
  redraw();
});
addEventListener("hashchange", () => {
  const asked = pickFromAddress(location.hash);
  if (!samePick(asked, state.picked)) {
    state.picked = asked;
    redraw();
  }
});
addEventListener("keydown", (e) => {
  if (e.key !== "Escape") return;
  if (!byId("tip").hidden) {
    hideTip();
    return;
  }
  if (state.picked) pick(null);
});

// -- the next report

const RETRY_MS = 2000;
/** The server's time, which each answer tells: the clock of this machine may be wrong. */
function learnTime(answer) {
  state.clock = { ms: Date.parse(answer.headers.get("date")) || Date.now(), came: performance.now() };
}
async function ask() {
  const method = state.clock ? "GET" : "HEAD"; // the first request only asks for the time, and is answered at once
  const address = live + "?after=" + encodeURIComponent(state.tag);
  const answer = await fetch(address, { method, cache: "no-store", credentials: "omit" });
  if (answer.ok || answer.status === 304) learnTime(answer);
  if (answer.status === 304 || answer.status === 204) return;
  if (!answer.ok) throw new Error("It answered " + answer.status + ".");
  if (method === "HEAD") return;
  const next = await answer.json();
  state.tag = next.tag;
  state.problem = next.problem || "";
  state.doing = next.doing || "";
  if (next.report) state.report = next.report;
  redraw();
}
async function follow() {
  for (;;) {
    try {
      await ask();
      if (state.lost) {
        state.lost = "";
        redraw();
      }
    } catch (error) {
      if (!state.lost) {
        state.lost = "This page tries again every " + duration(RETRY_MS) + ": was qpid-lag dashboard stopped?";
        redraw();
      }
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

redraw();
if (live) {
  follow();
  setInterval(() => {
    if (!document.hidden) redraw();
  }, 5000); // ages go on
}
