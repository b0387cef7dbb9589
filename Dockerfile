# syntax=docker/dockerfile:1
# Two stages: the program is built in the official Rust image and runs, alone, in a distroless one. Both bases are pinned by
# digest (`docker buildx imagetools inspect IMAGE` shows the present one); the lock file pins everything else.
# Reproducible: equal sources give an equal program; SOURCE_DATE_EPOCH, if set, also fixes the times of the image.
FROM docker.io/library/rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
# The toolchain of the image itself: rust-toolchain.toml would also fetch components that only developers need.
ENV RUSTUP_TOOLCHAIN=1.95.0 CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
COPY . .
RUN cargo build --release --locked --bin kvindexer

FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
LABEL org.opencontainers.image.title="kvindexer" \
      org.opencontainers.image.description="Exact, live index of every KV-cache block in an LLM inference fleet" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/target/release/kvindexer /usr/local/bin/kvindexer
USER 65532:65532
EXPOSE 8090
ENTRYPOINT ["/usr/local/bin/kvindexer"]
