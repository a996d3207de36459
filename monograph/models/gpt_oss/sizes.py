"""The published gpt_oss models and a small one for trying things out."""

from monograph.models.config import RopeConfig
from monograph.models.gpt_oss.config import BiasedMoeConfig, BiasedRouterConfig, GptOssConfig, SinkAttentionConfig
from monograph.models.load_balance_config import LoadBalanceConfig


def balance() -> LoadBalanceConfig:
    """A choice of ours, as the published config.json has transformers' loss off: its formula, its default weight.

    One coefficient is for all layers together.
    """
    return LoadBalanceConfig(coefficient=0.001, scope="micro_batch", times_top_k=True, mean_of_layers=True)


def make_published(n_layers: int, n_experts: int) -> GptOssConfig:
    """What both published sizes share."""
    return GptOssConfig(
        vocab_size=201088,
        dim=2880,
        n_layers=n_layers,
        norm_eps=1e-5,
        rope=RopeConfig(
            max_seq_len=131072,
            theta=150000.0,
            scaling="yarn",
            factor=32.0,
            original_max_seq_len=4096,
            truncate=False,
        ),
        attention=SinkAttentionConfig(n_heads=64, n_kv_heads=8, head_dim=64),
        moe=BiasedMoeConfig(
            n_experts=n_experts, hidden_dim=2880, router=BiasedRouterConfig(top_k=4), balance=balance()
        ),
    )


def gpt_oss_debugmodel() -> GptOssConfig:
    """A few million parameters with every feature of the large ones, for tests and laptops."""
    return GptOssConfig(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-5,
        window=32,
        rope=RopeConfig(
            max_seq_len=2048,
            theta=150000.0,
            scaling="yarn",
            factor=2.0,
            original_max_seq_len=1024,
            truncate=False,
        ),
        attention=SinkAttentionConfig(n_heads=8, n_kv_heads=2, head_dim=32),
        moe=BiasedMoeConfig(n_experts=8, hidden_dim=192, router=BiasedRouterConfig(top_k=4), balance=balance()),
    )


def gpt_oss_20b() -> GptOssConfig:
    """gpt-oss-20b: 20.91 billion parameters, 32 experts of which 4 serve a token."""
    return make_published(24, 32)


def gpt_oss_120b() -> GptOssConfig:
    """gpt-oss-120b: 116.83 billion parameters, 128 experts of which 4 serve a token."""
    return make_published(36, 128)
