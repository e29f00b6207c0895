"""Promised upper bounds by the wall clock, on a machine that others use too."""


class Late(AssertionError):
    """It took longer than is promised; the code may be at fault, or a machine that was busy with something else."""


def in_time(took, bound):
    """What took so many seconds took less than the bound."""
    if not took < bound:
        raise Late(f"took {took:.3f} s, and less than {bound} s are promised")


async def timely(attempt, tries=5):
    """Run an attempt until one is not late, and give what it gives; so many late ones are a failure.

    What the code adds it adds to every attempt, and what a busy machine adds it does not. Nothing but `Late` is
    forgiven: what a bound does not say fails at once, lower bounds too.
    """
    for _ in range(tries - 1):
        try:
            return await attempt()
        except Late:
            continue
    return await attempt()
