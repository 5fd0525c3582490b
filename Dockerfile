# Images of mcp-proxy; the context is the root of this repository:
#
#	docker build --target proxy -t mcp-proxy .              # the binary alone
#	docker build --target node-uv -t mcp-proxy:node-uv .    # with npx and uvx for servers
#	docker build --target tools -t mcp-proxy-tools .        # with the servers of examples/sidecar
#
# .ci/image reads this file, and runs what is in the images from scratch.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/ \
    ./cmd/mcp-proxy ./examples/servers/clock ./examples/servers/notes \
    && mkdir /empty

# The proxy alone. A new volume takes the owner of the folder that it covers. So the
# folder of the socket is here, with the same owner in all images. The socket for
# operators is in the runtime directory, as there is no /tmp: "docker exec NAME
# /usr/local/bin/mcp-proxy status" asks there.
FROM scratch AS proxy
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /empty /run/mcp
COPY --from=build --chown=65532:65532 /empty /run/user/65532
ENV XDG_RUNTIME_DIR=/run/user/65532
COPY --from=build /out/mcp-proxy /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/mcp-proxy"]

# The proxy as the host of two servers. For your own server, COPY the binary into its
# image.
FROM proxy AS tools
COPY --from=build --chown=65532:65532 /empty /data
COPY --from=build /out/clock /out/notes /usr/local/bin/

# For servers that npx and uvx start. They write to the home directory, and to /tmp: with
# a read-only root both need a volume.
FROM ghcr.io/astral-sh/uv:0.9 AS uv
FROM node:22-bookworm-slim AS node-uv
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=uv /uv /uvx /usr/local/bin/
COPY --from=proxy --chown=65532:65532 /run/mcp /run/mcp
COPY --from=proxy --chown=65532:65532 /run/user/65532 /run/user/65532
COPY --from=proxy --chown=65532:65532 /run/mcp /home/mcp
ENV XDG_RUNTIME_DIR=/run/user/65532 HOME=/home/mcp UV_PYTHON_DOWNLOADS=never
COPY --from=proxy /usr/local/bin/mcp-proxy /usr/local/bin/
WORKDIR /home/mcp
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/mcp-proxy"]

# What "docker build ." makes.
FROM proxy
