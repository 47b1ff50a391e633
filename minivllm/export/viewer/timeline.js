// Owns the timeline: one line a request, one column an iteration. A click on a column goes there.

const MARKS = {
  prefill: ["P", "computes its prompt"], decode: ["D", "decodes"], waiting: ["w", "waits"], passed_over: ["o", "runs, but was passed over"],
  preempted: ["x", "was preempted"], aborted: ["a", "was aborted"], refused: ["!", "was refused"],
};

function drawTimeline(number) {
  const { iterations, requests } = DATA.timeline;
  const head = h("tr", {}, h("th", { scope: "col" }, "request"), iterations.map((step) => columnHead(step, number)));
  const body = requests.map((row) => h("tr", { class: other(row.request) }, h("th", { scope: "row" }, requestName(row.request)),
    row.cells.map((cell, place) => timelineCell(row.request, cell, iterations[place], number))));
  const scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Timeline, scrolls sideways" },
    h("table", { class: "timeline" }, h("caption", { class: "unseen" }, "What every request did in every iteration"), h("thead", {}, head), h("tbody", {}, body)));
  const used = new Set(requests.flatMap((row) => row.cells).filter(Boolean).map((cell) => cell.state));
  return [
    heading("Timeline", null, `${count(requests.length, "request")}, ${count(iterations.length, "iteration")}; a click goes there`), scroller,
    h("p", { class: "legend" }, Object.entries(MARKS).filter(([name]) => used.has(name)).map(([name, [mark, text]]) =>
      h("span", {}, h("i", { class: `mark ${name}`, vars: { "--c": "var(--ink)" } }, mark), text)),
    h("span", {}, h("i", { class: "mark prefill", vars: { "--c": "var(--ink)" } }, "h"), "enters with a prefix hit"),
    h("span", {}, h("i", { class: "mark decode ended", vars: { "--c": "var(--ink)" } }, "D"), "its last")),
  ];
}

const columnHead = (step, number) => h("th", { scope: "col", class: step === number ? "current" : "", "aria-current": step === number ? "true" : null },
  h("button", { type: "button", onclick: () => go({ iteration: step }), "aria-label": `Go to iteration ${step}` }, step));

function timelineCell(request, cell, step, number) {
  const current = step === number ? "current" : "";
  if (!cell) return h("td", { class: current });
  const [mark, text] = MARKS[cell.state] ?? ["?", cell.state];
  const hit = cell.entered && cell.num_cached ? `, ${cell.num_cached} from the prefix cache` : "";
  const title = `${request} in iteration ${step}: ${text}${cell.num_tokens ? `, ${count(cell.num_tokens, "token")}` : ""}${hit}${cell.finished ? ", and ends" : ""}`;
  return h("td", { class: current }, h("i", { class: `mark ${cell.state} ${cell.finished ? "ended" : ""}`, title, vars: { "--c": colourOf(request) }, onclick: () => go({ iteration: step }) },
    hit ? "h" : mark));
}
