#!/usr/bin/env bash
# Every command behind results/, in order: start it again whenever there is time.
#
#     results/make.sh              # all blocks
#     results/make.sh precision    # one of them
#
# Kept runs are not repeated, interrupted ones resume, and each that finishes is copied to
# results/runs. The runs of a block come from one commit of the code, so that they can be compared;
# it is checked out below .results, where the runs lie as well. Needs PROTOFED_DATA.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
export OMP_NUM_THREADS=1

main() {
  if [ $# -eq 0 ]; then set -- precision online; fi
  for block in "$@"; do "$block"; done
}

# Accuracy in bfloat16 beside float32 (docs/performance.md).
precision() {
  at 9882886
  for precision in float32 bfloat16; do
    runs compare fedavg fpl fedlsa --data office-caltech --net lsa-cnn --rounds 40 --seeds 3 \
      --set precision=$precision
    runs compare fedavg fpl fedlsa --data digits --net lsa-cnn --rounds 20 --seeds 3 \
      --set evaluate_every=2 --set precision=$precision
  done
}

# Prototypes of the last epoch in place of a pass of their own (docs/methods/fpl.md).
online() {
  at 9882886
  runs compare fpl fpl:collect=online --data office-caltech --net lsa-cnn --rounds 40 --seeds 3 \
    --set precision=bfloat16
}

# Use the code of a commit from here on, with the kept runs at hand.
at() {
  CODE=$ROOT/.results/$1
  [ -d "$CODE" ] || git worktree add --detach "$CODE" "$1"
  mkdir -p "$ROOT/.results/runs"
  cp -rn "$ROOT"/results/runs/. "$ROOT/.results/runs/"
}

# One command of that code, then a copy of what has finished. Failures do not stop the others.
runs() {
  (cd "$ROOT/.results" && PYTHONPATH=$CODE/src nice "$ROOT/.venv/bin/python" -m protofed "$@") || true
  PYTHONPATH=$CODE/src "$ROOT/.venv/bin/python" -m protofed runs archive "$ROOT/.results/runs" \
    --to "$ROOT/results/runs"
}

main "$@"
