#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command of the build with what belongs to the machine it runs on: certificates and pip settings, which come as
# secrets of the build and are in no layer. Without them it only runs the command.
set -euo pipefail

secrets=${BUILD_SECRETS:-/run/secrets}
certificates=$secrets/certificates
if [ -s "$certificates" ]; then
  # One file for everything that speaks TLS: the system's certificates and the site's.
  bundle=$(mktemp)
  apt=$(mktemp)
  trap 'rm -f "$bundle" "$apt"' EXIT
  for system in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    if [ -r "$system" ]; then cat "$system" >>"$bundle"; fi
  done
  cat "$certificates" >>"$bundle"
  chmod 0644 "$bundle" "$apt"
  printf 'Acquire::https::CAInfo "%s";\n' "$bundle" >"$apt"
  export PIP_CERT=$bundle SSL_CERT_FILE=$bundle REQUESTS_CA_BUNDLE=$bundle CURL_CA_BUNDLE=$bundle APT_CONFIG=$apt
fi
if [ -s "$secrets/pip" ]; then
  export PIP_CONFIG_FILE=$secrets/pip
fi
"$@"
