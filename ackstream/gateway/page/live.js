// Asks for what has changed and writes it down. Everything from outside becomes text, never markup.
"use strict";

const PAUSE = 2000;
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

const clock = (at) => new Date(at).toISOString().slice(11, 23);
const kind = (status, how) => (how === "timeout" || status === 408 ? "late" : status < 300 ? "good" : "bad");

function tallies(table, name, rows, inAll) {
  if (!rows.length) return table.replaceChildren(element("tbody", {}, element("tr", {}, element("td", {}, "nothing yet"))));
  const head = [name, "acked", "refused", "missing", "p50", "p95"].map((title) => element("th", {}, title));
  const body = rows.map((row) =>
    element("tr", {},
      element("td", {}, row.name),
      element("td", { class: "text-good" }, number(row.acknowledged)),
      element("td", row.refused ? { class: "text-bad" } : {}, number(row.refused)),
      element("td", row.missing ? { class: "text-late" } : {}, number(row.missing)),
      element("td", {}, span(row.p50)),
      element("td", {}, span(row.p95))));
  if (inAll > rows.length) {
    body.push(element("tr", {}, element("td", { colspan: "6" }, `and ${number(inAll - rows.length)} more, with less trouble`)));
  }
  table.replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function failure(entry) {
  const link = element("a", { href: `#${encodeURIComponent(entry.correlation_id)}` }, entry.correlation_id);
  const missing = entry.missing.map((label) => element("span", { class: "missing" }, label));
  return element("li", {},
    element("div", { class: "line" },
      element("span", { class: `status text-${kind(entry.status, entry.completed_by)}` }, `${entry.status} ${entry.completed_by}`),
      element("time", {}, clock(entry.at)),
      element("span", {}, `after ${span(entry.latency)}`)),
    element("div", {}, link, entry.thing_id ? `  ${entry.thing_id}` : ""),
    element("div", {}, ...missing));
}

function show(view) {
  byId("window").textContent = `in the last ${span(view.window)}`;
  byId("in-flight").textContent = number(view.in_flight);
  byId("oldest").textContent = view.oldest === null ? "" : `oldest ${span(view.oldest)}`;
  for (const how of ["answered", "timed out", "failed"]) {
    const id = how.replace(" ", "-");
    byId(id).textContent = number(view.counts[how].recent);
    byId(`${id}-total`).textContent = `${number(view.counts[how].total)} in all`;
  }
  byId("p50").textContent = span(view.counts.answered.p50);
  byId("p95").textContent = span(view.counts.answered.p95);
  byId("lags").textContent = view.lags.length
    ? "Records still to be read: " + view.lags.map((lag) => `${lag.topic} ${lag.records === null ? "unknown" : number(lag.records)}`).join(", ")
    : "";
  byId("note").textContent = view.note;
  tallies(byId("parties"), "party", view.parties, view.parties_in_all);
  tallies(byId("labels"), "label", view.labels, view.labels_in_all);
  const failures = view.failures.map(failure);
  byId("failures").replaceChildren(...(failures.length ? failures : [element("li", {}, "none")]));
}

async function refresh() {
  try {
    const answer = await fetch(`${location.origin}/live.json`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    byId("state").textContent = "live";
  } catch (error) {
    byId("state").textContent = `no answer (${error.message})`;
  }
  setTimeout(refresh, PAUSE);
}

function happening(entry, started) {
  const mark = { request: "flight", "dead letter": "bad" }[entry.event] || kind(entry.status ?? 200, entry.detail);
  const line = element("div", { class: "line" },
    element("time", {}, clock(entry.at)),
    element("span", {}, entry.at === started ? "" : `+${span(entry.at - started)}`),
    element("b", { class: `text-${mark}` }, [entry.event, entry.label, entry.status].filter((part) => part != null).join(" ")),
    element("span", {}, [entry.detail, entry.event === "request" ? entry.thing_id : null].filter(Boolean).join(" ")));
  const item = element("li", {}, line);
  if (entry.content !== undefined) item.append(element("pre", {}, JSON.stringify(entry.content, null, 2)));
  return item;
}

async function tell(correlationId) {
  byId("story").hidden = false;
  byId("story-id").textContent = correlationId;
  byId("story-note").textContent = "";
  byId("happenings").replaceChildren(element("li", {}, "Looking …"));
  let story;
  try {
    const answer = await fetch(`${location.origin}/story.json?correlation-id=${encodeURIComponent(correlationId)}`, { cache: "no-store" });
    story = await answer.json();
    if (!answer.ok) throw new Error(story.message);
  } catch (error) {
    story = { happenings: [], note: error.message };
  }
  const [first] = story.happenings;
  byId("story-note").textContent = story.note ?? "";
  byId("happenings").replaceChildren(...(first
    ? story.happenings.map((entry) => happening(entry, first.at))
    : [element("li", {}, "Nothing is known of this correlation-id.")]));
}

function follow() {
  const correlationId = decodeURIComponent(location.hash.slice(1));
  byId("story").hidden = !correlationId;
  if (!correlationId) return;
  byId("correlation-id").value = correlationId;
  tell(correlationId);
  byId("story").scrollIntoView({ block: "nearest" });
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = `#${encodeURIComponent(byId("correlation-id").value.trim())}`;
  if (location.hash === wanted) follow();
  else location.hash = wanted;
});
addEventListener("hashchange", follow);
follow();
refresh();
