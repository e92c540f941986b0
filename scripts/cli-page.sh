#!/usr/bin/env bash
# Prints docs/cli.md: the help of each subcommand. `make cli-page` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
export COLUMNS=100 NO_COLOR=1

help_of() { # SUBCOMMAND...
    printf '```text\n'
    "$NVFOLD" "$@" --help | sed 's/[ \t]*$//'
    printf '```\n'
}

research_of() { # SUBCOMMAND...
    printf '\n### nvfold %s --help-research\n\n```text\n' "$*"
    "$NVFOLD" "$@" --help-research | sed 's/[ \t]*$//'
    printf '```\n'
}

cat <<'PAGE'
# The nvfold command

The output of `nvfold help` on one page; `make cli-page` writes it, and a test compares. Sizes are written `64M` or
`1.5GiB`. Every report has `--json`; its objects begin with `version` and `command`, and a new field does not change
the version. Errors go to stderr, with a hint what to do. Options for experiments, which the evaluation of the papers
needs, are not in `--help`; `--help-research` lists them.

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
    if "$NVFOLD" "$command" --help | grep -q -- --help-research; then
        research_of "$command"
    fi
    for inner in $(commands_of "$command"); do
        printf '\n### nvfold %s %s\n\n' "$command" "$inner"
        help_of "$command" "$inner"
    done
done
