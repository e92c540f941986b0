#!/usr/bin/env bash
# Looks over every shell script of the repository with shellcheck, which must have no remark. Installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/need.sh shellcheck=shellcheck

# By their first line, whatever their names are. Others have no business here: build output, and what git does not know.
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard | while read -r file; do
    [ -f "$file" ] && [ ! -L "$file" ] && head -c 64 "$file" | head -1 | grep -qaE '^#!.*\b(ba)?sh$|^# shellcheck shell=' && echo "$file"
done; echo scripts/commit.sh)
shellcheck -x "${scripts[@]}"
echo "shellcheck: ${#scripts[@]} scripts, no remark"
