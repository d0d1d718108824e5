"""The catalogue of mutants, by area.

Ids that begin with "audit-" are the faults of an independent audit, in their present place. Two of its faults have no
place of their own any more: the null space of layer norm and of softmax-RMS stood once for numbers and once for proofs,
and one formula serves both now.
"""

from analysis.mutants.catalogue import families, geometry, information, layers, normalizers, symbolic, training

CATALOGUE = (
    *normalizers.MUTANTS,
    *families.MUTANTS,
    *information.MUTANTS,
    *geometry.MUTANTS,
    *symbolic.MUTANTS,
    *training.MUTANTS,
    *layers.MUTANTS,
)
"""All mutants."""
