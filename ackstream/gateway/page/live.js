// Asks for what has changed and writes it down. Everything from outside becomes text, never markup.
"use strict";

const PAUSE = 2000;
const LONGEST = 20000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function span(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1000) return `${milliseconds} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${+seconds.toPrecision(3)} s`;
  const minutes = Math.floor(seconds / 60);
  const parts = minutes < 60 ? [[minutes, "m"], [Math.floor(seconds % 60), "s"]] : [[Math.floor(minutes / 60), "h"], [minutes % 60, "m"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

const pad = (value, length = 2) => String(value).padStart(length, "0");

// in the time of whoever looks; the day, too, if it is not today
function clock(at) {
  const time = new Date(at);
  const today = time.toDateString() === new Date().toDateString();
  const day = today ? "" : `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())} `;
  return `${day}${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}.${pad(time.getMilliseconds(), 3)}`;
}

function moment(at) {
  return element("time", { datetime: new Date(at).toISOString(), title: new Date(at).toString() }, clock(at));
}

function ago(at, now) {
  const seconds = Math.round((now - at) / 1000);
  return !at ? "–" : seconds < 1 ? "now" : `${span(seconds * 1000)} ago`;
}

function sparkline(counts) {
  const drawn = document.createElementNS(SVG, "svg");
  const highest = Math.max(1, ...counts);
  const shape = { class: "spark", viewBox: `0 0 ${Math.max(1, counts.length)} 10`, preserveAspectRatio: "none", role: "img" };
  for (const [key, value] of Object.entries(shape)) drawn.setAttribute(key, value);
  drawn.setAttribute("aria-label", `${number(counts.reduce((sum, count) => sum + count, 0))} in ten minutes`);
  counts.forEach((count, at) => {
    if (!count) return;
    const bar = document.createElementNS(SVG, "rect");
    const height = Math.max(1, (10 * count) / highest);
    for (const [key, value] of Object.entries({ x: at, y: 10 - height, width: 0.8, height })) bar.setAttribute(key, value);
    drawn.append(bar);
  });
  return drawn;
}

// The key of an element that can have the focus: the same one is in the next rendering, too.
const keyOf = (made) => made?.dataset?.key ?? made?.getAttribute?.("href");

// Replaces the content of an element. Equal content stays, so that a selection lasts; the focus stays in any case.
function put(id, ...nodes) {
  const target = byId(id), next = target.cloneNode(false), focused = document.activeElement;
  next.append(...nodes);
  if (next.isEqualNode(target)) return;
  const key = target.contains(focused) ? keyOf(focused) : null;
  target.replaceChildren(...next.childNodes);
  if (key) [...target.querySelectorAll("a, button")].find((one) => keyOf(one) === key)?.focus({ preventScroll: true });
}

// A screen reader reads a status again whenever it is set.
function write(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// rows of cells, each a text, a node, or [text, class]; the first one names its row
function table(id, heads, rows, more = 0) {
  const name = (content) => element("th", { scope: "row" }, content);
  const cell = (content, at) => {
    const [shown, color] = Array.isArray(content) ? content : [content, ""];
    return element("td", { class: color, "data-head": heads[at + 1] }, shown);
  };
  const body = rows.map(([first, ...others]) => element("tr", {}, name(first), ...others.map(cell)));
  if (more > 0) body.push(element("tr", {}, element("td", { colspan: String(heads.length) }, `and ${number(more)} more`)));
  if (!rows.length) body.push(element("tr", {}, element("td", {}, "nothing yet")));
  const column = (title) => (title ? element("th", { scope: "col" }, title) : element("td", {}));
  const head = rows.length ? [element("thead", {}, element("tr", {}, ...heads.map(column)))] : [];
  put(id, ...head, element("tbody", {}, ...body));
}
const kind = (status, how) => (how === "timeout" || status === 408 ? "late" : status < 300 ? "good" : "bad");

function tallies(id, name, rows, inAll) {
  const cells = rows.map((row) => [
    row.name,
    [number(row.acknowledged), "text-good"],
    [number(row.refused), row.refused ? "text-bad" : ""],
    [number(row.missing), row.missing ? "text-late" : ""],
    span(row.p50),
    span(row.p95)]);
  table(id, [name, "acked", "refused", "missing", "p50", "p95"], cells, inAll - rows.length);
}

const storyLink = (name) => element("a", { href: `#${encodeURIComponent(name)}` }, name);

function failure(entry) {
  const missing = entry.missing.map((label) => element("span", { class: "missing" }, label));
  return element("li", {},
    element("div", { class: "line" },
      element("span", { class: `status text-${kind(entry.status, entry.completed_by)}` }, `${entry.status} ${entry.completed_by}`),
      moment(entry.at),
      element("span", {}, `after ${span(entry.latency)}`)),
    element("div", {}, storyLink(entry.correlation_id), entry.thing_id ? `  ${entry.thing_id}` : ""),
    element("div", {}, ...missing));
}

function letter(entry) {
  return element("li", {},
    element("div", { class: "line" },
      element("span", { class: "status text-bad" }, entry.reason || "unknown reason"),
      moment(entry.at),
      ...(entry.id ? actButton("redrive", entry.id) : []),
      element("span", {}, [entry.origin && `from ${entry.origin}`, entry.key && `key ${entry.key}`, `${number(entry.size)} bytes`].filter(Boolean).join(", "))),
    ...(entry.content ? [element("pre", {}, entry.content)] : []));
}

function job(entry) {
  const lags = entry.lags.map((lag) => `${lag.topic} ${number(lag.records)}`).join(", ");
  return [entry.job, entry.alive ? ["alive", "text-good"] : [`silent for ${span(entry.silent)}`, "text-bad"], lags || "–"];
}

let mayAct = false;

const ACTIONS = {
  redrive: {
    verb: "Send again", title: "Send this dead letter again?",
    text: "Its record goes to its topic, or to the queue that gave it up, with the header redriven-from. A dead letter is sent again once.",
  },
  cancel: {
    verb: "Cancel request", title: "Cancel this request?",
    text: "It ends with the status 499. Work that has begun is not undone.",
  },
  forget: {
    verb: "Forget", title: "Forget this reader?",
    text: "Publishers no longer wait for it, and no messages are kept for it. If it is running, it ends with an error.",
  },
  drain: {
    verb: "Drain", title: "Drain this queue?",
    text: "All messages published until now leave it, as rejected ones do. Consumers that hold some may still work on them.",
  },
};

// none for those who may not act
function actButton(action, of) {
  if (!mayAct) return [];
  const { verb } = ACTIONS[action];
  const made = element("button", { class: "act", type: "button", "aria-label": `${verb}: ${of}`, "data-key": `${action} ${of}` }, verb);
  made.addEventListener("click", () => ask(action, of));
  return [made];
}

let asked = "";

function ask(action, of) {
  const { verb, title, text } = ACTIONS[action];
  asked = `${action} ${of}`;
  write("dialog-title", title);
  write("dialog-text", text);
  write("dialog-of", of);
  write("dialog-result", "");
  write("dialog-yes", verb);
  write("dialog-no", "Close");
  byId("dialog-yes").hidden = false;
  byId("dialog-yes").onclick = () => act(action, of);
  byId("dialog").showModal();
  // the safe answer is the one that Enter gives
  byId("dialog-no").focus();
}

async function act(action, of) {
  byId("dialog-yes").hidden = true;
  byId("dialog-no").focus();
  write("dialog-result", "Working …");
  let result;
  try {
    const body = JSON.stringify({ action, of });
    const answer = await fetch(`${location.origin}/actions`, { method: "POST", headers: { "content-type": "application/json" }, body });
    const found = await answer.json();
    result = answer.ok ? found.result : [found.message, found.description].filter(Boolean).join(" ");
  } catch (error) {
    result = `No answer (${error.message}): the action may have been done.`;
  }
  // meanwhile it may have been opened for another one
  if (asked === `${action} ${of}` && byId("dialog-yes").hidden) write("dialog-result", result);
  refresh();
}

// The button that has opened it may be another element by now.
function answered() {
  [...document.querySelectorAll("button.act")].find((one) => keyOf(one) === asked)?.focus({ preventScroll: true });
  if (asked.startsWith("cancel ")) follow();
}

function showPlanes(planes, jobs, now) {
  byId("planes").hidden = byId("message-search").hidden = !planes;
  if (!planes) return;
  const source = { messages: "publishers", acknowledged: "readers", delivered: "queues", changes: "twin", "dead letters": "dead letters" };
  const tiles = Object.entries(planes.trends).map(([name, counts]) =>
    element("div", { class: "tile" },
      element("b", {}, number(counts.reduce((sum, count) => sum + count, 0))),
      element("span", {}, name),
      element("small", {}, planes.newest[source[name]] ? `newest ${ago(planes.newest[source[name]], now)}` : "nothing yet"),
      sparkline(counts)));
  put("trends", ...tiles);
  const more = (name, shown) => (planes.in_all[name] ?? 0) - shown.length;
  table("jobs", ["job", "state", "records still to be read"], jobs.map(job));
  const publishers = planes.publishers.map((one) => [
    element("a", { href: `#?message=${encodeURIComponent(`${one.client}/${one.last}`)}` }, one.client),
    number(one.last), number(one.stored), [number(one.refused), one.refused ? "text-bad" : ""], ago(one.at, now)]);
  table("publishers", ["publisher", "last number", "stored", "refused", "newest"], publishers, more("publishers", publishers));
  const readers = planes.readers.map((one) => [
    one.reader, [one.role, one.durable ? "durable" : "temporary"].filter(Boolean).join(", "), number(one.writers), number(one.acknowledged),
    one.behind === null ? "–" : [number(one.behind), one.behind ? "text-late" : "text-good"], ago(one.at, now),
    ...(mayAct ? [one.durable ? actButton("forget", one.reader)[0] : ""] : [])]);
  const readerHeads = ["reader", "role", "writers", "acknowledged", "behind", "newest", ...(mayAct ? [""] : [])];
  table("readers", readerHeads, readers, more("readers", readers));
  const queues = planes.queues.map((one) => [
    one.queue, number(one.consumers), number(one.held), span(one.oldest), number(one.delivered),
    [number(one.redelivered), one.redelivered ? "text-late" : ""], [number(one.settled), "text-good"],
    [number(one.dead), one.dead ? "text-bad" : ""], ago(one.at, now),
    ...actButton("drain", one.queue)]);
  const queueHeads = ["queue", "consumers", "held", "oldest", "delivered", "again", "settled", "dead", "newest", ...(mayAct ? [""] : [])];
  table("queues", queueHeads, queues, more("queues", queues));
  const lakes = planes.destinations.map((one) => [
    one.destination, one.behind === null ? "–" : [number(one.behind), one.behind ? "text-late" : "text-good"], ago(one.at, now)]);
  table("destinations", ["destination", "batches behind", "newest"], lakes);
  const letters = planes.dead_letters.map(letter);
  put("letters", ...(letters.length ? letters : [element("li", {}, "none")]));
}

let failures = [];

function showFailures() {
  const wanted = byId("filter").value.trim();
  const text = (entry) => [entry.correlation_id, entry.thing_id ?? "", ...entry.missing].join(" ");
  const shown = failures.filter((entry) => text(entry).includes(wanted)).map(failure);
  put("failures", ...(shown.length ? shown : [element("li", {}, "none")]));
}

function show(view) {
  mayAct = view.may_act;
  write("window", `in the last ${span(view.window)}`);
  write("in-flight", number(view.in_flight));
  write("oldest", view.oldest === null ? "" : `oldest ${span(view.oldest)}`);
  for (const how of ["answered", "timed out", "failed"]) {
    const id = how.replace(" ", "-");
    write(id, number(view.counts[how].recent));
    write(`${id}-total`, `${number(view.counts[how].total)} in all`);
    put(`${id}-trend`, sparkline(view.trends[how] ?? []));
  }
  write("p50", span(view.counts.answered.p50));
  write("p95", span(view.counts.answered.p95));
  write("note", view.note);
  tallies("parties", "party", view.parties, view.parties_in_all);
  tallies("labels", "label", view.labels, view.labels_in_all);
  write("age", view.newest === null ? "nothing decided yet" : `newest ${ago(view.newest, view.now)}`);
  failures = view.failures;
  showFailures();
  showPlanes(view.planes, view.jobs, view.now);
  showStoryAction();
  // what scrolls is reached by Tab; what does not is no stop on the way
  for (const one of document.querySelectorAll(".wide, .list")) {
    if (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight) one.setAttribute("tabindex", "0");
    else one.removeAttribute("tabindex");
  }
}

let latest, frame, due;

// However often data or keys come, the page is rendered once a frame, and only the latest data are.
function paint() {
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    if (latest) show(latest);
  });
}

async function refresh() {
  clearTimeout(due);
  // nobody looks at a tab in the background
  if (document.hidden) return;
  try {
    const answer = await fetch(`${location.origin}/live.json`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    latest = await answer.json();
    paint();
    write("state", "live");
  } catch (error) {
    write("state", `no answer (${error.message})`);
  }
  clearTimeout(due);
  due = setTimeout(refresh, PAUSE);
}

function traceLink(traceparent) {
  const name = traceparent.split("-")[1];
  return element("a", { href: `${TRACE}${name}`, title: traceparent }, name);
}

function traced(entry) {
  return element("li", {},
    element("div", { class: "line" }, moment(entry.at), element("span", {}, entry.detail)),
    element("div", {}, storyLink(entry.correlation_id), entry.thing_id ? `  ${entry.thing_id}` : ""));
}

function happenings(story) {
  const [first] = story.happenings;
  return story.happenings.map((entry) => happening(entry, first.at));
}

function requests(trace) {
  const more = trace.in_all - trace.requests.length;
  return [...trace.requests.map(traced), ...(more > 0 ? [element("li", {}, `and ${number(more)} more`)] : [])];
}

function happening(entry, started) {
  const marks = { request: "flight", stored: "flight", "dead letter": "bad", refused: "bad", returned: "late", "report ignored": "late" };
  const mark = marks[entry.event] || kind(entry.status ?? 200, entry.detail);
  const line = element("div", { class: "line" },
    moment(entry.at),
    element("span", {}, entry.at === started ? "" : `+${span(entry.at - started)}`),
    element("b", { class: `text-${mark}` }, [entry.event, entry.label, entry.status].filter((part) => part != null).join(" ")),
    element("span", {}, [entry.detail, entry.event === "request" ? entry.thing_id : null].filter(Boolean).join(" ")));
  const item = element("li", {}, line);
  if (entry.traceparent) item.append(element("div", {}, "trace ", traceLink(entry.traceparent)));
  if (entry.content !== undefined) {
    const text = JSON.stringify(entry.content, null, 2);
    item.append(element("pre", {}, text.length > LONGEST ? `${text.slice(0, LONGEST)}\n… ${number(text.length - LONGEST)} characters more` : text));
  }
  return item;
}

const STORIES = {
  "correlation-id": { title: "Request", path: "/story.json", shown: happenings, unknown: "Nothing is known of this correlation-id." },
  message: { title: "Message", path: "/message.json", shown: happenings, unknown: "Nothing is known of this message." },
  "trace-id": { title: "Trace", path: "/trace.json", shown: requests, unknown: "No request of this trace is known." },
};

// the correlation-id of the story that is shown, if it is of a request that is not decided
let open = "";

function showStoryAction() {
  put("story-act", ...(open ? actButton("cancel", open) : []));
}

async function tell(by, name) {
  const { title, path, shown, unknown } = STORIES[by];
  open = "";
  showStoryAction();
  byId("story").hidden = false;
  byId("story-of").textContent = title;
  byId("story-id").textContent = name;
  byId("story-note").textContent = "";
  byId("happenings").replaceChildren(element("li", {}, "Looking …"));
  let story, lines = [];
  try {
    const answer = await fetch(`${location.origin}${path}?${by}=${encodeURIComponent(name)}`, { cache: "no-store" });
    story = await answer.json();
    if (!answer.ok) throw new Error([story.message, story.description].filter(Boolean).join(" "));
    lines = shown(story);
  } catch (error) {
    story = { note: error.message };
  }
  if (byId("story-of").textContent !== title || byId("story-id").textContent !== name) return;
  byId("story-note").textContent = story.note ?? "";
  // what the note says may be why nothing was found
  byId("happenings").replaceChildren(...(lines.length || story.note ? lines : [element("li", {}, unknown)]));
  const seen = (event) => (story.happenings ?? []).filter((entry) => entry.event === event).length;
  open = by === "correlation-id" && seen("request") > seen("outcome") ? name : "";
  showStoryAction();
}

// a correlation-id is encoded, so it never begins with a question mark
const MESSAGE = "#?message=";
const TRACE = "#?trace=";
const SEARCHES = [["message", MESSAGE, "message"], ["trace-id", TRACE, "trace"], ["correlation-id", "#", "correlation-id"]];

// an address that was typed may not be encoded
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function follow() {
  const [by, start, field] = SEARCHES.find(([, start]) => location.hash.startsWith(start)) ?? SEARCHES[2];
  const name = decoded(location.hash.slice(start.length));
  byId("story").hidden = !name;
  if (!name) return;
  for (const [, , other] of SEARCHES) byId(other).value = other === field ? name : "";
  tell(by, name);
  byId("story").scrollIntoView({ block: "nearest" });
}

function search(form, by, start) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = `${start}${encodeURIComponent(byId(by).value.trim())}`;
    if (location.hash === wanted) follow();
    else location.hash = wanted;
  });
}

search("search", "correlation-id", "#");
search("message-search", "message", MESSAGE);
search("trace-search", "trace", TRACE);
byId("filter").addEventListener("input", paint);
byId("dialog-no").addEventListener("click", () => byId("dialog").close());
byId("dialog").addEventListener("close", answered);
addEventListener("hashchange", () => {
  follow();
  // a reader by keyboard or ear goes on at the story
  byId("story-title").focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", refresh);
refresh();
follow();
