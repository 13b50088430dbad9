// A stream of damaged examples, answered before and after adapting, with both accuracies as they come.

import { ask, forget } from "./server.js";
import { at, drawChart, element, percent, plain, tell } from "./draw.js";

const LENGTH = 120; // images of a whole stream
const CHANGE = 10; // images under one corruption, where it changes
const SHOWN = 12; // images in the strip
const SPOKEN = 10; // images between two sentences for those who listen
const CHANGING = "changing";
let server, playing, order, right, names, session;

export function setUpStream(about) {
  server = about;
  const known = server.examples.every((example) => server.classes.includes(example.class));
  at("play").disabled = at("again").disabled = !known || !server.adaptation;
  at("mode").append(element("option", { value: "", textContent: "each image by itself" }));
  for (const { name, title } of server.streams ?? []) {
    at("mode").append(element("option", { value: name, textContent: `all so far, ${title === "own" ? "in its own way" : `by ${title}`}` }));
  }
  at("stream-corruption").append(element("option", { value: CHANGING, textContent: `changes every ${CHANGE}` }));
  for (const name of server.corruptions) {
    at("stream-corruption").append(element("option", { value: name, textContent: plain(name) }));
  }
  at("stream-severity").addEventListener("input", () => { at("stream-severity-shown").value = at("stream-severity").value; });
  for (const id of ["mode", "stream-corruption", "stream-severity"]) at(id).addEventListener("change", restart);
  at("play").addEventListener("click", () => (playing ? pause() : play()));
  at("again").addEventListener("click", restart);
  restart();
  if (!known) at("score").textContent = "The examples' classes are not this model's, so that nothing can be counted.";
}

function restart() {
  pause();
  if (session) forget(`streams/${session}`).catch(() => {}); // it is forgotten after a time, too
  session = null;
  right = { before: [], after: [] };
  order = shuffled(server.examples, 7);
  names = shuffled(server.corruptions, 3);
  at("strip").replaceChildren();
  at("spoken").textContent = "";
  draw();
}

function pause() {
  playing = null;
  at("play").textContent = "Play";
}

async function play() {
  if (right.after.length >= LENGTH) restart();
  const own = (playing = {});
  at("play").textContent = "Pause";
  try {
    while (playing === own && right.after.length < LENGTH) await next(own);
  } catch (error) {
    tell(error);
  }
  if (playing === own) pause();
}

async function next(own) {
  const number = right.after.length;
  const example = order[number % order.length];
  const chosen = at("stream-corruption").value;
  const corruption = chosen === CHANGING ? names[Math.floor(number / CHANGE) % names.length] : chosen;
  const photo = await (await fetch(example.file)).blob();
  const words = { corruption, severity: Number(at("stream-severity").value), seed: number };
  const damaged = await (await ask("corrupt", { images: photo, ...words })).blob();
  const path = await whereToAsk();
  const { answers: [answer] } = await (await ask(path, { images: damaged })).json();
  if (playing !== own) return; // it was stopped, or begun anew, in between
  right.before.push(answer.before.class === example.class);
  right.after.push(answer.after.class === example.class);
  note(damaged, answer, example.class, corruption);
  draw();
}

async function whereToAsk() {
  const method = at("mode").value;
  if (!method) return "predict";
  session ??= (await (await ask("streams", { options: { method } })).json()).id;
  return `streams/${session}/predict`;
}

function note(blob, { before, after }, label, corruption) {
  const picture = element("img", { src: URL.createObjectURL(blob), alt: `${label} under ${plain(corruption)}` });
  picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
  const line = (words, part) => {
    const good = part.class === label;
    return element("span", { className: good ? "good" : "bad", title: `${words}: ${part.class}`, textContent: `${good ? "✓" : "✗"} ${part.class}` });
  };
  at("strip").prepend(element("li", {}, picture, line("before", before), line("after", after)));
  while (at("strip").children.length > SHOWN) at("strip").lastChild.remove();
}

function draw() {
  const lines = ["before", "after"].map((name) => {
    let sum = 0;
    return { name, values: right[name].map((good, i) => (sum += good) / (i + 1)) };
  });
  const count = right.after.length;
  drawChart(at("accuracy"), lines, { low: 0, high: 1, last: LENGTH - 1, format: percent, xWords: ["first image", `${LENGTH} images`] });
  if (!count) {
    at("score").textContent = "Press Play.";
    return;
  }
  const [before, after] = lines.map((line) => percent(line.values[count - 1]));
  at("score").replaceChildren(
    element("span", { textContent: `${count} images` }),
    element("span", { className: "key before", textContent: `┄ as it is: ${before} right` }),
    element("span", { className: "key after", textContent: `━ adapting: ${after} right` }),
  );
  if (count % SPOKEN === 0) at("spoken").textContent = `After ${count} images: ${before} right as it is, ${after} right adapting.`;
}

// the same order for everybody, so that two people see the same
function shuffled(list, seed) {
  const mixed = [...list];
  for (let i = mixed.length - 1; i > 0; i -= 1) {
    seed = (16807 * seed) % 2147483647; // Park and Miller
    const j = seed % (i + 1);
    [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
  }
  return mixed;
}
