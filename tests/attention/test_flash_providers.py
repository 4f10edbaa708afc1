"""FlashAttention's doors: what is missing is named with its remedy, and each package is called as it documents."""

import sys
from types import ModuleType

import pytest
import torch

from qwen3lab.attention import flash_providers
from qwen3lab.attention.flash_providers import PROVIDERS


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="flash_provider='flash'; known: flash_attn_interface, flash_attn, vllm"):
        flash_providers.named("flash")


@pytest.mark.parametrize("name", PROVIDERS[:3])
def test_a_missing_package_names_its_install_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"flash_provider='{name}' cannot be loaded .*(pip install|build it)"):
        flash_providers.named(name)


def test_a_cpu_has_none():
    with pytest.raises(ImportError, match="FlashAttention runs on CUDA devices; this is cpu"):
        flash_providers.first(torch.device("cpu"), 16)


def test_the_first_that_takes_the_page_size(monkeypatch):
    for name in PROVIDERS[:3]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    card = torch.device("cuda")
    assert flash_providers.first(card, 8).name == "flash_attn_interface"
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    assert flash_providers.first(card, 256).name == "flash_attn"
    assert flash_providers.first(card, 16).name == "vllm.vllm_flash_attn"
    with pytest.raises(ImportError, match="flash_attn reads pages of a multiple of 256, not 8"):
        flash_providers.first(card, 8)


def test_torch_before_block_tables_is_refused(monkeypatch):
    module = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = lambda query, key, value: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ImportError, match="has varlen_attn without block_table"):
        flash_providers.named(module.__name__)
