"""What people say when they need a calculator: sums as they stand, and everyday sums in words.

Knows formulas and templates. Invariant: training and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cedagent.upcycle.data import sums
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines

Sum = tuple[Callable[[Draw], dict[str, Any]], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Draws `expression`, `_result` and the words; templates for training, held out; answers."""


_PLAIN = lines("""
    {expression} [is|=] {result}.
    the result is {result}.
    that [is|makes] {result}.
    {expression} comes to {result}.
    the answer is {result}.
""")


_COSTS = lines("""
    that costs {result}[ in all| together|].
    you pay {result}.
    the total is {result}.
    it comes to {result}.
""")


SUMS: tuple[Sum, ...] = (
    (
        sums.formula,
        lines("""
            ={expression}
            !calculate {expression}
            !compute {expression}
            !work out {expression}
            ?how much is {expression}
            {expression} = ?
            {expression}
            !evaluate {expression} for me
        """),
        lines("""
            ?what does {expression} come to
            solve this: {expression}
            !figure out {expression}
            ?what do I get for {expression}
        """),
        _PLAIN,
    ),
    (
        sums.percent,
        lines("""
            ={expression}
            ?how much is {expression}
            !calculate {expression}
            {expression}?
        """),
        lines("""
            ?what does {expression} amount to
            !work out what {expression} is
        """),
        _PLAIN,
    ),
    (
        sums.items,
        lines("""
            I [bought|buy|want] {n} {things} at {price} each. [What do I pay?|How much is that?]
            ?how much do {n} {things} cost at {price} each
            =the price of {n} {things} at {price} each
            {n} {things}, {price} each. What is the total?
        """),
        lines("""
            we ordered {n} {things} and each one costs {price}. What will the bill be?
            ?what must I pay for {n} {things} if one is {price}
        """),
        _COSTS,
    ),
    (
        sums.two_items,
        lines("""
            I bought {n} {things} at {price} each and {n2} {things2} at {price2} each. \
                [Total?|What do I owe?]
            ?what do {n} {things} at {price} and {n2} {things2} at {price2} cost together
            =the total for {n} {things} at {price} each plus {n2} {things2} at {price2} each
        """),
        lines("""
            my basket has {n} {things} for {price} each and {n2} {things2} for {price2} each. \
                How much is it?
            ?how expensive are {n} {things} at {price} and {n2} {things2} at {price2}
        """),
        _COSTS,
    ),
    (
        sums.pair("/", "{a} / {b}", 20, 4000, 2, 24),
        lines("""
            ?how much does each pay if {a} is split among {b} people
            !split {a} evenly between {b} people
            the bill is {a} and there are {b} of us. How much each?
            ?what is each share when {a} is divided equally among {b}
        """),
        lines("""
            the bill was {a} and {b} of us share it. What does everyone owe?
            !divide {a} fairly among {b} friends
        """),
        lines("""
            each [one |person |]pays {result}.
            that is {result} for each.
            everyone owes {result}.
        """),
    ),
    (
        sums.pair("+", "{a} + {b}%", 10, 900, 3, 30),
        lines("""
            =the total of a bill of {a} with a {b}% tip
            !add {b}% tax to {a}
            ?how much is {a} plus a tip of {b}%
            dinner was {a}. With {b}% tip, what do I pay?
        """),
        lines("""
            the invoice says {a} and {b}% tax comes on top. What is the sum?
            ?what is {a} after it grows by {b}%
        """),
        _COSTS,
    ),
    (
        sums.pair("-", "{a} - {b}%", 10, 2000, 5, 75),
        lines("""
            ?what does the {thing} for {a} cost with {b}% off
            =the price of the {thing} at {a} after a discount of {b}%
            the {thing} costs {a}, but there is {b}% off. What do I pay?
            !take {b}% off {a}
        """),
        lines("""
            the {thing} was {a} and is reduced by {b}%. How much is it now?
            ?how much is {a} when it drops by {b}%
        """),
        _COSTS,
    ),
    (
        sums.average,
        lines("""
            =the average of {numbers}
            =the mean of {numbers}
            !average {numbers}
            my scores were {numbers}. What is the average?
        """),
        lines("""
            ?what do {numbers} average out to
            !find the mean value of {numbers}
        """),
        lines("""
            the average is {result}.
            on average that is {result}.
            the mean of {numbers} is {result}.
        """),
    ),
    (
        sums.total,
        lines("""
            =the sum of {numbers}
            !add up {numbers}
            !add {numbers}
            ?how much are {numbers} together
        """),
        lines("""
            ?what do I get if I add {numbers} together
            =the total of the numbers {numbers}
        """),
        lines("""
            the sum is {result}.
            together that is {result}.
            they add up to {result}.
        """),
    ),
    (
        sums.root,
        lines("""
            =the square root of {a}
            !take the square root of {a}
            ?which number squared gives {a}
        """),
        lines("""
            ?how much is the root of {a}
            !find the square root of {a}
        """),
        lines("""
            the square root of {a} is {result}.
            it is {result}.
            the root is {result}.
        """),
    ),
    (
        sums.pair("*", "{a} * {b}", 2, 90, 2, 80),
        lines("""
            =the area of a room that is {a} by {b} metres
            a field is {a} metres long and {b} metres wide. How large is it?
            ?how far do I get in {b} hours at {a} km per hour
            I save {a} a month. How much is that after {b} months?
        """),
        lines("""
            the floor measures {a} by {b} metres. How many square metres is that?
            ?how much do I earn in {b} hours at {a} an hour
        """),
        lines("""
            that makes {result}.
            it is {result}.
            the result is {result}.
        """),
    ),
    (
        sums.pair("-", "{a} - {b}", 1000, 9000, 100, 900, cents=False),
        lines("""
            I had {a} and spent {b}. What is left?
            =the difference between {a} and {b}
            !subtract {b} from {a}
            ?how much more is {a} than {b}
        """),
        lines("""
            of {a} seats {b} are taken. How many are free?
            ?what remains of {a} after {b} are gone
        """),
        lines("""
            {result} [is|are] left.
            the difference is {result}.
            that leaves {result}.
        """),
    ),
)  # fmt: skip
