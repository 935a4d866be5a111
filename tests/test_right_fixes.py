"""The first verified fix of a program is right, in whichever way the program is written."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "judge.py"
spec = importlib.util.spec_from_file_location("right_fixes_judge", PATH)
assert spec is not None
assert spec.loader is not None
judge: Any = importlib.util.module_from_spec(spec)
sys.modules["right_fixes_judge"] = judge
spec.loader.exec_module(judge)

WRITTEN = {
    "a function under its limit, of a network that it is given": "l086",
    "the same, of an object's method": "l087",
    "the same, with a list that it fills": "l088",
    "the same, with layers": "l089",
    "the same, of the function around, in half precision": "l090",
    "the same, of a function that it is given": "l091",
    "the same, with derivatives in it": "l095",
    "the same, of methods of one name": "l096",
    "the same, with a helper that others call, too": "l097",
    "an infinite gradient beside a finite one": "l098",
    "an augmented division": "l169",
    "keyword arguments": "l171",
    "an assignment expression": "l175",
    "a tuple assignment": "l176",
    "a method that writes in place": "l184",
    "a checkpoint": "l190",
    "a transform over samples": "l191",
    "an augmented power": "l194",
    "a chain over several lines": "l196",
    "two operands that meet": "l218",
    "a point at the edge of the domain": "l181",
    "a number whose sums are over other tensors": "l108",
    "a sum in a comprehension": "l210",
    "a signed root": "l216",
    "a product that is written twice": "l141",
    "a result written where out says": "l193",
    "an element that a loop takes": "l333",
    "a chain of methods that write in place": "l363",
    "two samples that meet under a transform": "l360",
    "a quotient that torch.where hides": "l364",
    "a part of an exponential": "l374",
    "a function that half precision rounds too much": "l359",
    "an edge of the domain beyond which nothing is": "l418",
    "a product by einsum": "l427",
    "a chain of methods that write in place in one line": "l432",
    "an operation in another method": "l435",
    "a module that ends in a sigmoid": "l436",
    "a parameter that is named shape": "l438",
    "a constant that Python rounds": "l439",
    "a property": "l441",
    "a number that the line negates": "l454",
    "probabilities that a module gives": "l477",
    "a sum over another dimension": "l502",
    "several statements in a line": "l509",
    "a product by einsum of exponentials": "l519",
    "an exponent that is a tensor": "l523",
    "a number that Python computes before": "l530",
    "a static method": "l536",
    "a function of the file, called three times": "l539",
    "a function that is a lambda": "l705",
    "all pairs of a batch": "l714",
    "a power of two": "l725",
    "a mixture in another function": "l727",
    "a method of an object made here": "l728",
    "a parameter whose shape alone another line reads": "l732",
    "an angle of two numbers": "l738",
    "a function that is called with two things": "l746",
    "ones in the place of the number": "l760",
    "a complex constant": "l774",
    "a parameter that the line reads twice": "l543",
    "probabilities of a module, which get a name": "l546",
    "what only another function reads": "l560",
    "the other factors": "l571",
    "a name that is shifted by a number": "l601",
    "pieces that torch.where joins": "l602",
    "a number of which Python computes another": "l603",
    "a variable inside of a mean and outside": "l618",
    "a generator over what the caller has put into a list": "l630",
    "a factor that overflows where another vanishes": "l633",
    "numbers that two others are made of": "l658",
    "a name that a branch not taken assigns too": "l213",
    "two operands whose product is the variable": "l661",
    "a method that is called with two indices": "l693",
    "both sides of a difference": "l900",
    "names made of what else is read": "l932",
    "squares that overflow under one root": "l933",
    "a derivative that overflows alone": "l934",
    "a power of e, summed by einsum": "l935",
    "distances of all pairs": "l936",
    "a function inside of the function": "l937",
    "a quotient in a divisor, below a root": "l042",
    "a quotient of reciprocals": "l043",
    "a number that is given more dimensions": "l044",
    "a factor that is no tensor": "l045",
    "a log-sum-exp of minus infinities, by hand": "l046",
    "under vmap what knows no complex numbers": "l955",
    "under vmap an operand that was lined up": "l977",
    "all parts of a statement": "l049",
    "a sum by einsum over a variable": "l051",
    "a name that stays beside one that is followed": "l052",
    "the product of the others along a dimension": "l053",
    "a density times a vector of weights": "l054",
    "the power of a small complex number": "l055",
    "what a normal distribution has between two points": "l056",
    "what a custom Function has saved": "l057",
    "under vmap a sum over a number": "l058",
    "a signed square root": "l060",
    "equal eigenvalues": "l063",
    "equal singular values": "l064",
    "a plain number that is 0": "l068",
    "a plain number that a sum depends on": "l067",
    "a count that is a plain number": "l070",
    "the length of an empty selection": "l071",
    "what a function gives, where it is called": "l072",
    "sizes in a loop in logarithms": "l074",
    "operands that vmap lined up twice": "l075",
    "a product of matrices by einsum in a loop": "l076",
    "a vector and a matrix under a condition": "l077",
    "a tensor that is created in the dtype of another": "l078",
    "differences of neighbours": "l079",
    "two plain numbers that are equal": "l080",
    "a product of many by its sum": "l081",
    "what a function gives to a name": "l082",
    "parts of one quotient": "l083",
    "a loop that draws its items": "l084",
    "what follows in a distribution": "l085",
    "a gradient that is 0 beside large ones": "l219",
    "a function that a checkpoint computes again": "l220",
    "a Bessel function in the derivative by hand": "l221",
}


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("name", WRITTEN.values(), ids=WRITTEN)
def test_the_first_verified_fix_is_right(name: str) -> None:
    (path,) = judge.programs([name])
    module = judge.load(path)
    culprit = judge.watched(module).culprit
    verified = [fix for fix in culprit.fixes if fix.verified]
    assert verified
    assert [judge.judged(path, fix, module) for fix in verified] == [("right", "")] * len(verified)


# a number by chance equal to an element, a mask in the quotient itself, a helper whose callers'
# whole lines have series that mend nothing
@pytest.mark.parametrize("name", ["d234", "d235", "d237", "d238"])
def test_the_cure_is_right(name: str) -> None:
    (path,) = judge.programs([name])
    module = judge.load(path)
    cure = judge.watched(module).cure
    assert cure.verified
    assert judge.judged(path, cure, module) == ("right", "")


@pytest.mark.parametrize("name", ["d202", "d224"])
def test_a_fix_that_only_moves_its_fault_does_not_hide_the_next_one(name: str) -> None:
    (path,) = judge.programs([name])
    module = judge.load(path)
    cure = judge.watched(module).cure
    assert cure.verified
    assert judge.judged(path, cure, module) == ("right", "")


def test_an_untried_fix_does_not_hide_the_fault_of_the_next_line() -> None:
    (path,) = judge.programs(["l660"])
    module = judge.load(path)
    cure = judge.watched(module).cure
    assert {edit.first for edit in cure.edits if not edit.imports} == {39, 40}
    assert judge.judged(path, cure, module) == ("right", "")


@pytest.mark.parametrize("name", ["l092", "l094"])  # products with vectors; lists that were freed
def test_a_right_fix_is_known(name: str) -> None:
    test_the_first_verified_fix_is_right(name)


def test_what_a_reentrant_checkpoint_computes_again_is_edited_and_judged_too() -> None:
    path = Path(__file__).with_name("reentrant.py")
    module = judge.load(path)
    verified = [fix for fix in judge.watched(module).culprit.fixes if fix.verified]
    assert verified
    assert [judge.judged(path, fix, module) for fix in verified] == [("right", "")] * len(verified)


@pytest.mark.examples(every=0)
def test_a_form_whose_second_derivative_is_another_is_not_verified() -> None:
    (path,) = judge.programs(["l093"])  # |x| for sqrt(x**2), in a kernel's mixed derivative
    module = judge.load(path)
    verified = [fix for fix in judge.watched(module).culprit.fixes if fix.verified]
    assert [judge.judged(path, fix, module) for fix in verified] == [("right", "")] * len(verified)
