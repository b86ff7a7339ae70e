"""Known tools that move things: a robot, a drawing board.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    one_of,
    part,
    real,
    record,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _robot() -> Skill:
    return Skill(
        spec=tool(
            "move_robot",
            "Drive the robot.",
            {
                "direction": one_of("forward", "back", "left", "right"),
                "centimetres": whole(least=1, most=500),
                "speed": real("Metres per second.", least=0.1, most=2, default=0.5),
            },
        ),
        area="robot",
        draw=lambda d: {
            "direction": d.pick(("forward", "back", "left", "right")),
            "centimetres": d.whole(1, 500),
            "speed": d.whole(2, 19) / 10,
        },
        asks=lines("""
            !move the robot {centimetres} centimetres {direction}< at {speed} metres per second>
            !drive the robot {direction} by {centimetres} cm
            robot, go {centimetres} cm {direction}< with speed {speed}>
        """),
        heldout_asks=lines("""
            the robot has to go {direction}, {centimetres} cm<, speed {speed}>
            !send the robot {centimetres} cm {direction}
        """),
        result=lambda d, a: {"x": d.whole(-900, 900), "y": d.whole(-900, 900)},
        answers=lines("""
            the robot is at x = {x}, y = {y} now.
            it moved {centimetres} cm {direction} and stands at {x}, {y}.
            done, new position: {x}, {y}.
        """),
        needed=("x", "y"),
        wish="move the robot",
    )


def _shape() -> list[Skill]:
    circle = record({"kind": {"const": "circle"}, "radius": whole(least=1)})
    box = record({"kind": {"const": "box"}, "width": whole(least=1), "height": whole(least=1)})
    spec = tool(
        "draw_shape",
        "Draw a shape on the board.",
        {
            "shape": {"anyOf": [part("Circle"), part("Box")]},
            "at": record({"x": whole(), "y": whole()}, "Where its centre is."),
            "color": one_of("red", "blue", "green", "black", default="black"),
        },
        parts={"Circle": circle, "Box": box},
    )

    def place(draw: Draw) -> dict[str, Any]:
        return {
            "at": {"x": draw.whole(-200, 600), "y": draw.whole(-200, 600)},
            "color": draw.pick(("red", "blue", "green")),
        }

    common: dict[str, Any] = {
        "spec": spec,
        "area": "drawing",
        "result": lambda d, a: {"shape_id": d.code("s##"), "drawn": True},
        "answers": lines("""
            shape {shape_id} is drawn.
            I drew it as {shape_id}.
            done, it is shape {shape_id}.
        """),
        "needed": ("shape_id",),
    }
    return [
        Skill(
            **common,
            draw=lambda d: {"shape": {"kind": "circle", "radius": d.whole(1, 300)}, **place(d)},
            asks=lines("""
                !draw a< {color}> circle of radius {shape.radius} at {at.x}, {at.y}
                !put a< {color}> circle with radius {shape.radius} at x {at.x}, y {at.y}
            """),
            heldout_asks=lines("""
                !paint a< {color}> circle, radius {shape.radius}, centre {at.x}, {at.y}
            """),
            wish="draw",
        ),
        Skill(
            **common,
            draw=lambda d: {
                "shape": {"kind": "box", "width": d.whole(1, 300), "height": d.whole(1, 300)},
                **place(d),
            },
            asks=lines("""
                !draw a< {color}> box of {shape.width} by {shape.height} at {at.x}, {at.y}
                !put a< {color}> box {shape.width} wide and {shape.height} high at x {at.x}, y \
                    {at.y}
            """),
            heldout_asks=lines("""
                !paint a< {color}> box, width {shape.width}, height {shape.height}, centre \
                    {at.x}, {at.y}
            """),
        ),
    ]


def machine_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _robot(),
        *_shape(),
    )
