#!/bin/sh
# Tell the SuperLink which nodes may come: register.sh NAME… (for compose.yaml; reads /keys/NAME.pub)
set -eu
mkdir -p "$FLWR_HOME"
printf '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "superlink:8000"\nroot-certificates = "/keys/ca.crt"\n' \
    > "$FLWR_HOME/config.toml"
for name in "$@"; do
    flwr supernode register "/keys/$name.pub" --name "$name" --format json
done
