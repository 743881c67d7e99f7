# The app on port 3838:
#   docker compose up --build        and then http://127.0.0.1:3838
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /opt/mcrepar
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m pip install -c constraints.txt ".[app]" \
    && useradd --uid 10001 --create-home mcrepar \
    && mkdir /runs

USER mcrepar
WORKDIR /home/mcrepar
EXPOSE 3838
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:3838/', timeout=4)"]
CMD ["mcrepar", "app", "--host", "0.0.0.0", "--port", "3838", "--runs", "/runs", "--no-browser"]
