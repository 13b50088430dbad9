// Bars, lines and rows: what the page draws. Text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

// what went wrong, or null where nothing did
export function tell(error) {
  at("problem").hidden = !error;
  at("problem").textContent = error ? error.message : "";
}

// a corruption's name for people
export function plain(name) {
  return name.replaceAll("_", " ");
}

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function percent(share) {
  return `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)} %`;
}

export function drawBars(table, classes, answer, label) {
  const rows = classes.map((name, index) => {
    const row = element("tr", { className: name === label ? "true" : "" });
    const head = element("th", { scope: "row", textContent: name, title: name });
    row.append(head);
    for (const part of [answer.before, answer.after]) {
      const cell = element("td");
      if (part) {
        const bar = element("span", { className: part.index === index ? "bar top" : "bar" });
        const fill = element("i");
        fill.style.width = `${100 * part.probabilities[index]}%`;
        bar.append(fill, element("span", { textContent: percent(part.probabilities[index]) }));
        cell.append(bar);
      }
      row.append(cell);
    }
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
}

export function drawViews(place, views) {
  const pairs = views.map((pair, number) =>
    element("div", {}, ...pair.map((png, member) => element("img", {
      src: `data:image/png;base64,${png}`, alt: `View ${number + 1}${pair.length > 1 ? "ab"[member] : ""}`,
    }))));
  place.replaceChildren(...pairs);
}

const drawn = new Map(); // what each chart shows, to be drawn again in another width

addEventListener("resize", () => drawn.forEach((given, svg) => drawChart(svg, ...given)));

// Lines over 0, 1, 2, ... in a frame of numbers; `lines` are {name, values}, drawn with their name as class.
export function drawChart(svg, lines, frame) {
  drawn.set(svg, [lines, frame]);
  const { low, high, last, format, xWords } = frame;
  const width = Math.max(svg.clientWidth, 200), height = Math.max(svg.clientHeight, 80);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const left = 52, right = width - 10, top = 10, bottom = height - 24;
  const x = (i) => left + (right - left) * i / Math.max(last, 1);
  const y = (v) => bottom - (bottom - top) * (v - low) / (high - low || 1);
  const parts = [];
  for (const value of [low, (low + high) / 2, high]) {
    parts.push(shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    parts.push(shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  parts.push(shape("text", { x: left, y: height - 4 }, xWords[0]));
  parts.push(shape("text", { x: right, y: height - 4, "text-anchor": "end" }, xWords[1]));
  for (const { name, values } of lines) {
    const points = values.map((v, i) => [x(i), y(v)]);
    parts.push(shape("polyline", { class: name, points: points.map((p) => p.join(",")).join(" ") }));
    if (values.length && values.length < 12) {
      parts.push(...points.map(([cx, cy]) => shape("circle", { cx, cy, r: 3.5 })));
    }
  }
  svg.replaceChildren(...parts);
}
