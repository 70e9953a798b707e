// Figures as people write them (the same words as words.py), and a small renderer that changes only what has changed: nodes that
// stay keep their focus, their scroll and the text that somebody has selected in them.

const SVG_NAMES = new Set([
  "svg",
  "g",
  "path",
  "line",
  "rect",
  "circle",
  "text",
  "defs",
  "pattern",
  "title",
  "polygon",
  "clipPath",
]);

/** One node to be: h("p", {class: "x"}, "text", other, [more]). Nothing, false and null are left out. */
function h(tag, props, ...kids) {
  const flat = kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined && kid !== false);
  return { tag, props: props || {}, kids: flat, key: props ? props.key : undefined };
}

/** Make the children of `parent` those of `wanted`. */
function patch(parent, wanted) {
  const keyed = new Map();
  for (const node of parent.childNodes) if (node.ownKey !== undefined) keyed.set(node.ownKey, node);
  let at = parent.firstChild;
  for (const want of wanted) {
    const isText = typeof want !== "object";
    let node = !isText && want.key !== undefined ? keyed.get(want.key) : at;
    const fits = node && (isText ? node.nodeType === 3 : node.ownTag === want.tag && node.ownKey === want.key);
    if (!fits) node = isText ? document.createTextNode("") : create(want);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    if (isText) {
      if (node.data !== String(want)) node.data = String(want);
    } else update(node, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function create(want) {
  const node = SVG_NAMES.has(want.tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", want.tag)
    : document.createElement(want.tag);
  node.ownTag = want.tag;
  node.ownKey = want.key;
  node.ownProps = {};
  return node;
}

function update(node, want) {
  const before = node.ownProps,
    now = want.props;
  for (const name of Object.keys(before)) if (!(name in now)) assign(node, name, null);
  for (const [name, value] of Object.entries(now)) if (before[name] !== value || name === "style") assign(node, name, value);
  node.ownProps = now;
  patch(node, want.kids);
  if (now.ref) now.ref(node);
}

function assign(node, name, value) {
  if (name === "key" || name === "ref") return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "style") {
    for (const key of Object.keys(node.ownProps.style || {})) if (!value || !(key in value)) node.style.removeProperty(key);
    for (const [key, one] of Object.entries(value || {})) node.style.setProperty(key, one);
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const isGone = (status) => status === "SILENT" || status === "STOPPED";
const isNoBackup = (now) => now === "PRIMARY" || now === "REMOVED";
const list = (x) => (Array.isArray(x) ? x : []);
const records = (x) => list(x).filter((one) => one && typeof one === "object");
const listNames = (names) =>
  names.length < 2 ? names.join("") : names.slice(0, -1).join(", ") + " and " + names[names.length - 1];
const highest = (values, start = 0) => values.reduce((most, x) => (isNumber(x) && x > most ? x : most), start);

const brief = (x) => (x >= 9.95 ? x.toFixed(0) : x.toFixed(1).replace(".0", ""));
const MOST_DAYS = 99999; // longer is what no clock measures
function duration(ms) {
  if (!isNumber(ms)) return "–";
  if (ms === 0) return "0";
  for (const [limit, unit, name] of [
    [1e3, 1, "ms"],
    [6e4, 1e3, "s"],
    [36e5, 6e4, "min"],
    [864e5, 36e5, "h"],
  ])
    if (ms < limit) return brief(ms / unit) + " " + name;
  return ms > MOST_DAYS * 864e5 ? "> " + MOST_DAYS + " d" : brief(ms / 864e5) + " d";
}
function count(value) {
  if (!isNumber(value)) return "–";
  for (const [limit, unit, name] of [
    [1e4, 1, ""],
    [1e6, 1e3, " k"],
    [1e9, 1e6, " M"],
    [1e12, 1e9, " G"],
  ])
    if (value < limit) return unit === 1 ? Math.round(value).toLocaleString("en") : brief(value / unit) + name;
  return (value / 1e12).toFixed(0) + " T";
}
function size(bytes) {
  if (!isNumber(bytes)) return "–";
  let value = bytes;
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return (name === "B" ? Math.round(value) : brief(value)) + " " + name;
    value /= 1024;
  }
  return brief(value) + " TiB";
}
function share(value) {
  if (!isNumber(value)) return "–";
  const percent = value * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  if (percent > 99.9 && percent < 100) return "> 99.9 %";
  return percent === 0 || percent === 100 ? percent + " %" : percent.toFixed(1) + " %";
}
/** A round share, as somebody has set it: 99 %, 99.9 %. */
const percent = (value) => (isNumber(value) ? String(Number((value * 100).toFixed(4))) + "\u00a0%" : "–");
/** A cluster that has no name of its own is called by an identifier, of which people need the beginning. */
const clusterName = (report) =>
  /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(report.cluster) ? "cluster " + report.cluster.slice(0, 8) : report.cluster || "cluster";
const perSecond = (rate) => (isNumber(rate) ? count(rate) + "/s" : "–");
const times = (x) => (isNumber(x) ? brief(x) + " ×" : "–");
const iso = (ms) => {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
};
const day = (ms) => (iso(ms) || "–").slice(0, 10);
const clock = (ms, seconds = true) => (iso(ms) ? iso(ms).slice(11, seconds ? 19 : 16) : "–");
/** A moment within the report: with its day when the report is of more than one. */
const moment = (ms, report) =>
  (report && day(report.from_ms) !== day(report.to_ms) ? day(ms).slice(5) + " " : "") +
  clock(ms, !report || report.to_ms - report.from_ms < 36e5 * 12);
function spanText(from, to) {
  return day(from) + " " + clock(from) + " – " + (day(from) === day(to) ? "" : day(to) + " ") + clock(to) + " UTC";
}
