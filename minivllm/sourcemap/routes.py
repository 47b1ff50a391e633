"""Owns the five reading routes of the articles: breakpoints in the order in which one request meets them."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.sourcemap.rows import Row, rows


@dataclass(frozen=True, slots=True)
class Stop:
    """One breakpoint.

    Attributes:
        ours: The function to stop in; it has a row in the source map.
        question: What to look for there.
    """

    ours: str
    question: str

    @property
    def row(self) -> Row:
        """Its row: that of the function itself, if several concepts are at home there."""
        found = [row for row in rows() if row.ours == self.ours]
        return next((row for row in found if row.is_registered), found[0])


@dataclass(frozen=True, slots=True)
class Route:
    """One way through the engine.

    Attributes:
        title: From where to where.
        chinese: The same in the words of the articles.
        stops: Breakpoints, in order.
    """

    title: str
    chinese: str
    stops: tuple[Stop, ...]


ROUTES = {
    "request": Route(
        "How a request enters the engine core",
        "第一条走读路径：请求怎样进入 EngineCore",
        (
            Stop(
                "minivllm.engine.llm_engine:LLMEngine.add_request",
                "What does a caller hand in, and which of it goes on to the core?",
            ),
            Stop(
                "minivllm.engine.input_processor:InputProcessor.process_inputs",
                "Where does text end? Look at prompt_token_ids.",
            ),
            Stop(
                "minivllm.engine.core:EngineCore.add_request",
                "Which fields are left behind the process boundary?",
            ),
            Stop(
                "minivllm.engine.core:EngineCore.preprocess_add_request",
                "The message becomes a Request: what does it have that the message has not?",
            ),
            Stop(
                "minivllm.core.scheduler:Scheduler.add_request",
                "Which queue, which status? Nothing is computed here: adding is registration.",
            ),
            Stop(
                "minivllm.engine.core:EngineCore.step_sync",
                "One long request is pushed on by many short plans: count how often you stop here.",
            ),
        ),
    ),
    "step": Route(
        "How the scheduler makes a plan of requests, and commits its result",
        "第二条走读路径：Scheduler 怎样把请求编译成一轮计划",
        (
            Stop(
                "minivllm.core.scheduler:Scheduler.schedule",
                "How large is the token budget, and who is running and waiting?",
            ),
            Stop(
                "minivllm.core.schedule_running:schedule_running",
                "What does each running request still owe: num_tokens_with_spec less num_computed_tokens?",
            ),
            Stop(
                "minivllm.core.schedule_waiting:schedule_waiting",
                "What stops admission: tokens, seats, or blocks?",
            ),
            Stop(
                "minivllm.core.kv_cache_manager:KVCacheManager.allocate_slots",
                "How many blocks are asked for, and how many are free?",
            ),
            Stop(
                "minivllm.core.plan_builder:build_plan",
                "What is in the plan, and what stays behind? Look for objects: there are only numbers.",
            ),
            Stop(
                "minivllm.core.scheduler:Scheduler._update_after_schedule",
                "num_computed_tokens advances here, before anything was computed. Why is that safe?",
            ),
            Stop(
                "minivllm.core.scheduler:Scheduler.update_from_output",
                "Which tokens are appended, which drafts are taken back, who ends?",
            ),
            Stop(
                "minivllm.core.stop_check:check_stop",
                "Which rule is asked first?",
            ),
        ),
    ),
    "kv": Route(
        "How a block table becomes an address",
        "第三条走读路径：KV 页表怎样变成 GPU 上的真实地址",
        (
            Stop(
                "minivllm.core.kv_cache_manager:KVCacheManager.get_computed_blocks",
                "How long is the hit, and why is it never the whole prompt?",
            ),
            Stop(
                "minivllm.core.kv_cache_manager:KVCacheManager.allocate_slots",
                "Find the five parts: computed, new hit, external, new, lookahead.",
            ),
            Stop(
                "minivllm.core.block_pool:BlockPool.get_new_blocks",
                "Does a block that is taken lose a hash?",
            ),
            Stop(
                "minivllm.core.block_pool:BlockPool.cache_full_blocks",
                "Blocks are published before they are written. Who could read them too early?",
            ),
            Stop(
                "minivllm.worker.gpu_model_runner:GPUModelRunner.update_states",
                "Which block ids came with the plan, and which did the worker keep?",
            ),
            Stop(
                "minivllm.worker.block_table:BlockTable.compute_slot_mapping",
                "Compute one slot by hand: block id * block size + offset.",
            ),
            Stop(
                "minivllm.attention.torch_sdpa:TorchSdpaBackend.forward",
                "Which slots are written, and which are read?",
            ),
            Stop(
                "minivllm.core.kv_cache_manager:KVCacheManager.free",
                "In which order do blocks go back, and do they keep their hashes?",
            ),
        ),
    ),
    "runner": Route(
        "How the runner turns a plan into one execution of the model",
        "第四条走读路径：GPUModelRunner 怎样组织一次模型执行",
        (
            Stop(
                "minivllm.worker.worker:Worker.execute_model",
                "What is the worker given? Integers only.",
            ),
            Stop(
                "minivllm.worker.gpu_model_runner:GPUModelRunner.update_states",
                "Who gets which row or slot, and who leaves?",
            ),
            Stop(
                "minivllm.worker.prepared_batch:prepare",
                "Is query_start_loc[-1] the number of scheduled tokens? Do all slots lie in owned blocks?",
            ),
            Stop(
                "minivllm.worker.gpu_model_runner:GPUModelRunner.model_forward",
                "Which arrays go to the model, and in what shape?",
            ),
            Stop(
                "minivllm.models.llama:Llama.forward",
                "One flat stream of tokens: where does the model learn which request a token belongs to?",
            ),
            Stop(
                "minivllm.models.llama:Llama.compute_logits",
                "How many rows get logits, compared with the tokens of the step?",
            ),
            Stop(
                "minivllm.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
                "Why is this a call of its own?",
            ),
            Stop(
                "minivllm.worker.gpu_model_runner:GPUModelRunner.bookkeeping",
                "Where are the sampled tokens kept for the next step?",
            ),
        ),
    ),
    "output": Route(
        "From logits to text that can be streamed",
        "第五条走读路径：从 logits 到可流式交付的文本",
        (
            Stop(
                "minivllm.sample.sampler:Sampler.forward",
                "In which order are rules, penalties, temperature and filters applied?",
            ),
            Stop(
                "minivllm.core.scheduler:Scheduler.update_from_output",
                "Which ends are decided here? Those that need no text.",
            ),
            Stop(
                "minivllm.core.stop_check:check_stop",
                "Is the last token an end of sequence, a stop id, or one too many?",
            ),
            Stop(
                "minivllm.engine.output_processor:OutputProcessor.process_outputs",
                "The core's output has no text: what does the frontend add?",
            ),
            Stop(
                "minivllm.engine.detokenizer:IncrementalDetokenizer.update",
                "Does every token have text of its own?",
            ),
            Stop(
                "minivllm.engine.output_processor:RequestState.make_request_output",
                "How much of the text may be sent, and how much is held back?",
            ),
        ),
    ),
}
