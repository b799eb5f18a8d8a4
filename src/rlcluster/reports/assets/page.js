// Draws a report's curves from the data embedded in the page. No library, no network.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const AXES = {
  steps: { title: "environment steps", scale: 1 },
  seconds: { title: "wall-clock (minutes)", scale: 1 / 60 },
  core_hours: { title: "core-hours", scale: 1 },
};
const DASHES = ["", "7 4", "7 3 2 3", "2 3"];
const MARKERS = ["circle", "square", "triangle", "diamond", "wedge", "plus", "cross"];
const PUBLISHED_DASHES = ["2 3", "6 3", "5 2 1 2", "", "3 5", "8 2 1 2 1 2"]; // OpenAI's is the first, then ours
const HEIGHT = 280, LEFT = 52, RIGHT = 12, TOP = 26, BOTTOM = 42, MARKERS_PER_CURVE = 8, MARGIN = 0.06, TICK_SPACE = 40;
const PRINTED_WIDTH = 310; // half a page, so that its text is not scaled

let axis = "steps";
let show = document.querySelector("input[name=show]:checked")?.value ?? "methods";
let isPrinted = false;
const hidden = new Set();

function element(name, attributes = {}, text = null) {
  const isSvg = ["svg", "path", "line", "text", "g"].includes(name);
  const node = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

// Dashes, markers and hues of the figures; page.css says why the colours differ in brightness.
function lineStyle(method) {
  const dash = DASHES[((method % 7) + Math.floor(method / 7)) % DASHES.length];
  return { color: `var(--c${method % 7})`, dash, marker: MARKERS[method % MARKERS.length] };
}

function markerPath(kind, x, y, r = 3.2) {
  const shapes = {
    circle: `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    triangle: `M${x},${y - r}L${x + r},${y + r}H${x - r}Z`,
    wedge: `M${x},${y + r}L${x + r},${y - r}H${x - r}Z`,
    diamond: `M${x},${y - r * 1.3}L${x + r * 1.3},${y}L${x},${y + r * 1.3}L${x - r * 1.3},${y}Z`,
    plus: `M${x - r},${y - 1}h${r - 1}v${1 - r}h2v${r - 1}h${r - 1}v2h${1 - r}v${r - 1}h-2v${1 - r}h${1 - r}Z`,
    cross: `M${x - r},${y - r}l${2 * r},${2 * r}M${x + r},${y - r}l${-2 * r},${2 * r}`,
  };
  return shapes[kind];
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return String(+value.toPrecision(3));
}

// Round numbers within the range, about as many as wanted, spaced by 1, 2 or 5 times a power of ten.
function ticks(low, high, wanted) {
  const rough = (high - low || Math.abs(high) || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= 0.75 * rough);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) values.push(k * step);
  return values;
}

function extent(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

// The limits of the y-axis, with room between the data and the frame.
function yLimits(shown, fromZero) {
  let [low, high] = extent(shown.flatMap((series) => [series.y, series.low ?? [], series.high ?? []]));
  if (fromZero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const room = MARGIN * (high - low || Math.abs(high) || 1);
  return [low - (fromZero && low === 0 ? room / 2 : room), high + room];
}

// One chart. A series has a name, a method (which sets its style), x and y, and optionally low and high (its band).
function drawChart(figure, spec) {
  for (const old of figure.querySelectorAll("svg, .tip, p")) old.remove();
  const width = isPrinted ? PRINTED_WIDTH : Math.max(240, figure.clientWidth - 24), height = spec.height ?? HEIGHT;
  const shown = spec.series.filter((series) => !hidden.has(series.method) && series.y.some((value) => value !== null));
  const [, xMax] = extent(shown.map((series) => series.x)), xMin = spec.xMin ?? 0;
  const [yMin, yMax] = spec.yRange ?? yLimits(shown, spec.fromZero);
  const px = (x) => LEFT + ((x - xMin) / (xMax - xMin || 1)) * (width - LEFT - RIGHT);
  const py = (y) => height - BOTTOM - ((y - yMin) / (yMax - yMin || 1)) * (height - TOP - BOTTOM);
  const label = `${spec.title} (${spec.unit}) over ${spec.xLabel}. Left and right arrow keys read the values.`;
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, tabindex: 0 });
  drawAxes(svg, spec, { width, height, xMin, xMax, yMin, yMax, px, py });
  for (const series of shown) drawSeries(svg, series, px, py);
  figure.querySelector("h4").after(svg);
  if (!shown.length) svg.after(element("p", { class: "faint" }, "No data."));
  addCursor(figure, svg, spec, shown, { width, height, px, xMin, xMax });
  fillDataTable(figure.querySelector("details"), spec, shown);
}

function drawAxes(svg, spec, { width, height, xMin, xMax, yMin, yMax, px, py }) {
  if (spec.unit !== spec.title.toLowerCase()) svg.append(element("text", { x: 0, y: 12 }, spec.unit));
  for (const value of ticks(yMin, yMax, (height - TOP - BOTTOM) / TICK_SPACE)) {
    svg.append(element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: py(value), y2: py(value) }));
    svg.append(element("text", { x: LEFT - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(xMin, xMax, Math.max(3, Math.round(width / 90)))) {
    const anchor = px(value) > width - RIGHT - 14 ? "end" : "middle";
    svg.append(element("text", { x: px(value), y: height - BOTTOM + 17, "text-anchor": anchor }, short(value)));
  }
  svg.append(element("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }));
  svg.append(element("text", { x: (LEFT + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, spec.xLabel));
}

function drawSeries(svg, series, px, py) {
  const { color, dash, marker } = series.style ?? lineStyle(series.method);
  const points = series.x.map((x, k) => [x, series.y[k], series.low?.[k], series.high?.[k]]).filter((point) => point[1] !== null);
  const banded = points.filter((point) => point[2] != null && point[3] != null);
  if (banded.length > 1 && !series.isThin) {
    const upper = banded.map(([x, , , high]) => `${px(x).toFixed(1)},${py(high).toFixed(1)}`);
    const lower = banded.map(([x, , low]) => `${px(x).toFixed(1)},${py(low).toFixed(1)}`).reverse();
    svg.append(element("path", { class: "band", d: `M${upper.concat(lower).join("L")}Z`, style: `fill:${color}` }));
  }
  const d = points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join("L");
  const thin = series.isThin ? " thin" : "";
  if (points.length > 1) svg.append(element("path", { class: `line${thin}`, d: `M${d}`, style: `stroke:${color}`, "stroke-dasharray": dash }));
  const every = Math.max(1, Math.floor(points.length / MARKERS_PER_CURVE));
  const marks = points.filter((_, k) => k % every === 0).map(([x, y]) => markerPath(marker, px(x), py(y)));
  svg.append(element("path", { class: "mark", d: marks.join(""), style: `fill:${color};stroke:${color}` }));
}

// The values below the pointer, or step by step with the arrow keys.
function addCursor(figure, svg, spec, shown, { width, height, px, xMin, xMax }) {
  const line = element("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  const tip = element("div", { class: "tip", hidden: "", role: "status" });
  svg.append(line);
  svg.after(tip);
  let share = 0;
  const place = (to) => {
    share = Math.min(1, Math.max(0, to));
    const x = xMin + share * (xMax - xMin);
    line.setAttribute("x1", px(x));
    line.setAttribute("x2", px(x));
    line.setAttribute("visibility", "visible");
    tip.replaceChildren(element("div", { class: "faint" }, `${spec.xLabel}: ${short(x)}`));
    for (const series of shown) {
      const point = at(series, x);
      if (point !== null) tip.append(element("div", {}, `${series.name}: ${valueText(series, point)}`));
    }
    tip.hidden = false;
    tip.style.left = `${Math.min(px(x) + 24, Math.max(0, figure.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = "2.6rem";
  };
  const leave = () => { line.setAttribute("visibility", "hidden"); tip.hidden = true; };
  svg.addEventListener("pointermove", (event) => {
    const to = (event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT);
    if (to >= 0 && to <= 1) place(to);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: share - 0.02, ArrowRight: share + 0.02, Home: 0, End: 1 };
    if (event.key === "Escape") leave();
    if (!(event.key in moves)) return;
    event.preventDefault();
    place(tip.hidden && event.key.startsWith("Arrow") ? share : moves[event.key]);
  });
}

// As in the tables: an interval in brackets, the lowest and the highest run in parentheses.
function valueText(series, k) {
  const low = series.low?.[k], high = series.high?.[k], value = short(series.y[k]);
  if (low == null || high == null) return value;
  return series.band === "range" ? `${value} (${short(low)} to ${short(high)})` : `${value} [${short(low)}, ${short(high)}]`;
}

// The last known point at or before x; null beyond the end of the series.
function at(series, x) {
  let found = null;
  for (let k = 0; k < series.x.length && series.x[k] <= x; k++) if (series.y[k] !== null) found = k;
  return x > series.x[series.x.length - 1] * (1 + 1e-9) ? null : found;
}

// The numbers behind a chart, made when its table is opened.
function fillDataTable(details, spec, shown) {
  const fill = () => {
    if (!details.open) return;
    const table = element("table"), head = element("tr");
    head.append(element("th", { scope: "col" }, spec.xLabel), ...shown.map((series) => element("th", { scope: "col" }, series.name)));
    const positions = [...new Set(shown.flatMap((series) => series.x))].sort((a, b) => a - b);
    const every = Math.max(1, Math.ceil(positions.length / 50));
    const rows = positions.filter((_, k) => k % every === 0 || k === positions.length - 1).map((x) => {
      const row = element("tr"), points = shown.map((series) => at(series, x));
      row.append(element("th", { scope: "row" }, short(x)));
      row.append(...points.map((k, s) => element("td", {}, k === null ? "-" : valueText(shown[s], k))));
      return row;
    });
    const body = element("tbody"), thead = element("thead");
    thead.append(head);
    body.append(...rows);
    table.append(thead, body);
    const region = element("div", { class: "wide tall", role: "region", "aria-label": `data of ${spec.title}`, tabindex: 0 });
    region.append(table);
    details.replaceChildren(details.firstElementChild, region);
  };
  details.ontoggle = fill;
  fill();
}

function spaced([begin, end, points]) {
  return Array.from({ length: points }, (_, k) => (points === 1 ? end : begin + ((end - begin) * k) / (points - 1)));
}

function positionsOf(run, source, by) {
  if (by === "steps") return source.steps;
  return source.seconds.map((second) => (by === "seconds" ? second / 60 : (second * run.cores) / 3600));
}

// The curve of one run; of timesteps always over wall-clock, from its start.
function runSeries(run, quantity, name, by, isThin) {
  const base = { name, method: run.method, isThin };
  if (quantity === "reward") return { ...base, x: positionsOf(run, run.reward, by), y: run.reward.y, low: run.reward.low, high: run.reward.high, band: run.reward.low ? "episodes" : "none" };
  if (quantity === "timesteps") return { ...base, x: [0, ...run.shared.seconds.map((s) => s / 60)], y: [0, ...run.shared.steps], band: "none" };
  return { ...base, x: positionsOf(run, run.shared, by), y: run.shared[quantity] ?? [], band: "none" };
}

function seriesOf(quantity, by = axis, task = null) {
  if (show === "runs") {
    return data.runs.filter((run) => task === null || run.task === task).map((run) => runSeries(run, quantity, run.name, by, data.runs.length > data.methods.length));
  }
  const list = [];
  data.method_curves.forEach((curves, method) => {
    const name = data.methods[method];
    if (curves.run !== undefined) {
      const run = data.runs[curves.run];
      if (task === null || run.task === task) list.push(runSeries(run, quantity, name, by, false));
      return;
    }
    const curve = task === null ? curves[by][quantity] : curves[by][quantity][task];
    if (curve) list.push({ name, method, x: spaced(curve.ends).map((x) => x * AXES[by].scale), y: curve.y, low: curve.low, high: curve.high, band: curve.band });
  });
  return list;
}

// The points up to `last`, with a linearly interpolated point at `last` itself.
function until(xs, ys, last) {
  const inside = xs.filter((x) => x <= last).length;
  const x = xs.slice(0, inside), y = ys.slice(0, inside);
  if (inside && inside < xs.length) {
    const share = (last - xs[inside - 1]) / (xs[inside] - xs[inside - 1]);
    x.push(last);
    y.push(ys[inside - 1] + share * (ys[inside] - ys[inside - 1]));
  }
  return { x, y };
}

function rewardSeries(task, by) {
  const series = seriesOf("reward", by, task);
  if (by !== "steps") return series;
  const last = Math.max(...series.map((one) => one.x[one.x.length - 1]));
  for (const published of data.reference[task] ?? []) {
    const points = until(published.steps, published.values, last);
    if (points.x.length) series.push({ name: published.name, method: -1, style: publishedStyle(published.name), ...points });
  }
  return series;
}

// The names of all published curves, OpenAI's first.
function publishedNames() {
  const names = Object.values(data.reference).flat().map((published) => published.name);
  return [...new Set(names.reverse())];
}

function publishedStyle(name) {
  const dash = PUBLISHED_DASHES[publishedNames().indexOf(name) % PUBLISHED_DASHES.length];
  return { color: "var(--faint)", dash, marker: "cross" };
}

function chart(quantity, series, xLabel, task = null) {
  const { title, unit, is_from_zero: fromZero } = data.quantities[quantity];
  const by = quantity === "reward" ? ` by ${xLabel.replace(" (minutes)", "")}` : "";
  const of = task !== null && data.tasks.length > 1 ? `: ${task}` : "";
  return { title: title + by + of, unit, xLabel, fromZero, series };
}

// Rewards by the chosen axis and, where that is another one, by wall-clock; speed; timesteps against wall-clock.
function mainCharts() {
  const xLabel = AXES[axis].title, both = axis === "seconds" ? ["seconds"] : [axis, "seconds"];
  return [
    ...data.tasks.flatMap((task) => both.map((by) => chart("reward", rewardSeries(task, by), AXES[by].title, task))),
    chart("fps", seriesOf("fps"), xLabel),
    chart("timesteps", seriesOf("timesteps", "seconds"), AXES.seconds.title),
  ];
}

function drawInto(place, list) {
  while (place.children.length < list.length) {
    const figure = element("figure"), details = element("details");
    details.append(element("summary", {}, "Data"));
    figure.append(element("h4"), details);
    place.append(figure);
  }
  while (place.children.length > list.length) place.lastElementChild.remove();
  list.forEach((spec, k) => {
    place.children[k].querySelector("h4").textContent = spec.title;
    drawChart(place.children[k], spec);
  });
}

function drawAll() {
  const main = mainCharts();
  drawInto(document.getElementById("charts"), main);
  drawInto(document.getElementById("diagnostics"), data.diagnostics.map((name) => ({ ...chart(name, seriesOf(name), AXES[axis].title), height: 210 })));
  document.getElementById("band-note").textContent = bandNote(main.flatMap((spec) => spec.series));
  const profile = document.getElementById("profile");
  if (profile) drawInto(profile, [{
    title: "Performance profile (band: 95 % interval)", unit: "share of runs above the score", xLabel: "score", yRange: [-0.03, 1.06],
    xMin: data.profile.thresholds[0],
    series: data.profile.methods.map((one) => ({ name: data.methods[one.method], x: data.profile.thresholds, ...one })),
  }]);
}

// Bands of many runs would hide each other: their numbers are in the data of a chart.
function bandNote(list) {
  const kinds = new Set(list.map((series) => series.band));
  const texts = Object.entries(data.bands).filter(([kind]) => kind !== "none" && kinds.has(kind)).map(([, text]) => text);
  if (!texts.length) return "No bands: too few runs or episodes.";
  return list.some((series) => series.isThin) ? `Single runs are drawn without bands. In brackets in their data: ${texts.join("; ")}.` : `Bands: ${texts.join("; ")}.`;
}

function lineSample({ color, dash, marker }) {
  const sample = element("svg", { width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" });
  sample.append(element("line", { x1: 0, x2: 34, y1: 6, y2: 6, style: `stroke:${color};stroke-width:2`, "stroke-dasharray": dash }));
  sample.append(element("path", { class: "mark", d: markerPath(marker, 17, 6, 3.6), style: `fill:${color};stroke:${color}` }));
  return sample;
}

function addKey(key) {
  data.methods.forEach((name, method) => {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-method": method });
    button.append(lineSample(lineStyle(method)), element("span", {}, name));
    button.addEventListener("click", () => {
      hidden.has(method) ? hidden.delete(method) : hidden.add(method);
      for (const same of document.querySelectorAll(`button[data-method="${method}"]`)) same.setAttribute("aria-pressed", String(!hidden.has(method)));
      drawAll();
    });
    key.append(button);
  });
  for (const name of key.id === "key" ? publishedNames() : []) {
    const entry = element("span");
    entry.append(lineSample(publishedStyle(name)), element("span", {}, ` ${name} (over steps, training levels)`));
    key.append(entry);
  }
}

for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", () => { axis = input.value; drawAll(); });
for (const input of document.querySelectorAll("input[name=show]")) input.addEventListener("change", () => { show = input.value; drawAll(); });
addKey(document.getElementById("key"));
const profilePlace = document.getElementById("profile");
if (profilePlace) {
  const key = element("div", { class: "key", role: "group", "aria-label": "methods of the performance profile" });
  addKey(key);
  profilePlace.before(key);
}
drawAll();
let lastWidth = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth !== lastWidth) { lastWidth = document.body.clientWidth; drawAll(); }
});
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("main > section > details")) details.open = true;
  isPrinted = true;
  drawAll();
});
addEventListener("afterprint", () => { isPrinted = false; drawAll(); });
