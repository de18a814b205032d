"""One line for each assertion, with its figure; the exit status says whether all held."""

import math
import sys


class Ledger:
    def __init__(self):
        self.failed = []
        self.held = 0
        self.skipped = []

    def section(self, title):
        print(f"\n-- {title}", flush=True)

    def check(self, what, holds, figure):
        holds = bool(holds)
        print(f"{'ok  ' if holds else 'FAIL'}  {what}: {figure}", flush=True)
        if holds:
            self.held += 1
        else:
            self.failed.append(what)
        return holds

    def equal(self, what, found, expected, rel_tol=0.0):
        """Numbers, or anything else that compares. Without a tolerance they are equal to the last digit."""
        if rel_tol and None not in (found, expected):
            same = math.isclose(found, expected, rel_tol=rel_tol)
        else:
            same = found == expected
        return self.check(what, same, f"{found}" if same else f"{found}, expected {expected}")

    def skip(self, what, why):
        print(f"skip  {what}: {why}", flush=True)
        self.skipped.append(f"{what} ({why})")

    def close(self):
        print(f"\n{self.held} held, {len(self.failed)} failed, {len(self.skipped)} skipped")
        for what in self.skipped:
            print(f"  skipped: {what}")
        for what in self.failed:
            print(f"  failed: {what}")
        sys.exit(1 if self.failed else 0)
