# syntax=docker/dockerfile:1
# The trainer in a container: `docker build -t cohort .`, then see docs/container.md.
FROM python:3.12-slim

# bubblewrap: the stronger of the two jails for programs that a model wrote. gcc: the compiled part of a run on a CPU.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/cohort
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
# torch by itself, so that a change of the source does not fetch it again.
RUN pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt torch
COPY src ./src
RUN pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[gym,tensorboard]'

# Not root. Runs are written to the folder that is mounted at /work.
RUN useradd --create-home --uid 1000 trainer && install --directory --owner=trainer /work
USER trainer
WORKDIR /work

# As a list and not as a line for a shell: the trainer itself is the first process, and `docker stop` reaches it.
ENTRYPOINT ["cohort"]
CMD ["--help"]
