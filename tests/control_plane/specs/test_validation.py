"""All mistakes of a spec are reported together, by pointer, with the nearest valid name."""

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from athanor.core.errors import Invalid
from athanor.specs import fit
from athanor.specs.presets import PRESETS
from athanor.specs.v1 import JobSpec
from athanor.specs.validation import digest, parse_spec, parse_yaml
from trainer.contract import mesh_choice
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.micro_batch import find_largest_micro_batch
from trainer.contract.parallelism import MeshSizes


def problems(written: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as caught:
        parse_spec(written)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


def test_all_mistakes_are_named_at_once(spec: dict[str, Any]) -> None:
    spec["nmae"] = "x"
    spec["training"] |= {"stepz": 3, "steps": "many", "model": {"preset": "lama-1m"}}
    spec["resources"]["nodes"] = 0
    found = problems(spec)
    assert set(found) == {
        "/nmae", "/training/stepz", "/training/steps", "/training/model/preset", "/resources/nodes",
    }  # fmt: skip
    assert "did you mean 'name'?" in found["/nmae"]
    assert "did you mean 'steps'?" in found["/training/stepz"]
    assert "did you mean 'llama-1m'?" in found["/training/model/preset"]
    assert "'many'" in found["/training/steps"]


def test_mistakes_between_fields_are_named_beside_those_of_single_fields(spec: dict[str, Any]) -> None:
    spec["nmae"] = "x"
    spec["after"] = ["job_1"]
    spec["schedule"] = {"deferrable": True}
    spec["training"] |= {"precision": "fp16", "tokens_per_step": 100, "recompute_layers": 2}
    spec["training"]["schedule"] = {"warmup_steps": 50}
    found = problems(spec)
    assert set(found) == {
        "/nmae", "/after/0", "/schedule/deferrable", "/training/precision", "/training/tokens_per_step",
        "/training/recompute_layers", "/training/schedule/warmup_steps",
    }  # fmt: skip
    assert "the id of a job" in found["/after/0"]
    assert "^" not in "".join(found.values())  # no regular expression


def test_a_padding_token_beyond_the_vocabulary_is_refused(spec: dict[str, Any]) -> None:
    shape = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 8}
    spec["training"] |= {"model": {"shape": {**shape, "pad_token_id": 300}}, "tokenizer": {"vocab_size": 300}}
    detail = problems(spec)["/training/model/shape/pad_token_id"]
    assert detail == "pad_token_id 300 is not below tokenizer.vocab_size 300; lower it"
    spec["training"]["model"]["shape"]["pad_token_id"] = 299
    parse_spec(spec)


def test_long_documents_without_packing_are_refused(spec: dict[str, Any]) -> None:
    data = spec["training"]["data"]
    data["long_documents"] = "drop"
    detail = problems(spec)["/training/data/long_documents"]
    assert detail == "long_documents drop needs packing `documents`; set it, or leave long_documents out"
    data["packing"] = "documents"
    parse_spec(spec)


def test_what_conflicts_with_a_wrong_field_is_not_guessed(spec: dict[str, Any]) -> None:
    spec["training"] |= {"steps": "many", "sequence_length": 4, "tokens_per_step": 100}
    spec["training"]["schedule"] = {"warmup_steps": 10**6}
    assert set(problems(spec)) == {"/training/steps", "/training/sequence_length"}
    del spec["training"]["steps"], spec["training"]["model"], spec["name"]
    assert set(problems(spec)) == {"/name", "/training/steps", "/training/model", "/training/sequence_length"}


@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (10, 2), (19, 3), (20, 20), (1049, 20), (10_000, 200), (10**6, 2000)]
)
def test_the_default_warmup_follows_the_length_of_the_run(spec: dict[str, Any], steps: int, warmup: int) -> None:
    spec["training"]["steps"] = steps
    spec["training"].pop("schedule", None)
    training = parse_spec(spec).training
    assert training is not None
    assert training.schedule.warmup_steps == warmup


