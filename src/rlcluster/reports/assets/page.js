// Draws a report's curves from the data embedded in the page. No library, no network.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const AXES = {
  steps: { title: "environment steps", of: (run, curve) => curve.steps },
  seconds: { title: "wall-clock (minutes)", of: (run, curve) => curve.seconds.map((s) => s / 60) },
  core_hours: { title: "core-hours", of: (run, curve) => curve.seconds.map((s) => (s * run.cores) / 3600) },
};
const DASHES = ["", "7 4", "7 3 2 3", "2 3"];
const PUBLISHED = { name: "OpenAI's PPO", method: -1, style: { color: "var(--faint)", dash: "2 3" } };
const WIDTH = 560, HEIGHT = 300, LEFT = 56, RIGHT = 10, TOP = 10, BOTTOM = 40;

let axis = "steps";
const hidden = new Set();

function element(name, attributes = {}, text = null) {
  const isSvg = ["svg", "path", "line", "text", "circle"].includes(name);
  const node = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function lineStyle(method) {
  return { color: `var(--c${method % 7})`, dash: DASHES[((method % 7) + Math.floor(method / 7)) % DASHES.length] };
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return String(+value.toPrecision(3));
}

// Round numbers that cover the range, spaced by 1, 2 or 5 times a power of ten.
function ticks(low, high, wanted) {
  const rough = (high - low || Math.abs(high) || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((candidate) => candidate >= rough);
  const values = [];
  for (let k = Math.floor(low / step); k <= Math.ceil(high / step); k++) values.push(k * step);
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

// One chart. A series has a name, a method (which sets its style), x and y, and optionally low and high (its band).
function drawChart(figure, spec) {
  for (const old of figure.querySelectorAll("svg, .tip, p")) old.remove();
  const shown = spec.series.filter((series) => !hidden.has(series.method));
  const [, xMax] = extent(shown.map((series) => series.x)), xMin = spec.xMin ?? 0;
  let [yMin, yMax] = extent(shown.flatMap((series) => [series.y, series.low ?? [], series.high ?? []]));
  if (spec.fromZero) yMin = Math.min(0, yMin);
  if (yMin === yMax) [yMin, yMax] = [yMin - (Math.abs(yMin) || 1) / 2, yMax + (Math.abs(yMax) || 1) / 2];
  const yTicks = ticks(yMin, yMax, 5), xTicks = ticks(xMin, xMax, 6).filter((value) => value >= xMin && value <= xMax + 1e-9 * Math.abs(xMax));
  [yMin, yMax] = [yTicks[0], yTicks[yTicks.length - 1]];
  const px = (x) => LEFT + ((x - xMin) / (xMax - xMin || 1)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - ((y - yMin) / (yMax - yMin || 1)) * (HEIGHT - TOP - BOTTOM);

  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${spec.title} over ${spec.xLabel}` });
  for (const value of yTicks) {
    svg.append(element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value) }));
    svg.append(element("text", { x: LEFT - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of xTicks) svg.append(element("text", { x: px(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(value)));
  svg.append(element("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, spec.xLabel));
  for (const series of shown) drawSeries(svg, series, px, py);
  figure.append(svg);
  if (!shown.some((series) => series.y.some((value) => value !== null))) figure.append(element("p", { class: "faint" }, "No data."));
  addCursor(figure, svg, spec, shown, px, xMin, xMax);
}

function drawSeries(svg, series, px, py) {
  const { color, dash } = series.style ?? lineStyle(series.method);
  const points = series.x.map((x, k) => [x, series.y[k], series.low?.[k], series.high?.[k]]).filter((point) => point[1] !== null);
  const banded = points.filter((point) => point[2] != null && point[3] != null);
  if (banded.length > 1) {
    const upper = banded.map(([x, , , high]) => `${px(x).toFixed(1)},${py(high).toFixed(1)}`);
    const lower = banded.map(([x, , low]) => `${px(x).toFixed(1)},${py(low).toFixed(1)}`).reverse();
    svg.append(element("path", { class: "band", d: `M${upper.concat(lower).join("L")}Z`, style: `fill:${color}` }));
  }
  const d = points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join("L");
  if (points.length > 1) svg.append(element("path", { class: "line", d: `M${d}`, style: `stroke:${color}`, "stroke-dasharray": dash }));
  if (points.length === 1) svg.append(element("circle", { class: "line", cx: px(points[0][0]), cy: py(points[0][1]), r: 3, style: `fill:${color}` }));
}

function addCursor(figure, svg, spec, shown, px, xMin, xMax) {
  const line = element("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const tip = element("div", { class: "tip", hidden: "" });
  svg.append(line);
  figure.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    if (share < 0 || share > 1) return;
    const x = xMin + share * (xMax - xMin);
    line.setAttribute("x1", px(x));
    line.setAttribute("x2", px(x));
    line.setAttribute("visibility", "visible");
    tip.replaceChildren(element("div", { class: "faint" }, `${short(x)} ${spec.xLabel}`));
    for (const series of shown) {
      const value = at(series, x);
      if (value !== null) tip.append(element("div", {}, `${series.name}: ${short(value)}`));
    }
    tip.hidden = false;
    const left = event.clientX - figure.getBoundingClientRect().left;
    tip.style.left = `${Math.min(left + 12, Math.max(0, figure.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = "3rem";
  });
  svg.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); tip.hidden = true; });
}

// The value of the last point at or before x; null beyond the end of the series.
function at(series, x) {
  let found = null;
  for (let k = 0; k < series.x.length && series.x[k] <= x; k++) if (series.y[k] !== null) found = series.y[k];
  return x > series.x[series.x.length - 1] ? null : found;
}

function runSeries(runs, curveName) {
  return runs.map((run) => {
    const curve = run.curves[curveName];
    return { name: run.name, method: run.method, x: AXES[axis].of(run, curve), y: curve.values, low: curve.low, high: curve.high };
  });
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

function rewardSeries(task) {
  const runs = data.runs.filter((run) => run.task === task), series = runSeries(runs, "reward");
  const published = data.reference[task];
  if (published && axis === "steps") {
    const last = Math.max(...runs.map((run) => run.curves.reward.steps[run.curves.reward.steps.length - 1]));
    const points = until(published.steps, published.train, last);
    if (points.x.length) series.push({ ...PUBLISHED, ...points });
  }
  return series;
}

function specifications() {
  const xLabel = AXES[axis].title, list = [];
  for (const task of data.tasks) list.push({ title: `Episode reward: ${task}`, xLabel, series: rewardSeries(task) });
  list.push({ title: "Training speed (environment steps per second)", xLabel, fromZero: true, series: runSeries(data.runs, "fps") });
  list.push({ title: "Policy loss", xLabel, series: runSeries(data.runs, "policy_loss") });
  list.push({
    title: "Training progress (environment steps)", xLabel: AXES.seconds.title, fromZero: true,
    series: data.runs.map((run) => ({
      name: run.name, method: run.method, x: [0, ...AXES.seconds.of(run, run.curves.fps)], y: [0, ...run.curves.fps.steps],
    })),
  });
  return list;
}

function drawAll() {
  const place = document.getElementById("charts"), list = specifications();
  while (place.children.length < list.length) {
    const figure = element("figure");
    figure.append(element("h3"));
    place.append(figure);
  }
  list.forEach((spec, k) => {
    place.children[k].querySelector("h3").textContent = spec.title;
    drawChart(place.children[k], spec);
  });
  const profile = document.getElementById("profile");
  if (profile) drawChart(profile, {
    title: "Performance profile", xLabel: "score", fromZero: true,
    xMin: data.profile.thresholds[0],
    series: data.profile.methods.map((one) => ({ name: data.methods[one.method], x: data.profile.thresholds, ...one })),
  });
}

function lineSample({ color, dash }) {
  const sample = element("svg", { width: 34, height: 10, viewBox: "0 0 34 10", style: "width:34px" });
  sample.append(element("line", { x1: 0, x2: 34, y1: 5, y2: 5, style: `stroke:${color};stroke-width:2.5`, "stroke-dasharray": dash }));
  return sample;
}

function addKey() {
  const key = document.getElementById("key");
  data.methods.forEach((name, method) => {
    const button = element("button", { type: "button", "aria-pressed": "true" });
    button.append(lineSample(lineStyle(method)), element("span", {}, name));
    button.addEventListener("click", () => {
      hidden.has(method) ? hidden.delete(method) : hidden.add(method);
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      drawAll();
    });
    key.append(button);
  });
  if (Object.keys(data.reference).length) {
    const entry = element("span");
    entry.append(lineSample(PUBLISHED.style), element("span", {}, ` ${PUBLISHED.name} (over steps, training levels)`));
    key.append(entry);
  }
}

for (const input of document.querySelectorAll("input[name=axis]")) {
  input.addEventListener("change", () => { axis = input.value; drawAll(); });
}
addKey();
drawAll();
