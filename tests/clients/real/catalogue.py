"""The one table of the real clients: their pinned packages, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RealClient:
    """One client.

    script: a file in `scripts`, .py or .mjs; pip, npm: what its environment holds, the client itself first; bare: the
    client comes without the packages that it asks for, and the others of pip are those of them that are needed;
    program: one of the system that it needs, whose version is told if there are no packages; python: the least that
    its packages run with; source: owner/repository@commit at GitHub, whose files are the client itself; secure: it also
    needs the server with TLS and keys; triton: Triton servers, and one in front of them; light: it needs nothing but
    the development installation, and runs with every change.
    """

    name: str
    script: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    bare: bool = False
    program: str = ""
    python: str = "python3.10"
    source: str = ""
    secure: bool = False
    triton: bool = False
    light: bool = False


WEBUI_IMPORTS = """
aiocache==0.12.3 aiofiles==25.1.0 aiohttp==3.14.5 aiosqlite==0.22.1 alembic==1.18.4 asgiref==3.11.1 authlib==1.7.2
bcrypt==5.0.0 beautifulsoup4==4.14.3 black==26.5.1 boto3==1.42.62 cryptography==48.0.1 fastapi==0.136.3 ftfy==6.3.1
google-re2==1.1.20251105 httpx2==2.16.0 httpx==0.28.1 joserfc==1.7.4 langchain-classic==1.0.7 langchain-core==1.4.8
langchain-text-splitters==1.1.2 ldap3==2.9.1 loguru==0.7.3 markdown==3.10.2 mcp==2.3.0 numpy==2.4.6 pillow==13.0.0
pycrdt==0.14.8 pydantic==2.13.4 pyjwt[crypto]==2.13.0 pyotp==2.9.0 python-dateutil==2.9.0.post0
python-mimeparse==2.0.0 python-multipart==0.0.32 python-socketio==5.16.2 pytz==2026.2 qrcode==8.2 redis==8.0.1
regex==2026.5.9 requests==2.34.2 sqlalchemy[asyncio]==2.0.50 starlette-compress==1.7.1 starsessions[redis]==2.2.1
tiktoken==0.13.0 typer==0.29.2 uvicorn[standard]==0.54.0 validators==0.35.0
"""
"""What Open WebUI imports in its small form (USE_SLIM_DOCKER); the rest, mostly for models of its own, is gigabytes."""

OPENAPI_GENERATOR = (
    "openapi-generator-cli==7.26.0",
    *("urllib3==2.7.0", "python-dateutil==2.9.0.post0", "pydantic==2.13.4", "typing-extensions==4.15.0"),
)
"""The program, and what the clients need that it writes."""

COSYVOICE = "FunAudioLLM/CosyVoice@ace7c47f41bbd303aa6bf1ea80e6f9fbd595cd40"
ITS_LIBRARIES = ("torch==2.3.1", "torchaudio==2.3.1", "numpy==1.26.4", "grpcio==1.57.0", "grpcio-tools==1.57.0")
"""As CosyVoice pins them. They bring CUDA, 5 GB; PIP_EXTRA_INDEX_URL can name an index without it."""

CLIENTS = (
    RealClient("openai (Python)", "openai_python.py", pip=("openai==3.54.0",), light=True),
    RealClient("openai (Node)", "openai_node.mjs", npm=("openai@6.49.0",)),
    RealClient("wyoming", "wyoming_python.py", pip=("wyoming==1.10.2",), light=True),
    RealClient("curl", "curl.py", program="curl", light=True),
    RealClient("ffmpeg", "ffmpeg.py", program="ffmpeg", light=True),
    RealClient("Chromium", "chromium.py", program="chromium", light=True),
    RealClient("litellm", "litellm_speech.py", pip=("litellm==1.106.2",)),
    RealClient("ElevenLabs (Python)", "eleven_python.py", pip=("elevenlabs==2.78.0",), secure=True),
    RealClient("ElevenLabs (Node)", "eleven_node.mjs", npm=("@elevenlabs/elevenlabs-js@2.73.0",)),
    RealClient("DashScope", "dashscope_python.py", pip=("dashscope==2.0.2",), secure=True),
    RealClient("pipecat (ElevenLabs)", "pipecat_eleven.py", pip=("pipecat-ai==1.14.0", "aiohttp"), secure=True),
    RealClient("livekit (ElevenLabs)", "livekit_eleven.py", pip=("livekit-plugins-elevenlabs==1.8.9",), secure=True),
    RealClient("requests, as CosyVoice's client", "cosyvoice_http.py", pip=("requests==2.34.2",), light=True),
    RealClient("grpcio, as CosyVoice's client", "cosyvoice_grpc.py", pip=("grpcio==1.85.1", "grpcio-tools==1.85.1")),
    RealClient(
        "CosyVoice's client.py",
        "cosyvoice_own.py",
        pip=(*ITS_LIBRARIES, "protobuf==4.25.0", "setuptools==80.9.0", "soundfile==0.14.0", "requests==2.34.2"),
        source=COSYVOICE,
        triton=True,
    ),
    RealClient(
        "CosyVoice's Triton clients",
        "cosyvoice_triton.py",
        pip=("tritonclient[grpc]==2.73.0", "soundfile==0.14.0", "requests==2.34.2"),
        source=COSYVOICE,
        triton=True,
    ),
    RealClient("openapi-python-client", "made_by_openapi.py", pip=("openapi-python-client==0.29.1",)),
    RealClient("openapi-generator", "openapi_java.py", pip=OPENAPI_GENERATOR, program="java", secure=True),
    RealClient("openai-agents", "openai_agents.py", pip=("openai-agents[voice]==0.24.0",)),
    RealClient("semantic-kernel", "semantic_kernel_speech.py", pip=("semantic-kernel==1.45.0",)),
    RealClient("Vercel AI", "vercel.mjs", npm=("ai@6.0.326", "@ai-sdk/openai@3.0.141")),
    RealClient("pipecat (openai)", "pipecat_openai.py", pip=("pipecat-ai[openai]==1.14.0",)),
    RealClient("livekit (openai)", "livekit_openai.py", pip=("livekit-plugins-openai==1.8.9", "livekit-agents==1.8.9")),
    RealClient("wyoming-openai", "wyoming_proxy.py", pip=("wyoming-openai==0.8.0",), python="python3.12"),
    RealClient(
        "Open WebUI",
        "webui_speech.py",
        pip=("open-webui==0.12.4", *WEBUI_IMPORTS.split()),
        bare=True,
        python="python3.11",
        secure=True,
    ),
    RealClient("openapi-typescript", "openapi_typescript.mjs", npm=("openapi-typescript@7.13.0", "typescript@5.9.3")),
    RealClient("schemathesis", "schemathesis_run.py", pip=("schemathesis==4.32.5",)),
)