@pytest.mark.parametrize(
    ("field", "value", "pointer", "says"),
    [
        ("tokens_per_step", 100, "/training/tokens_per_step", "take 64 or 128"),
        ("sequence_length", 4, "/training/sequence_length", "greater than or equal to 8"),
        ("precision", "fp16", "/training/precision", "none of auto, fp32, bf16"),
        ("data", {"source": "ftp://x"}, "/training/data/source", "must be builtin:python-stdlib, dataset:NAME"),
        ("model", {}, "/training/model", "exactly one of preset and shape"),
        ("schedule", {"warmup_steps": 50}, "/training/schedule/warmup_steps", "exceeds steps"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(
    spec: dict[str, Any], field: str, value: Any, pointer: str, says: str
) -> None:
    spec["training"][field] = value
    found = problems(spec)
    assert says in found[pointer]


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [
        ("steps", True, "/training/steps"),
        ("schedule", {"warmup_steps": False}, "/training/schedule/warmup_steps"),
        ("optimizer", {"learning_rate": True}, "/training/optimizer/learning_rate"),
        ("parallelism", {"pipeline": 2, "stage_layers": [True, 1]}, "/training/parallelism/stage_layers"),
    ],
)
def test_true_and_false_are_no_numbers(spec: dict[str, Any], field: str, value: Any, pointer: str) -> None:
    spec["training"][field] = value
    assert "a number is expected, not true or false" in problems(spec)[pointer]


def test_a_shape_must_divide(spec: dict[str, Any]) -> None:
    shape = {"hidden_size": 100, "num_layers": 1, "num_heads": 3, "num_kv_heads": 1, "intermediate_size": 8}
    spec["training"]["model"] = {"shape": shape}
    assert "not a multiple of num_heads 3" in problems(spec)["/training/model/shape/hidden_size"]


@pytest.mark.parametrize("written", [None, [], "text", 3])
def test_what_is_no_mapping_is_refused(written: Any) -> None:
    with pytest.raises(Invalid, match="mapping of fields"):
        parse_spec(written)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("file:///etc", "must begin with http:// or https://"),
        ("mlruns", "must begin with http:// or https://"),
        ("https://", "must begin with http:// or https://"),
        ("https://ada:pass@mlflow.example", "use secrets"),
    ],
)
def test_a_node_sends_metrics_to_servers_only_and_no_password_is_in_a_spec(
    spec: dict[str, Any], uri: str, problem: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_spec({**spec, "telemetry": {"mlflow": {"tracking_uri": uri}}})
    assert refused.value.problems[0].pointer == "/telemetry"
    assert problem in refused.value.problems[0].detail


def test_broken_yaml_is_refused_with_its_place() -> None:
    with pytest.raises(Invalid, match="line 2"):
        parse_yaml(b"name: x\n  - : :\n")
    with pytest.raises(Invalid, match="not UTF-8"):
        parse_yaml(b"name: \xff\xfe")
    with pytest.raises(Invalid, match="larger than 262144 bytes"):
        parse_yaml(b"x" * 300_000)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_are_valid_and_match_the_published_schema(preset: Any) -> None:
    parsed = preset.parsed()
    jsonschema.validate(preset.spec, JobSpec.model_json_schema())
    assert parse_spec(parse_yaml(preset.yaml.encode())) == parsed


def test_equal_specs_have_equal_digests_whatever_the_order(spec: dict[str, Any]) -> None:
    turned = dict(reversed(spec.items()))
    assert digest(parse_spec(spec).model_dump(mode="json")) == digest(parse_spec(turned).model_dump(mode="json"))
    turned["name"] = "other"
    assert digest(parse_spec(spec).model_dump(mode="json")) != digest(parse_spec(turned).model_dump(mode="json"))


LAPTOP = fit.PoolShape("local/cpu", slots_per_node=2, nodes=1, memory_bytes_per_node=16 * 2**30)
H100_NODES = fit.PoolShape(
    "gpu/h100", 8, nodes=1024, memory_bytes_per_node=2**41, accelerator="h100", accelerator_memory_bytes=80 * 2**30
)


def test_large_presets_do_not_fit_a_laptop_and_fit_their_cluster() -> None:
    for name, preset in PRESETS.items():
        pool = LAPTOP if preset.spec["resources"]["accelerator"] == "cpu" else H100_NODES
        assert fit.rejections(preset.parsed(), pool) == [], name
    found = fit.rejections(PRESETS["llama-8b"].parsed(), LAPTOP)
    assert {problem.code for problem in found} == {"does_not_fit", "too_many_nodes"}
    assert "GiB" in found[0].detail


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"nodes": 3, "processes_per_node": 8}, []),
        ({"nodes": 2, "spare_nodes": 1, "processes_per_node": 8}, []),
        (
            {"nodes": 4, "processes_per_node": 8},
            [("/resources/nodes", "4 nodes asked, pool gpu/h100 has 4, 1 of them spare; take at most 3 in all, "
              "or another pool")],
        ),
        (
            {"nodes": 3, "spare_nodes": 1, "processes_per_node": 8},
            [("/resources/spare_nodes", "3 nodes and 1 spare ones asked, pool gpu/h100 has 4, 1 of them spare; take at "
              "most 3 in all, or another pool")],
        ),
        (
            {"nodes": 3, "processes_per_node": 16},
            [("/resources/processes_per_node", "16 processes per node need 48 slots, and jobs may hold 24: pool "
              "gpu/h100 has 4 nodes, 1 of them spare; take at most 8")],
        ),
    ],
)  # fmt: skip
def test_a_job_that_needs_the_spare_nodes_of_its_pool_is_refused(
    spec: dict[str, Any], resources: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    pool = replace(H100_NODES, nodes=4, spare_nodes=1)
    parsed = on_one_gpu_node(spec, "llama-100m", **resources)
    assert [(each.pointer, each.detail) for each in fit.rejections(parsed, pool)] == found


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].spec["resources"]["accelerator"] != "cpu"])
def test_a_preset_computes_for_longer_than_it_sends_and_ends_within_its_time_limit(name: str) -> None:
    spec = fit.resolve(PRESETS[name].parsed(), H100_NODES)
    training, world = spec.training, spec.resources.world_size
    assert training is not None and training.tokens_per_step <= 2**24, "the largest batch of Llama 3 405B"
    vocab_size = training.tokenizer.vocab_size
    sizes = plan_mesh(training, vocab_size, world)
    assert isinstance(sizes, MeshSizes)
    micro_batch = find_largest_micro_batch(training, sizes, vocab_size, H100_NODES.accelerator_memory_bytes)
    for place in (0, sizes.pipeline - 1):
        cost = RankCost(training, vocab_size, sizes, place, micro_batch, on_gpu=True)
        computes = mesh_choice.compute_seconds(training, vocab_size, world)
        assert mesh_choice.send_seconds(cost.traffic(), sizes, 8) <= computes
        step = mesh_choice.step_seconds(training, vocab_size, sizes, cost, 8)
        assert step < 1.3 * computes
        assert step * training.steps < spec.time_limit_seconds


