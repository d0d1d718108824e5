"""The report of the linter: as text, as JSON, and as SARIF 2.1.0."""

import importlib
import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from lngeom._core.text import counted, terminal_width
from lngeom.checks.linting.rules import RULES

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
"""Schema of the format (OASIS, Static Analysis Results Interchange Format)."""


@dataclass(frozen=True)
class LintFinding:
    """A mistake at one norm.

    Attributes:
        rule: id of the rule.
        path: place of the norm in the model.
        kind: name of its class.
        consequence: what was measured.
    """

    rule: str
    path: str
    kind: str
    consequence: str


@dataclass(frozen=True)
class LintReport:
    """The report of `lint`.

    Attributes:
        model: its name.
        findings: the mistakes.
        eps_shares: median share of ε in σ² + ε for each norm that was examined, by its path; NaN where it has none.
        unchecked: place, rule and reason where a norm, or one rule, could not be run; the rule of a norm is empty.
    """

    model: str
    findings: tuple[LintFinding, ...]
    eps_shares: dict[str, float] = field(default_factory=dict)
    unchecked: tuple[tuple[str, str, str], ...] = ()

    @property
    def checked(self) -> bool:
        """Whether any norm was examined."""
        return bool(self.eps_shares)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int | None = None) -> str:
        """The findings with reason and remedy, the share of ε of each norm, and what could not be checked.

        Args:
            width: columns; those of the terminal by default.
        """
        width = terminal_width() if width is None else width
        found = counted(len(self.findings), "finding") if self.findings else "no findings"
        lines = [f"{self.model}: {found} at {counted(len(self.eps_shares), 'norm')}."]
        for f in self.findings:
            rule = RULES[f.rule]
            lines += ["", f"{f.path or '(model)'} ({f.kind}): {f.rule}"]
            for title, text in (("measured", f.consequence), ("why", rule.reason), ("remedy", rule.remedy)):
                lines += textwrap.wrap(
                    f"{title}: {text}", width, initial_indent="  ", subsequent_indent="    ", break_long_words=False
                )
        if self.eps_shares:
            longest = max(len(path or "(model)") for path in self.eps_shares)
            lines += ["", "Examined, with the median share of ε in σ² + ε"]
            lines += [
                f"  {(path or '(model)').ljust(longest)}  {'no ε' if math.isnan(share) else f'{share:.1e}'}"
                for path, share in self.eps_shares.items()
            ]
        if self.unchecked:
            lines += ["", "Not checked"]
            lines += [f"  {p or '(model)'}{f', {r}' if r else ''}: {reason}" for p, r, reason in self.unchecked]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return {
            "model": self.model,
            "findings": [
                {
                    "rule": f.rule,
                    "path": f.path,
                    "kind": f.kind,
                    "consequence": f.consequence,
                    "reason": RULES[f.rule].reason,
                    "remedy": RULES[f.rule].remedy,
                }
                for f in self.findings
            ],
            "eps_shares": {k: None if math.isnan(v) else v for k, v in self.eps_shares.items()},
            "unchecked": [{"path": p, "rule": r, "reason": reason} for p, r, reason in self.unchecked],
        }

    def to_sarif(self, uri: str | None = None, line: int = 1) -> dict[str, Any]:
        """The report in SARIF 2.1.0, as code scanning takes it.

        Args:
            uri: file that defines the model, relative to the root of the repository; None where there is none.
            line: line in this file.

        Returns:
            The log, as JSON takes it.
        """
        version = importlib.import_module("lngeom").__version__
        ids = list(RULES)
        place = {} if uri is None else {"physicalLocation": _physical(uri, line)}
        rules = [
            {
                "id": r.id,
                "shortDescription": {"text": r.id.replace("-", " ")},
                "fullDescription": {"text": r.reason},
                "help": {"text": r.remedy},
                "defaultConfiguration": {"level": "warning"},
            }
            for r in RULES.values()
        ]
        results = [
            {
                "ruleId": f.rule,
                "ruleIndex": ids.index(f.rule),
                "level": "warning",
                "message": {"text": f"{f.path or self.model} ({f.kind}): {f.consequence}"},
                "locations": [
                    place
                    | {
                        "logicalLocations": [
                            {"fullyQualifiedName": ".".join(filter(None, (self.model, f.path))), "kind": "member"}
                        ]
                    }
                ],
                "partialFingerprints": {"normRule/v1": f"{self.model}:{f.path}:{f.rule}"},
            }
            for f in self.findings
        ]
        driver = {"name": "lngeom", "semanticVersion": version, "rules": rules}
        run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
        if not self.checked:  # an empty list of results would read as a model without faults
            told = [f"{path or self.model} was not checked: {reason}" for path, _, reason in self.unchecked]
            notes = [{"level": "error", "message": {"text": text}} for text in told or [f"{self.model} has no norm"]]
            run["invocations"] = [{"executionSuccessful": False, "toolExecutionNotifications": notes}]
        return {"$schema": SARIF, "version": "2.1.0", "runs": [run]}


def _physical(uri: str, line: int) -> dict[str, Any]:
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": max(line, 1)}}
