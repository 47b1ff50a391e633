// Owns the search over the whole run: requests with their texts, sentences, symbols of the source, blocks.

const MAX_FOUND = 24;

/** Everything that can be found, made once: [kind, text, where it leads]. */
function searchIndex() {
  const index = [];
  for (const request of DATA.plan.requests) {
    const text = [request.request, request.prompt, request.text].filter(Boolean).join(" · ");
    index.push({ kind: "request", text, to: { request: request.request, iteration: Math.max(request.arrived, NUMBERS[0]) } });
  }
  for (const plan of DATA.plan.iterations) {
    for (const text of plan.narration) index.push({ kind: `iteration ${plan.iteration}`, text, to: { iteration: plan.iteration } });
  }
  const symbols = new Map();
  const note = (src, ref, map, iteration) => {
    if (src && !symbols.has(src)) symbols.set(src, { kind: "source", text: [src.split(":").pop(), DATA.places[src], ref].filter(Boolean).join(" · "), to: { map, iteration } });
  };
  for (const plan of DATA.plan.iterations) for (const source of Object.values(plan.source)) note(source.ours, source.vllm, "plan", plan.iteration);
  for (const entry of DATA.process.iterations) for (const stage of entry.stages) note(stage.src, stage.ref, "process", entry.iteration);
  for (const message of DATA.process.messages) note(message.src, message.ref, "process", Math.max(message.iteration, NUMBERS[0]));
  const visit = (node, iteration) => { note(node.src, node.ref, "hot", iteration); node.children.forEach((child) => visit(child, iteration)); };
  for (const hot of DATA.hot.iterations) hot.tree.forEach((node) => visit(node, hot.iterations[0]));
  for (const source of Object.values(DATA.state.source)) note(source.ours, source.vllm, "state");
  return [...index, ...symbols.values()];
}

function find(query) {
  const block = /^#(\d+)$/.exec(query.trim());
  if (block) {
    const id = Number(block[1]);
    return poolOf(view.iteration)[id] ? [{ kind: "block", text: `#${id} in the pool`, to: { map: "state", block: id } }] : [];
  }
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  find.index ??= searchIndex();
  return words.length ? find.index.filter(({ text }) => words.every((word) => text.toLowerCase().includes(word))) : [];
}

function setUpSearch() {
  const input = byId("search");
  const list = byId("found");
  let chosen = 0;
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const choose = (place) => {
    const items = [...list.querySelectorAll("[role=option]")];
    if (!items.length) return;
    chosen = (place + items.length) % items.length;
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
    items[chosen].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", items[chosen].id);
  };
  const show = () => {
    const found = find(input.value);
    if (!input.value.trim()) return close();
    fill(list, found.slice(0, MAX_FOUND).map((entry, i) => h("li", {
      role: "option", id: `found-${i}`, "aria-selected": "false", onclick: () => { go(entry.to); close(); input.blur(); },
    }, h("small", {}, entry.kind), h("span", {}, entry.text.length > 160 ? `${entry.text.slice(0, 160)}…` : entry.text))),
    found.length > MAX_FOUND && h("li", { class: "more" }, `and ${found.length - MAX_FOUND} more`),
    !found.length && h("li", { class: "more" }, "nothing found"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    choose(0);
  };
  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  input.addEventListener("blur", () => setTimeout(close, 150));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") list.querySelectorAll("[role=option]")[chosen]?.click();
    else if (event.key === "Escape") { input.value = ""; close(); input.blur(); }
    else return;
    event.preventDefault();
  });
}
