#!/usr/bin/env bash
# Installs a program that PyPI has, in an environment of its own: target/tools/NAME/bin has it.
#
#   scripts/python-tool.sh NAME PACKAGE VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
package=$2
version=$3
into=target/tools/$name

scripts/need.sh python3=python3
echo "python-tool: installing $package $version into $into"
python3 -m venv "$into" 2>/dev/null || { scripts/need.sh no-venv=python3-venv; python3 -m venv "$into"; }
"$into/bin/pip" install --quiet --disable-pip-version-check "$package==$version"