def test_a_micro_batch_that_is_too_large_is_refused_where_the_spec_says_it(spec: dict[str, Any]) -> None:
    spec["training"] |= {"model": {"preset": "llama-100m"}, "tokens_per_step": 2**21, "sequence_length": 2**14}
    spec["training"]["parallelism"] = {"micro_batch_sequences": 16}
    assert [problem.code for problem in fit.rejections(parse_spec(spec), LAPTOP)] == ["does_not_fit"]
    spec["training"]["parallelism"] = {}
    assert fit.rejections(parse_spec(spec), LAPTOP) == []


def on_one_gpu_node(spec: dict[str, Any], preset: str = "llama-8b", **resources: Any) -> JobSpec:
    """Return a spec that trains a model with 8 processes on one node of H100s."""
    spec["training"] |= {"model": {"preset": preset}, "tokens_per_step": 2**18, "sequence_length": 2**12}
    spec["training"] |= {"precision": "bf16"}
    spec["resources"] = {"accelerator": "h100", "nodes": 1, "processes_per_node": 8, **resources}
    return parse_spec(spec)


def evaluation_on_one_gpu(preset: str, kind: str = "loss", length: int = 4096, **fields: Any) -> JobSpec:
    """Return a resolved spec that evaluates a model on one H100."""
    task: dict[str, Any] = {"name": "held-out", "kind": kind, "source": "dataset:held-out"}
    if kind == "generation":
        task |= {"scores": ["f1"], "max_tokens": 64}
    parsed = parse_spec(
        {
            "version": 1, "name": "evaluate", "resources": {"accelerator": "h100", "nodes": 1, "processes_per_node": 1},
            "evaluation": {"model": "model:bot@1", "sequence_length": length, "precision": "bf16", "tasks": [task],
                           **fields},
        }
    )  # fmt: skip
    assert parsed.training is not None
    model = parsed.training.model.model_copy(update={"base": None, "preset": preset})
    return parsed.model_copy(update={"training": parsed.training.model_copy(update={"model": model})})


@pytest.mark.parametrize("kind", ["loss", "generation"])
def test_an_evaluation_is_admitted_where_training_of_its_model_does_not_fit(kind: str) -> None:
    evaluates = evaluation_on_one_gpu("llama-8b", kind)
    trains = evaluates.model_copy(update={"evaluation": None})
    assert [each.code for each in fit.rejections(trains, H100_NODES)] == ["does_not_fit"]
    assert fit.rejections(evaluates, H100_NODES) == []
    need = fit.estimate(evaluates, H100_NODES, with_smallest_micro_batches=True)
    assert evaluates.training is not None
    weights = 2 * evaluates.training.model.resolve().num_parameters(evaluates.training.tokenizer.vocab_size)
    assert weights < need.memory_bytes_per_process < 1.5 * weights


