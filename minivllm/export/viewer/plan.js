// Owns the plan map: who got how many tokens, who did not and why, and the arrays that the worker made of it.

const planOf = (number) => PLANS.get(number);

function drawPlan(number) {
  const plan = planOf(number);
  if (plan.idle) return [h("p", { class: "empty" }, "No plan: nobody was there to be computed.")];
  const { used, tokens, max_num_seqs } = plan.budget;
  return [
    heading("Plan", plan.source.schedule, `${used} of ${tokens} tokens · ${plan.num_running} of ${max_num_seqs} requests running`),
    budgetBar(plan),
    table("Who computes how many tokens", ["request", "kind", "tokens", "", "new blocks"],
      [...plan.scheduled.map((entry) => plannedRow(plan, entry)), ...plan.not_scheduled.map(leftOutRow)]),
    barLegend(),
    plan.batch ? drawBatch(plan) : null,
  ];
}

/** The budget, spent request by request, as the scheduler spends it. */
function budgetBar(plan) {
  const { used, tokens } = plan.budget;
  return h("div", { class: "budget", role: "img", "aria-label": `${used} of ${tokens} tokens of the budget are used` },
    plan.scheduled.map((entry) => h("i", {
      vars: { "flex-grow": entry.num_tokens, "--c": colourOf(entry.request) }, class: other(entry.request),
      title: `${entry.request}: ${count(entry.num_tokens, "token")}`,
    }, entry.num_tokens / tokens > 0.04 ? `${entry.request} ${entry.num_tokens}` : "")),
    used < tokens && h("i", { class: "left", vars: { "flex-grow": tokens - used } }, (tokens - used) / tokens > 0.1 ? `${tokens - used} left` : ""));
}

function plannedRow(plan, entry) {
  const cached = entry.num_cached;
  const before = entry.num_computed_before;
  const parts = { cached, computed: Math.max(before - cached, 0), now: entry.num_tokens, known: entry.num_tokens_known };
  const blocks = plan.blocks.allocated[entry.request];
  const drafts = entry.num_drafts ? ` with ${count(entry.num_drafts, "draft")}` : "";
  return {
    class: other(entry.request),
    cells: [
      requestName(entry.request),
      h("span", { class: `kind ${entry.kind}` }, entry.kind),
      [h("mark", {}, `+${entry.num_tokens}`), ` at ${before} of ${entry.num_tokens_known}${drafts}`],
      tokenBar(entry.request, parts),
      blocks ? h("span", { class: "names" }, blockNames(blocks)) : h("span", { class: "dim" }, "–"),
    ],
  };
}

function leftOutRow(entry) {
  return {
    class: `${other(entry.request)} leftout`,
    cells: [requestName(entry.request), h("span", { class: "kind waits" }, "waits"), "–",
      [h("code", {}, entry.reason), " ", h("span", { class: "why" }, entry.detail)], h("span", { class: "dim" }, "–")],
  };
}

function drawBatch(plan) {
  const { batch } = plan;
  const facts = [count(batch.num_tokens, "token"),
    batch.num_tokens_padded !== batch.num_tokens ? `padded to ${batch.num_tokens_padded}` : null,
    batch.graph_mode === "NONE" ? "eager" : `graph ${batch.graph_mode}`, `${batch.attention_backend} attention`].filter(Boolean);
  return [
    heading("Batch", plan.source.prepare_inputs, facts.join(" · ")),
    table("The batch as arrays", [rowWord, "request", "query_start_loc", "seq_len", "positions", "slots", "logits rows"],
      batch.order.map((request, place) => batchRow(plan, request, place))),
    h("p", { class: "array" }, "query_start_loc ", h("code", {}, `[${batch.query_start_loc.join(", ")}]`)),
  ];
}

function batchRow(plan, request, place) {
  const { batch } = plan;
  const [start, end] = batch.query_start_loc.slice(place, place + 2);
  const rows = batch.logits_indices.filter((index) => index >= start && index < end);
  const texts = plan.token_texts[request];
  const came = plan.thrown_away.includes(request) ? h("span", { class: "dim" }, " thrown away")
    : texts?.length ? [" → ", h("b", {}, texts.map(quoted).join(" "))]
    : plan.sampled[request] ? ` → token ${plan.sampled[request].join(", ")}` : null;
  return {
    class: other(request),
    cells: [rowName(batch.places[place]), requestName(request), `[${start}, ${end})`, batch.seq_lens[place],
      ranges(batch.positions.slice(start, end)), ranges(batch.slot_mapping.slice(start, end)),
      [rows.length ? ranges(rows) : "–", came]],
  };
}

/** The head of a part: its name, where it is in the source, and a fact. */
function heading(name, source, fact) {
  return h("div", { class: "heading" }, h("h2", {}, name), fact && h("p", {}, fact),
    source && place(source.ours ?? source.src, source.vllm ?? source.ref));
}

/** The class of what concerns another request than the followed one. */
const other = (request) => (view.request && view.request !== request ? "other" : "");
