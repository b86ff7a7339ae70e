"""What made-up tools do, and to what: verbs with their messages, things.

Knows templates, no schemas. Invariant: the things are none that the held-out tools are about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# All of them take a plain s.
THINGS: Final = """
invoice,playlist,lesson,shipment,course,subscription,license,badge,campaign,coupon,claim,contract,
customer,deployment,device,employee,exam,experiment,feature,flag,form,goal,grant,guest,habit,
incident,interview,job,journal,label,lead,lecture,locker,machine,member,menu,milestone,module,
newsletter,offer,package,patient,payment,permit,portfolio,post,project,prototype,
quote,receipt,refund,release,request,review,route,sample,sensor,server,shift,song,sprint,
supplier,survey,task,template,tenant,test,theme,tour,trainee,vehicle,visitor,voucher,
webhook,workshop,wallet,warehouse,wagon
""".replace("\n", "").split(",")


MORE_ABOUT: Final = (
    *("", "", "", "", " Returns its number.", " Fails if there is none.", " Needs a login."),
    *(" Use it only when the user asks for it.", " The number is on every @.", " Takes a second."),
    " Ask for what is missing.",
)


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that a tool does to a thing."""

    names: str
    """What begins the tool's name, separated by spaces."""
    about: str
    """Descriptions, separated by `|`."""
    asks: str
    """Templates; `@` stands for the thing, `@s` for several, `#` for the phrases."""
    by_number: bool
    """Whether the tool is told which one it is about."""
    n_fields: tuple[int, int]
    required: float
    """Share of the parameters that must be given."""
    result: str
    """What it returns: number, facts, rows, count or done."""


VERBS: Final[tuple[Verb, ...]] = (
    Verb("create add new make register open", "Create a @.|Add a new @.|Make a @.|Register a @.",
          """
          !create a @ #
          !add a new @ #
          !make a @ #
          !set up a @ #
          !register a @ #
          I need a new @ #
          new @ #
          !put in a @ #
          there should be a new @ #
          a @ is missing, one #
          ?could we have another @ #
          """, False, (1, 4), 0.6, "number"),
    Verb("get show fetch read describe", "Details of a @.|Show one @.|Get a @ by its number.",
          """
          !show @ [number |]{id} #
          =the details of @ {id} #
          ?what do we know about @ {id} #
          !pull up @ {id} #
          !get @ {id} #
          =all about @ [number |]{id} #
          I have to know more about @ {id} #
          ?what's up with @ {id} #
          """, True, (0, 1), 0.1, "facts"),
    Verb("list find search query", "List @s.|Find @s.|Search for @s.",
          """
          !list [all |the |]@s #
          ?which @s are there #
          !find @s #
          !search for @s #
          [show me|please show me] the @s #
          I am after @s #
          ?are there any @s #
          ?do we have @s #
          """, False, (1, 3), 0.2, "rows"),
    Verb("count number_of", "Count @s.|How many @s there are.",
          """
          ?how many @s are there #
          !count the @s #
          =the number of @s #
          ?do we have many @s #
          I wonder how many @s we have #
          """, False, (1, 2), 0.3, "count"),
    Verb("delete remove cancel drop", "Delete a @.|Remove a @.|Cancel a @.",
          """
          !delete @ {id} #
          !remove [the |]@ [number |]{id} #
          !cancel @ {id} #
          !get rid of @ {id} #
          we no longer need @ {id} # - delete it
          @ {id} was a mistake, take it out #
          nobody wants @ {id} any more #
          """, True, (0, 1), 0.0, "done"),
    Verb("update change edit modify", "Change a @.|Update a @.|Edit a @.",
          """
          !update @ {id} #
          !change @ {id}: it should be #
          !edit @ [number |]{id} #, please
          @ {id} is now #
          @ {id} has to be #
          the new state of @ {id}: #
          """, True, (1, 2), 0.8, "done"),
    Verb("send share forward deliver", "Send a @ to somebody.|Share a @.",
          """
          !send @ {id} #
          !share @ {id} #
          !forward the @ {id} #
          @ {id} has to go out #
          """, True, (1, 2), 0.8, "done"),
    Verb("schedule plan set_date", "Schedule a @.|Plan a @.",
          """
          !schedule @ {id} #
          !plan the @ {id} #
          @ {id} needs a date: #
          """, True, (1, 3), 0.7, "done"),
)  # fmt: skip
