# Sets NVFOLD_COMMIT and NVFOLD_COMMIT_DATE, which `nvfold --version` names, and NVFOLD_COMMIT_TIME in seconds, from the
# clone. What is set already stays: a package that is built without git sets it. To be sourced.
# shellcheck shell=bash
if [ -z "${NVFOLD_COMMIT:-}" ] && git rev-parse --git-dir >/dev/null 2>&1; then
    NVFOLD_COMMIT=$(git describe --always --abbrev=12 --exclude='*' --dirty)
    NVFOLD_COMMIT_DATE=$(git log -1 --format=%cs)
    NVFOLD_COMMIT_TIME=$(git log -1 --format=%ct)
fi
export NVFOLD_COMMIT=${NVFOLD_COMMIT:-} NVFOLD_COMMIT_DATE=${NVFOLD_COMMIT_DATE:-}
export NVFOLD_COMMIT_TIME=${NVFOLD_COMMIT_TIME:-$(date +%s)}
