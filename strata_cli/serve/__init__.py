"""The service behind an OpenAI-compatible port: `strata serve`. The only importer of starlette and uvicorn."""
