"""A victim stays in the plan of the step that preempts it (vLLM #23347)."""
