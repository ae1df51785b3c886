"use strict";
// What a page that a model runs in asks its worker, whose script stands in the page.

const WAIT = 150;  // milliseconds without a key before a text is worked on
const content = JSON.parse(byId("content").textContent);
const worker = startWorker();
const waiting = new Map();  // what is called with the answers to a request, by its number
let requests = 0, newest = 0;

function startWorker() {
  const address = URL.createObjectURL(new Blob([byId("worker").textContent], {type: "text/javascript"}));
  try {
    return new Worker(address);
  } catch (error) {
    fail(`this browser starts no worker: ${error.message}`);
    return null;
  }
}

/** Sends a request; `then` is called with each of its answers. */
function ask(message, then) {
  requests += 1;
  waiting.set(requests, then);
  worker.postMessage({number: requests, ...message});
  return requests;
}

function hear({data}) {
  if (data.problem) {
    const damaged = data.kind === "load" ? "This file is damaged or was not saved as a whole: get it again. " : "";
    fail(`${damaged}(${data.problem})`);
    return;
  }
  waiting.get(data.number)?.(data);
}

function fail(problem) {
  byId("status").textContent = problem;
  byId("status").className = "problem";
  byId("progress").hidden = true;
}

function tell(message) {
  byId("status").className = "";
  byId("status").textContent = message;
}

// --- what is typed

let timer = 0;
let isLoaded = false;  // whether the worker has the model

/** Has `answer` called soon, unless more is typed before. */
function changed(answer) {
  clearTimeout(timer);
  if (isLoaded) timer = setTimeout(answer, WAIT);
}

/** Sends the model to the worker, and what has been typed once it is there. */
function load(answer) {
  const pieces = [...document.querySelectorAll(".packed")];
  const packed = pieces.map((piece) => piece.textContent);
  ask({kind: "load", values: content.values, packed, code: byId("products").textContent}, () => {
    for (const piece of pieces) piece.remove();  // the worker has them
    isLoaded = true;
    answer();
  });
}

/** Starts the page, which calls `answer` when its text has changed. */
function start(answer) {
  if (!worker) return;
  worker.onmessage = hear;
  worker.onerror = ({message}) => fail(message);
  document.addEventListener("DOMContentLoaded", () => load(answer));  // the packed pieces stand behind this script
  byId("text").addEventListener("input", () => changed(answer));
  byId("clear").addEventListener("click", () => { byId("text").value = ""; changed(answer); byId("text").focus(); });
  byId("text").focus();
}
