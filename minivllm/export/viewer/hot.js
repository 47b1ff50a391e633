// Owns the hot-path map: where the time of a step goes, call by call; without clocks, what was called and how often.

function drawHot(number) {
  const hot = HOTS.get(number);
  const { run } = DATA.hot;
  const timed = hot.clock === "wall";
  const fact = timed ? `${inMs(hot.total_ns)} of work · control plane ${inPercent(hot.planes.control.share)} · data plane ${inPercent(hot.planes.data.share)}` : "calls, without times";
  return [
    heading("Hot path", null, fact),
    h("ul", { class: "sentences" }, DATA.stories.hot[number].map((text) => h("li", {}, sentence(text)))),
    timed ? planeBar(hot) : null,
    callTable(hot, timed),
    drawRun(run, timed),
  ];
}

function planeBar({ planes }) {
  return h("div", { class: "planes", role: "img", "aria-label": `control plane ${inPercent(planes.control.share)}, data plane ${inPercent(planes.data.share)}` },
    ["control", "data"].map((plane) => h("i", { class: plane, vars: { "flex-grow": planes[plane].cpu_ns || 0.001 } },
      planes[plane].share > 0.15 ? `${plane} ${inPercent(planes[plane].share)}` : "")));
}

function callTable(hot, timed) {
  const rows = [];
  const visit = (node, depth) => {
    rows.push({ class: node.is_sync ? "sync" : "", cells: callCells(node, depth, timed) });
    node.children.forEach((child) => visit(child, depth + 1));
  };
  hot.tree.forEach((node) => visit(node, 0));
  const columns = timed ? ["call", "plane", "calls", "time", "", "our source"] : ["call", "plane", "calls", "our source"];
  return h("div", { class: "calls" }, table("Calls of this iteration", columns, rows));
}

function callCells(node, depth, timed) {
  const name = h("span", { class: "call", vars: { "--depth": Math.min(depth, 8) } }, node.name, node.is_sync ? h("em", {}, " ◀ sync") : null);
  const facts = [name, h("span", { class: `plane ${node.plane}` }, node.plane), `×${node.calls}`];
  if (timed) {
    const width = Math.max((node.share ?? 0) * 100, 0.5);
    facts.push([inMs(node.cpu_ns), node.device_ns ? h("small", {}, ` device ${inMs(node.device_ns)}`) : null],
      h("span", { class: "meter" }, h("i", { class: node.plane, vars: { width: `${width}%` } })));
  }
  return [...facts, place(node.src)];
}

function drawRun(run, timed) {
  if (!timed) return null;
  const { latency } = run;
  const felt = [["TTFT", latency.ttft_ms], ["ITL", latency.itl_ms], ["TPOT", latency.tpot_ms], ["queue", latency.queue_ms]];
  return [
    heading("Whole run", null, `${count(run.steps, "iteration")}, medians`),
    h("dl", { class: "numbers" }, felt.map(([name, ms]) => h("div", {}, h("dt", {}, name), h("dd", {}, ms === null ? "–" : `${ms.toFixed(2)} ms`)))),
    table("Stages of the run", ["stage", "plane", "times", "median", "p99", "our source"],
      run.stages.map((row) => ({ cells: [row.name, h("span", { class: `plane ${row.plane}` }, row.plane), `×${row.calls}`, inMs(row.median_ns), inMs(row.p99_ns), place(row.src)] }))),
  ];
}
