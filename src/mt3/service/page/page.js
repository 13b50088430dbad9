// The photo, its damage and its answer.

import { about, ask } from "./server.js";
import { at, drawBars, drawChart, drawViews, element, percent, plain, tell } from "./draw.js";
import { setUpStream } from "./stream.js";

const DELAY = 200; // milliseconds without a change before the server is asked
const START = { file: "ship-1.png", corruption: "fog" };
const PROMISE = "It goes to this server alone, and is forgotten after the answer.";
let server; // what it says about itself
let photo; // { blob, label }
let waiting, running;

function change() {
  clearTimeout(waiting);
  waiting = setTimeout(update, DELAY);
}

async function update() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const section = at("answer");
  section.setAttribute("aria-busy", "true");
  try {
    const corruption = at("corruption").value, severity = Number(at("severity").value);
    const shown = (words) => ask("corrupt", { images: photo.blob, ...words }, signal).then((r) => r.blob());
    const [clean, damaged] = await Promise.all([shown({}), shown({ corruption, severity })]);
    show("clean", clean);
    show("damaged", damaged);
    at("damaged-words").textContent = corruption === "none" ? "not damaged" : `${plain(corruption)}, severity ${severity}`;
    const began = performance.now();
    const answer = await (await ask("explain", { images: damaged, options: options() }, signal)).json();
    explain(answer, (performance.now() - began) / 1000);
    tell(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    tell(error);
    at("verdict").textContent = "There is no answer for this.";
  }
  section.setAttribute("aria-busy", "false");
}

function options() {
  if (!server.adaptation) return {};
  const given = {};
  for (const name of ["steps", "lr", "views"]) {
    const text = at(name).value;
    if (text !== "" && Number(text) !== server.adaptation[name]) given[name] = Number(text);
  }
  return given;
}

function show(id, blob) {
  URL.revokeObjectURL(at(id).src);
  at(id).src = URL.createObjectURL(blob);
}

function explain(answer, seconds) {
  drawBars(at("bars"), server.classes, answer, photo.label);
  at("verdict").replaceChildren(...verdict(answer));
  drawViews(at("views-shown"), answer.views);
  const losses = answer.losses.filter((value) => value !== null);
  if (losses.length) {
    const high = Math.max(...losses, 1e-6);
    drawChart(at("loss"), [{ name: "after", values: losses }], {
      low: 0, high, last: Math.max(losses.length - 1, 1), format: (v) => v.toPrecision(2),
      xWords: ["before", losses.length > 2 ? `${losses.length - 1} steps` : "1 step"],
    });
    at("loss").setAttribute("aria-label", `The loss over the steps: ${losses.map((v) => v.toPrecision(3)).join(", ")}`);
  } else {
    at("loss").replaceChildren();
  }
  at("time").textContent =
    `Both answers took ${answer.seconds.toFixed(2)} s of computing; with the explanation and the way here it was ${seconds.toFixed(2)} s.` +
    (answer.converted.length ? ` Of the image: ${answer.converted.join(", ")}.` : "");
}

function verdict({ before, after, adapted }) {
  const says = (part) => element("b", { textContent: `${part.class}, ${percent(part.probability)}` });
  if (!after) return ["This model does not adapt. It says ", says(before), "."];
  const words = ["Before: ", says(before), ". ", adapted ? "After the step: " : "It did not adapt: ", says(after), ". "];
  const { label } = photo;
  if (label && server.classes.includes(label)) {
    const right = [before.class === label, after.class === label];
    const judged = right[1]
      ? right[0] ? "Right both times." : "The step turned a wrong answer right."
      : right[0] ? "The step turned a right answer wrong." : "Wrong both times.";
    words.push(element("span", { className: right[1] ? "good" : "bad", textContent: judged }), ` The label is ${label}.`);
  } else {
    words.push(before.class === after.class ? "The step kept the answer." : "The step changed the answer.");
  }
  return words;
}

async function useExample(example) {
  const response = await fetch(example.file);
  photo = { blob: await response.blob(), label: example.class };
  at("own").textContent = PROMISE;
  change();
}

function useFile(file) {
  if (!file) return;
  for (const radio of document.querySelectorAll("input[name=example]")) radio.checked = false;
  photo = { blob: file, label: null };
  at("own").textContent = file.name;
  change();
}

function setUpPhoto() {
  server.examples.filter((_, number) => number % 3 === 0).forEach((example) => {
    const radio = element("input", { type: "radio", name: "example", value: example.file });
    radio.checked = example.file.endsWith(START.file);
    radio.addEventListener("change", () => useExample(example));
    const picture = element("img", { src: example.file, alt: example.class, title: example.class });
    at("examples").append(element("label", {}, radio, picture));
  });
  at("file").addEventListener("change", () => useFile(at("file").files[0]));
  const drop = at("drop");
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") useFile(event.dataTransfer.files[0]);
    });
  }
}

function setUpFields() {
  at("corruption").append(element("option", { value: "none", textContent: "none" }));
  for (const name of server.corruptions) at("corruption").append(element("option", { value: name, textContent: plain(name) }));
  at("corruption").value = START.corruption;
  at("corruption").addEventListener("change", change);
  at("severity").addEventListener("input", () => {
    at("severity-shown").value = at("severity").value;
    change();
  });
  at("steps").max = server.limits.explained_steps;
  at("views").max = server.limits.max_views;
  for (const name of ["steps", "lr", "views"]) {
    at(name).disabled = !server.adaptation;
    at(name).value = server.adaptation?.[name] ?? "";
    at(name).addEventListener("input", change);
  }
}

async function start() {
  try {
    server = await about();
  } catch (error) {
    tell(error);
    return;
  }
  at("model").textContent = `The model is ${server.model}: ${server.classes.length} classes, ${server.size} by ${server.size} pixels.`;
  setUpPhoto();
  setUpFields();
  setUpStream(server);
  await useExample(server.examples.find((example) => example.file.endsWith(START.file)));
}

start();
