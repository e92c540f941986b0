#!/usr/bin/env bash
# Prints docs/cli.md: what the command itself says about each subcommand. `make cli-page` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
export COLUMNS=100 NO_COLOR=1

help_of() { # SUBCOMMAND...
    printf '```text\n'
    "$NVFOLD" "$@" --help | sed 's/[ \t]*$//'
    printf '```\n'
}

cat <<'PAGE'
# The nvfold command

What `nvfold help` says, in one page; `make cli-page` writes it, and a test compares. Sizes are written `64M` or
`1.5GiB`. Every report has `--json`; its objects begin with `version` and `command`, and a new field does not change
the version. Errors go to stderr and say what to do.

## nvfold

PAGE
help_of
# Names of the subcommands of a command.
commands_of() { # SUBCOMMAND...
    "$NVFOLD" "$@" --help |
        awk '/^Commands:/ { on = 1; next } /^[^ ]/ { on = 0 } on && /^  [a-z]/ && $1 != "help" { print $1 }'
}

for command in $(commands_of); do
    printf '\n## nvfold %s\n\n' "$command"
    help_of "$command"
    for inner in $(commands_of "$command"); do
        printf '\n### nvfold %s %s\n\n' "$command" "$inner"
        help_of "$command" "$inner"
    done
done
