"""Packaging: the pinned compiler pair, the extras, the console script and the plug-in groups."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "halo_tvm" / "__init__.py").read_text(), re.MULTILINE)[1]

# Any newer tvm-ffi, which pip would pick by itself, ends the process when a module is saved as JSON.
TVM = ["apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post1"]
TORCH = "torch==2.13.0"
JAX = "jax>=0.10,<0.13"
FLAX = "flax>=0.12,<0.13"  # models that tests import
NOTEBOOKS = ["matplotlib>=3.10", "nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"]
PEERS = ["openvino>=2026.4,<2027", "llama-cpp-python>=0.3.36", "nncf>=3.4,<4", JAX, "matplotlib>=3.10"]
# Readers of GPU code, which need no GPU; the compiler, nvcc, comes with NVIDIA's toolkit.
CUDA_READERS = [f"nvidia-cuda-{tool}>=13.2,<14; sys_platform == 'linux'" for tool in ("cuobjdump", "nvdisasm")]
# Text in and out of language models; the sandbox of older jinja2 had ways out.
LANGUAGE = ["tokenizers>=0.22", "jinja2>=3.1.6"]
TRANSFORMERS = "transformers>=5,<6"
KERAS = "keras>=3.12,<4"
GGUF = "gguf>=0.19"
LITERT = "ai-edge-litert>=2.3,<3"  # the interpreter of TFLite files, as their reference
TORNADO = "tornado>=6.4"  # the event loop of TVM's RPC tracker

setup(
    name="halo_tvm",
    version=VERSION,
    description="A compiler and auto-tuner for deep-learning models on Apache TVM",
    license="Apache-2.0",
    license_files=["LICENSE"],
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    # The tuning logs lie beside the package in a checkout and inside it in a wheel.
    packages=[*find_packages(include=["halo_tvm", "halo_tvm.*"]), "halo_tvm.tuning_logs"],
    package_dir={"halo_tvm.tuning_logs": "tuning_logs"},
    package_data={
        "halo_tvm.tuning_logs": ["*/records.jsonl", "*.md"],
        "halo_tvm.launcher": ["*.cc"],
        "halo_tvm.text_reference": ["passage.txt"],
    },
    install_requires=[
        *TVM,
        "numpy>=2.0",
        "onnx>=1.21",
        "onnxruntime>=1.20",
        "flatbuffers>=24.3",
        "safetensors>=0.5",
        "tqdm>=4.66",
        "xgboost>=2.1",
        "cloudpickle>=3.0",
        "psutil>=6.0",
    ],
    extras_require={
        "onnx": [],
        "tune": [],
        "torch": [TORCH],
        "lm": LANGUAGE,
        "gguf": [GGUF],
        "hf": [TRANSFORMERS, "tokenizers", "huggingface_hub"],
        "tflite": [LITERT],
        "tensorflow": ["tensorflow-cpu>=2.21,<2.22", "tf2onnx>=1.17,<1.18"],
        "jax": [JAX, "flatbuffers>=24"],  # the latter reads files of jax.export
        "keras": [KERAS, JAX],
        "bench": [TORCH, *PEERS],
        "notebooks": [*NOTEBOOKS, "jupyter"],
        "rpc": [TORNADO],
        "cluster": [TORNADO],
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.8",
            "hypothesis>=6",
            "expecttest>=0.3",  # torch's own samples of its operators need it
            GGUF,  # writes the files that tests read
            TORCH,
            LITERT,
            JAX,
            "flatbuffers>=24",
            FLAX,
            KERAS,
            TRANSFORMERS,
            TORNADO,
            *NOTEBOOKS,
            *CUDA_READERS,
            *LANGUAGE,
        ],
        "lint": ["ruff==0.17.6", "mypy==2.4.1", "import-linter==2.16"],  # exact: each release finds something else
    },
    entry_points={
        "console_scripts": ["halo-tvm = halo_tvm.cli:entry"],
        "torch_dynamo_backends": ["halo_tvm = halo_tvm.integrations.torch:compile_backend"],
        # Groups for plug-ins of other distributions, see halo_tvm/plugins.py:
        #   halo_tvm.operators, halo_tvm.passes, halo_tvm.schedules, halo_tvm.targets
    },
)