def test_an_evaluation_that_does_not_fit_is_refused_with_remedies_of_its_own() -> None:
    (problem,) = fit.rejections(evaluation_on_one_gpu("llama-70b"), H100_NODES)
    assert problem.code == "does_not_fit"
    assert (
        "Take a smaller model, more nodes, a smaller sequence_length, or micro_batch_sequences auto" in problem.detail
    )
    assert "activation_checkpointing" not in problem.detail


def test_a_model_is_compared_with_the_memory_of_accelerators_and_not_of_their_node(spec: dict[str, Any]) -> None:
    parsed = on_one_gpu_node(spec)
    need = fit.estimate(parsed, H100_NODES, with_smallest_micro_batches=True).memory_bytes_per_process
    for device, codes in ((need, []), (need - 1, ["does_not_fit"])):
        for memory_of_node in (2**37, 2**42):
            pool = replace(H100_NODES, accelerator_memory_bytes=device, memory_bytes_per_node=memory_of_node)
            assert [problem.code for problem in fit.rejections(parsed, pool)] == codes


@pytest.mark.parametrize(
    ("accelerator", "written", "resolved"),
    [("cpu", None, "fp32"), ("h100", None, "bf16"), ("v100", None, "auto"), ("h100", "fp32", "fp32")],
)
def test_the_precision_of_a_spec_that_names_none_is_that_of_its_pool(
    spec: dict[str, Any], accelerator: str, written: str | None, resolved: str
) -> None:
    spec["training"].pop("precision", None)
    spec["training"] |= {"precision": written} if written else {}
    pool = replace(H100_NODES, accelerator=accelerator)
    training = fit.resolve(parse_spec(spec), pool).training
    assert training is not None and training.precision == resolved


def test_fp32_on_an_accelerator_is_warned_of_with_its_cost(spec: dict[str, Any]) -> None:
    on_one_gpu_node(spec)
    spec["training"]["precision"] = "fp32"
    (warning,) = [each for each in fit.warnings(parse_spec(spec), H100_NODES) if each.code == "slow_precision"]
    assert warning.pointer == "/training/precision"
    assert "2 times" in warning.detail and "training.precision to bf16" in warning.detail
    assert "slow_precision" not in [each.code for each in fit.warnings(on_one_gpu_node(spec), H100_NODES)]


@pytest.mark.parametrize(("every_minutes", "is_warned"), [(None, True), (5.0, False), ("auto", False)])
def test_a_run_without_a_checkpoint_before_its_end_is_warned_of(
    spec: dict[str, Any], every_minutes: float | str | None, *, is_warned: bool
) -> None:
    spec["checkpoint"] = {"every_steps": spec["training"]["steps"] + 1, "every_minutes": every_minutes}
    codes = [warning.code for warning in fit.warnings(on_one_gpu_node(spec), H100_NODES)]
    assert ("no_checkpoint_before_the_end" in codes) == is_warned


def test_shadow_checkpoints_that_the_nodes_have_no_memory_for_are_warned_of(spec: dict[str, Any]) -> None:
    for interval, memory, is_warned in ((1, 1024, False), (1, 16, True), ("auto", 16, False)):
        spec["checkpoint"] = {"shadow_every_steps": interval}
        pool = replace(H100_NODES, memory_bytes_per_node=memory * 2**30)
        found = [each.code for each in fit.warnings(on_one_gpu_node(spec, "llama-1b"), pool)]
        assert ("shadows_do_not_fit" in found) == is_warned, (interval, memory, found)


@pytest.mark.parametrize(("changes", "copies"), [({}, 2), ({"spare_nodes": 1}, 6), ({"min_nodes": 1}, 6)])
def test_a_run_that_can_lose_a_node_has_copies_on_another_one(
    spec: dict[str, Any], changes: dict[str, int], copies: int
) -> None:
    def shadow_bytes(**resources: int) -> int:
        spec["resources"] = {"accelerator": "h100", "processes_per_node": 1, **resources}
        return fit.estimate(parse_spec(spec), H100_NODES).shadow_bytes_per_process

    assert shadow_bytes(nodes=2, **changes) == shadow_bytes(nodes=2) // 2 * copies


