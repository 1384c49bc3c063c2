#!/bin/sh
# The whole family on the demo task: every algorithm from the same cold start per seed, with the same budget.
#   benchmarks/family.sh OUTPUT [JOBS] [PYTHON] [CONTENDER ...]        again with the same OUTPUT goes on where it stopped
set -eu
output=${1:-runs/family} jobs=${2:-2} python=${3:-.venv/bin/python}
if [ $# -gt 3 ]; then
    shift 3
else
    set -- grpo process=column_addition_process dr_grpo dapo reinforce++ reinforce++_baseline rloo gspo cispo ppo \
        online_rft rft sft dpo:data=start online_dpo=dpo:data=policy
fi
exec "$python" -m cohort compare "$@" \
    --seeds 0,1,2 --jobs "$jobs" --output "$output" \
    num_steps=50 model.device=cpu monitors.rollouts_every=0 checkpoints.every_steps=0 \
    evaluation.max_problems=256 evaluation.every_steps=0 evaluation.greedy=false \
    'evaluation.sets={held_out={source="task:column_addition",split="held_out",max_prompt_tokens=16}}'
