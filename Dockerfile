# The image of every role: skyserve lb, skyserve node (the agent of a machine), skyserve engine.
# The binaries are built before: the context has one per platform, as linux/amd64/skyserve. `make image` builds it.
ARG BASE=gcr.io/distroless/static-debian12:nonroot
FROM ${BASE}
ARG TARGETPLATFORM=linux/amd64
COPY ${TARGETPLATFORM}/skyserve /usr/bin/skyserve
# The user nonroot of the base image, by number: Kubernetes cannot check runAsNonRoot of a name.
USER 65532:65532
# State files; mount a volume to keep them.
ENV SKYSERVE_HOME=/home/nonroot/.skyserve
ENTRYPOINT ["/usr/bin/skyserve"]
CMD ["--help"]