@pytest.mark.parametrize(
    ("nodes", "min_nodes", "training", "code", "words"),
    [
        (2, 1, {}, None, ""),
        (2, 2, {}, "not_fewer_nodes", "min_nodes 2 is not less than nodes 2; take at most 1, or leave it out"),
        (1, 1, {}, "not_fewer_nodes", "min_nodes 1 for a job of one node, which cannot train on fewer; leave it out"),
        (4, 1, {"parallelism": {"pipeline": 2}}, "does_not_fit", "the job cannot train on min_nodes 1: "),
        (4, 2, {"parallelism": {"pipeline": 2}}, None, ""),
        (2, 1, {"parallelism": {"data": 2}}, "does_not_fit", "the job cannot train on min_nodes 1: "),
    ],
)
def test_a_job_shrinks_only_to_a_number_of_nodes_that_fits(
    spec: dict[str, Any], nodes: int, min_nodes: int, training: dict[str, Any], code: str | None, words: str
) -> None:
    resources = {"nodes": nodes, "min_nodes": min_nodes, "processes_per_node": 1}
    parsed = JobSpec.model_validate({**spec, "training": {**spec["training"], **training}, "resources": resources})
    pool = fit.PoolShape("cpu", 4, nodes=4, memory_bytes_per_node=2**34)
    problems = [each for each in fit.rejections(parsed, pool) if each.pointer == "/resources/min_nodes"]
    assert [each.code for each in problems] == ([] if code is None else [code])
    assert all(each.detail.startswith(words) for each in problems)


def test_copies_for_spare_nodes_count_as_shadow_checkpoints(spec: dict[str, Any]) -> None:
    sizes = []
    for nodes, spare_nodes in ((2, 0), (2, 1), (1, 0)):
        parsed = on_one_gpu_node(spec)
        resources = parsed.resources.model_copy(update={"nodes": nodes, "spare_nodes": spare_nodes})
        parsed = parsed.model_copy(update={"resources": resources})
        sizes.append(fit.estimate(parsed, H100_NODES).shadow_bytes_per_process)
    assert sizes[1] == 3 * sizes[0]
    assert sizes[2] > 0


def test_micro_batches_of_automatic_size_fill_the_share_of_an_accelerator(spec: dict[str, Any]) -> None:
    parsed = on_one_gpu_node(spec, "llama-1b")
    small, large = (
        fit.estimate(parsed, replace(H100_NODES, accelerator_memory_bytes=gib * 2**30)).memory_bytes_per_process
        for gib in (40, 80)
    )
    assert 0.5 * 40 * 2**30 < small <= 0.8 * 40 * 2**30 < large <= 0.8 * 80 * 2**30


def test_an_accelerator_of_unknown_memory_is_not_guessed_but_said(spec: dict[str, Any]) -> None:
    parsed, pool = on_one_gpu_node(spec), replace(H100_NODES, accelerator_memory_bytes=None)
    assert fit.estimate(parsed, pool).pool_memory_bytes_per_process is None
    assert fit.rejections(parsed, pool) == []
    assert "accelerator_memory_unknown" in [warning.code for warning in fit.warnings(parsed, pool)]
    assert "accelerator_memory_unknown" not in [warning.code for warning in fit.warnings(parsed, H100_NODES)]


def test_processes_that_share_an_accelerator_share_its_memory(spec: dict[str, Any]) -> None:
    spec["resources"] = {"accelerator": "h100", "processes_per_node": 16}
    assert fit.estimate(parse_spec(spec), H100_NODES).pool_memory_bytes_per_process == 40 * 2**30


def test_offloaded_optimizer_state_is_compared_with_the_memory_of_the_node(spec: dict[str, Any]) -> None:
    spec["training"]["optimizer"] = {"name": "adamw", "offload": True}
    parsed = on_one_gpu_node(spec)
    estimate = fit.estimate(parsed, H100_NODES)
    need = estimate.host_bytes_per_process
    assert need > 2 * 4 * estimate.num_parameters / 8  # a rank's share of two fp32 moments
    for memory_of_node, found in ((8 * need, []), (8 * need - 8, ["/training/optimizer/offload"])):
        pool = replace(H100_NODES, memory_bytes_per_node=memory_of_node)
        assert [problem.pointer for problem in fit.rejections(parsed, pool)] == found


def test_more_processes_than_cores_is_a_warning(spec: dict[str, Any]) -> None:
    spec["resources"]["processes_per_node"] = 4
    parsed = parse_spec(spec)
    assert fit.rejections(parsed, LAPTOP) == []
    assert [warning.code for warning in fit.warnings(parsed, LAPTOP)][0] == "oversubscribed"


def test_a_mesh_must_take_every_process_and_feed_it(spec: dict[str, Any]) -> None:
    spec["resources"]["processes_per_node"] = 2
    spec["training"] |= {"parallelism": {"data": 4}, "tokens_per_step": 64}
    codes = {problem.code for problem in fit.rejections(parse_spec(spec), LAPTOP)}
    assert codes == {"wrong_mesh", "too_few_sequences"}
