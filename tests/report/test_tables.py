import re

from warp_unlearning.report.opening import not_tested
from warp_unlearning.report.tables import (
    attack_table,
    further_table,
    matrix,
    privacy_table,
    settings_table,
    stage_table,
)
from warp_unlearning.report.words import NOT_MEASURED

NUMBER = re.compile(r"^−?[\d.,]+( %| s)?$")


def cells(table):
    return [cell for group in table.groups for row in group.rows for cell in row.cells]


def test_no_number_without_its_interval(results):
    for table in (matrix(results), privacy_table(results), further_table(results)):
        numbers = [cell.number for cell in cells(table) if NUMBER.match(cell.number.value)]
        assert len(numbers) >= 6
        assert all(re.match(r"^\[.+, .+\]$", number.interval) for number in numbers)


def test_methods_by_defences(data, read):
    base, warp = data["arms"][:2]
    data["arms"] = [
        warp | {"defense": "own"},
        warp | {"defense": "conjugate"},
        warp | {"defense": "cob"},
        warp | {"defense": "fastwarp"},
        warp,
        base,
        base | {"method": "retrain"},
    ]
    table = matrix(read(data))
    assert table.columns == ("no defence", "WARP", "FastWARP", "change of basis", "conjugate", "own")
    first, second = table.groups[0].rows
    assert (first.heading, second.heading) == ("NGP", "retraining")
    assert [cell.number.value for cell in second.cells[1:]] == ["not in this audit"] * 5
    area = base["all"]["auc"]
    assert str(first.cells[0].number) == f"{area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"


def test_the_privacy_table_has_its_columns(results):
    table = privacy_table(results)
    assert table.columns[:5] == ("Verdict", "AUC", "TPR at 0.1 % FPR", "TPR at 1 % FPR", "TPR at 5 % FPR")
    assert table.columns[5:7] == ("AUC, most memorised 1 %", "AUC, most memorised 5 %")
    row = table.groups[0].rows[1]
    assert row.cells[2].number.value == "unresolved"
    assert row.cells[9].under == "update alignment after span, 4 pairs"
    reduction = results.arms[1].reduction.auc
    assert (
        str(row.cells[8].number)
        == f"{100 * reduction.value:.0f} % [{100 * reduction.low:.0f}, {100 * reduction.high:.0f}]"
    )


def test_what_is_missing_is_said(data, read):
    arm = data["arms"][1]
    for key in ("all", "accuracy", "gradient_test", "strongest", "retain_leakage", "against_originals", "seconds"):
        arm[key] = None
    arm |= {"slices": {}, "reduction": None, "missing": 2, "complete": False}
    found = read(data)
    assert matrix(found).groups[0].rows[0].cells[1].under == "incomplete: 2 models missing"
    for table in (privacy_table(found), further_table(found)):
        row = table.groups[0].rows[1]
        assert row.under == "incomplete: 2 models missing"
        assert {str(cell.number) for cell in row.cells} <= {NOT_MEASURED, "does not hold"}


def test_times_are_compared_with_those_without_a_defence(data, read):
    cell = further_table(read(data)).groups[0].rows[1].cells[-1]
    assert cell.under == "+34 % [+30, +38] against no defence"
    data["arms"][1]["seconds"]["defense_share"] = {"value": -0.051, "low": None, "high": None}
    assert further_table(read(data)).groups[0].rows[1].cells[-1].under == "−5 % against no defence"


def test_the_gradient_test_has_its_rate_beside_its_area(data, read):
    tpr = {"value": 0.034, "low": 0.01, "high": 0.06}
    data["arms"][0]["gradient_test"]["rates"] = [{"fpr": 0.01, "resolved": True, "negatives": 1056, "tpr": tpr}]
    data["arms"][1]["gradient_test"]["rates"] = [{"fpr": 0.01, "resolved": False, "negatives": 900, "tpr": None}]
    data["arms"][2]["gradient_test"]["rates"] = None
    table = further_table(read(data))
    column = table.columns.index("its TPR at 1 % FPR, threshold of each pair")
    assert table.columns[column - 1] == "AUC of the gradient test"
    found = [str(row.cells[column].number) for group in table.groups for row in group.rows]
    assert found[:3] == ["3.4 % [1.0, 6.0]", "unresolved (900 negatives)", NOT_MEASURED]


def test_a_reduction_that_cannot_be_stated_says_why(data, read):
    data["arms"][1]["reduction"] = {"auc": None, "tpr_at_1": None, "note": "the base does not leak"}
    cell = privacy_table(read(data)).groups[0].rows[1].cells[8]
    assert (cell.number.value, cell.under) == ("none stated", "the base does not leak")


def test_stages_settings_and_attacks(results, pair_data, read):
    assert [str(cell.number) for cell in cells(stage_table(results))][-4:] == ["288", "288", "0", "41.0 s"]
    assert settings_table(results)[0] == ("ngp", "lr = 0.05, epochs = 3")
    table = attack_table(read(pair_data))
    assert table.columns[-2:] == ("AUC, retrained instead", "Beyond retrained")
    assert [row.under for row in table.groups[0].rows].count("the strongest") == 1


def test_what_was_not_tested(data, read):
    found = not_tested(read(data))
    assert found[:2] == tuple(data["not_tested"])
    assert "Not in this audit: FastWARP, WARP guarded, change of basis and conjugate." in found
    assert any("0.1 % false positives are unresolved in 6 of 6 ways" in text for text in found)
    data["arms"][0]["gradient_test"] = None
    assert any("gradient-difference test was not made for NGP with no defence" in t for t in not_tested(read(data)))
