"""The statements of the paper, section by section, with the claims that treat them or the reason why none does.

A statement is a sentence, or a part of one, that could be false. Definitions of symbols, announcements and descriptions
of the set-up of an experiment are left out. Quotations are literal, with mathematics in Unicode, "…" for omissions and
square brackets around what is not the paper's.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lngeom.claims.paper import TABLE1
from lngeom.claims.registry import all_claims

BACKGROUND = "It is about earlier work or neural networks in general."
NO_MEASURE = "It names no quantity that could be measured."
FULL_SIZE = "It needs the paper's data set and network at full size."
SPEED = "It is about the speed of the authors' machines and software."
RECURRENT_GAIN = "No experiment here varies the gain of recurrent batch norm."


class Statement(NamedTuple):
    """A statement of the paper.

    Attributes:
        section: where it stands.
        text: its words.
        claims: ids of the claims that treat it.
        why_not: why no claim does; empty where one does.
    """

    section: str
    text: str
    claims: tuple[str, ...] = ()
    why_not: str = ""


class Coverage(NamedTuple):
    """How much of the paper is treated.

    Attributes:
        statements: number of all statements.
        treated: those that claims treat.
        on_request: those of them that only claims treat which an audit takes in on request.
        not_testable: those that none treats, each with its reason.
    """

    statements: int
    treated: int
    on_request: int
    not_testable: int

    def __str__(self) -> str:
        """One line for a reader."""
        return (
            f"{self.treated} of {self.statements} statements of the paper are covered, {self.on_request} of them on "
            f"request (--topic all); {self.not_testable} are not testable here."
        )


def coverage() -> Coverage:
    """Counts the statements of the paper."""
    treated = [s for s in STATEMENTS if s.claims]
    default = {c.id for c in all_claims()}
    on_request = sum(default.isdisjoint(s.claims) for s in treated)
    return Coverage(len(STATEMENTS), len(treated), on_request, len(STATEMENTS) - len(treated))


def _section(section: str, *statements: tuple[str, tuple[str, ...] | str]) -> Iterator[Statement]:
    """Statements of one section: words, then either ids or the reason why there are none."""
    for text, treated in statements:
        yield (
            Statement(section, text, why_not=treated) if isinstance(treated, str) else Statement(section, text, treated)
        )


STATEMENTS: tuple[Statement, ...] = (
    *_section(
        "Abstract",
        ("Training state-of-the-art, deep neural networks is computationally expensive.", BACKGROUND),
        (
            "[Batch normalization:] This significantly reduces the training time in feed-forward neural networks.",
            ("experiments.convolutions.batch_norm",),
        ),
        (
            "the effect of batch normalization is dependent on the mini-batch size",
            ("statements.batch_size",),
        ),
        ("it is not obvious how to apply it to recurrent neural networks", ("text.bn_per_time_step",)),
        (
            "Unlike batch normalization, layer normalization performs exactly the same computation at training and "
            "test times.",
            ("statements.one_case",),
        ),
        (
            "It is also straightforward to apply to recurrent neural networks by computing the normalization "
            "statistics separately at each time step.",
            ("equation.4", "text.bn_per_time_step"),
        ),
        (
            "Layer normalization is very effective at stabilizing the hidden state dynamics in recurrent networks.",
            ("text.stable_dynamics",),
        ),
        (
            "layer normalization can substantially reduce the training time compared with previously published "
            "techniques",
            (
                "experiments.order_embeddings",
                "experiments.attentive_reader",
                "experiments.attentive_reader.batch_norm",
                "experiments.skip_thoughts",
                "experiments.draw",
                "experiments.handwriting",
                "experiments.mnist",
            ),
        ),
    ),
    *_section(
        "Section 1",
        (
            "Deep neural networks trained with some version of Stochastic Gradient Descent have been shown to "
            "substantially outperform previous approaches",
            BACKGROUND,
        ),
        ("state-of-the-art deep neural networks often require many days of training", BACKGROUND),
        ("this can require a lot of communication and complex software", BACKGROUND),
        (
            "It also tends to lead to rapidly diminishing returns as the degree of parallelization increases.",
            BACKGROUND,
        ),
        (
            "The normalization standardizes each summed input using its mean and its standard deviation across the "
            "training data.",
            ("equation.3",),
        ),
        (
            "Feedforward neural networks trained using batch normalization converge faster even with simple SGD.",
            BACKGROUND,
        ),
        (
            "the stochasticity from the batch statistics serves as a regularizer during training",
            "No experiment here separates the noise of batch statistics from the normalization itself.",
        ),
        (
            "batch normalization requires running averages of the summed input statistics",
            ("statements.one_case",),
        ),
        (
            "In feed-forward networks with fixed depth, it is straightforward to store the statistics separately for "
            "each hidden layer.",
            NO_MEASURE,
        ),
        (
            "the summed inputs to the recurrent neurons in a recurrent neural network (RNN) often vary with the length "
            "of the sequence so applying batch normalization to RNNs appears to require different statistics for "
            "different time-steps",
            ("text.bn_per_time_step",),
        ),
        (
            "[batch normalization] cannot be applied to online learning tasks or to extremely large distributed models "
            "where the minibatches have to be small",
            ("statements.one_case",),
        ),
        (
            "the normalization does not introduce any new dependencies between training cases",
            ("statements.one_case",),
        ),
        (
            "layer normalization works well for RNNs and improves both the training time and the generalization "
            "performance of several existing RNN models",
            (
                "experiments.order_embeddings",
                "experiments.attentive_reader",
                "experiments.skip_thoughts.final",
                "experiments.draw.final",
            ),
        ),
    ),
    *_section(
        "Section 2",
        (
            "the gradients with respect to the weights in one layer are highly dependent on the outputs of the neurons "
            "in the previous layer",
            ("statements.gradients_follow_outputs",),
        ),
        (
            "especially if these outputs change in a highly correlated way",
            ("statements.gradients_follow_outputs",),
        ),
        ("Batch normalization … was proposed to reduce such undesirable ‘‘covariate shift’’.", BACKGROUND),
        (
            "the batch normalization method rescales the summed inputs according to their variances under the "
            "distribution of the data",
            ("equation.3",),
        ),
        (
            "It is typically impractical to compute the expectations in Eq. (2) exactly, since it would require "
            "forward passes through the whole training dataset with the current set of weights.",
            SPEED,
        ),
        (
            "This puts constraints on the size of a mini-batch and it is hard to apply to recurrent neural networks.",
            ("statements.one_case", "text.bn_per_time_step"),
        ),
    ),
    *_section(
        "Section 3",
        (
            "changes in the output of one layer will tend to cause highly correlated changes in the summed inputs to "
            "the next layer, especially with ReLU units whose outputs can change by a lot",
            ("statements.correlated_changes",),
        ),
        (
            "the ‘‘covariate shift’’ problem can be reduced by fixing the mean and the variance of the summed inputs "
            "within each layer",
            ("statements.fixed_mean_and_variance",),
        ),
        (
            "We, thus, compute the layer normalization statistics over all the hidden units in the same layer as "
            "follows: [Eq. 3]",
            ("equation.3",),
        ),
        (
            "all the hidden units in a layer share the same normalization terms μ and σ, but different training cases "
            "have different normalization terms",
            ("statements.shared_statistics",),
        ),
        (
            "layer normalization does not impose any constraint on the size of a mini-batch and it can be used in the "
            "pure online regime with batch size 1",
            ("statements.one_case",),
        ),
    ),
    *_section(
        "Section 3.1",
        (
            "It is common among the NLP tasks to have different sentence lengths for different training cases.",
            BACKGROUND,
        ),
        (
            "This is easy to deal with in an RNN because the same weights are used at every time-step.",
            NO_MEASURE,
        ),
        (
            "when we apply batch normalization to an RNN in the obvious way, we need to compute and store separate "
            "statistics for each time step in a sequence",
            ("text.bn_per_time_step",),
        ),
        (
            "This is problematic if a test sequence is longer than any of the training sequences.",
            ("text.bn_per_time_step",),
        ),
        (
            "Layer normalization does not have such problem because its normalization terms depend only on the summed "
            "inputs to a layer at the current time-step.",
            ("text.bn_per_time_step",),
        ),
        ("It also has only one set of gain and bias parameters shared over all time-steps.", ("equation.4",)),
        (
            "The layer normalized recurrent layer re-centers and re-scales its activations using the extra "
            "normalization terms similar to Eq. (3): [Eq. 4]",
            ("equation.4",),
        ),
        (
            "there is a tendency for the average magnitude of the summed inputs to the recurrent units to either grow "
            "or shrink at every time-step, leading to exploding or vanishing gradients",
            ("statements.recurrent_grow_or_shrink",),
        ),
        (
            "the normalization terms make it invariant to re-scaling all of the summed inputs to a layer",
            ("equation.4",),
        ),
        ("which results in much more stable hidden-to-hidden dynamics", ("text.stable_dynamics",)),
    ),
    *_section(
        "Section 4",
        ("Batch normalization has been previously extended to recurrent neural networks", BACKGROUND),
        (
            "the best performance of recurrent batch normalization is obtained by keeping independent normalization "
            "statistics for each time-step",
            BACKGROUND,
        ),
        (
            "initializing the gain parameter in the recurrent batch normalization layer to 0.1 makes significant "
            "difference in the final performance of the model",
            RECURRENT_GAIN,
        ),
        (
            "Applying either weight normalization or batch normalization using expected statistics is equivalent to "
            "have a different parameterization of the original feed-forward neural network.",
            ("statements.bn_wn_reparameterize",),
        ),
        ("Re-parameterization in the ReLU network was studied in the Path-normalized SGD", BACKGROUND),
        (
            "Our proposed layer normalization method, however, is not a re-parameterization of the original neural "
            "network.",
            ("statements.ln_not_reparameterization",),
        ),
        (
            "The layer normalized model, thus, has different invariance properties than the other methods",
            (
                "table1.ln.weight_matrix_recentering",
                "table1.ln.weight_vector_rescaling",
                "table1.ln.single_case_rescaling",
            ),
        ),
    ),
    *_section(
        "Section 5.1",
        (
            "these methods can be summarized as normalizing the summed inputs a_i to a neuron through the two scalars "
            "μ and σ [Eq. 5]",
            ("equation.3", "statements.bn_wn_reparameterize"),
        ),
        (
            "for layer normalization and batch normalization, μ and σ is computed according to Eq. 2 and 3",
            ("equation.3",),
        ),
        (
            "Table 1: Invariance properties under the normalization methods.",
            tuple(f"table1.{method}.{column}" for method, row in TABLE1.items() for column in row),
        ),
        (
            "under batch normalization and weight normalization, any re-scaling to the incoming weights w_i of a "
            "single neuron has no effect on the normalized summed inputs to a neuron",
            ("statements.any_unit_rescaling",),
        ),
        (
            "if the weight vector is scaled by δ, the two scalar μ and σ will also be scaled by δ",
            ("statements.any_unit_rescaling",),
        ),
        (
            "So the batch and weight normalization are invariant to the re-scaling of the weights.",
            (
                "table1.bn.weight_matrix_rescaling",
                "table1.bn.weight_vector_rescaling",
                "table1.wn.weight_matrix_rescaling",
                "table1.wn.weight_vector_rescaling",
            ),
        ),
        (
            "Layer normalization, on the other hand, is not invariant to the individual scaling of the single weight "
            "vectors.",
            ("table1.ln.weight_vector_rescaling",),
        ),
        (
            "layer normalization is invariant to scaling of the entire weight matrix and invariant to a shift to all "
            "of the incoming weights in the weight matrix",
            ("table1.ln.weight_matrix_rescaling", "table1.ln.weight_matrix_recentering"),
        ),
        (
            "Under layer normalization, the two models effectively compute the same output: [Eq. 6]",
            ("equation.6",),
        ),
        (
            "if normalization is only applied to the input before the weights, the model will not be invariant to "
            "re-scaling and re-centering of the weights",
            ("text.prenorm_loses_weight_invariance",),
        ),
        (
            "all the normalization methods are invariant to re-scaling the dataset",
            ("text.all_methods_dataset_rescaling",),
        ),
        (
            "layer normalization is invariant to re-scaling of individual training cases, because the normalization "
            "scalars μ and σ in Eq. (3) only depend on the current input data",
            ("table1.ln.single_case_rescaling", "equation.7"),
        ),
        (
            "[Eq. 7] It is easy to see re-scaling individual data points does not change the model’s prediction under "
            "layer normalization.",
            ("equation.7",),
        ),
        (
            "batch normalization is invariant to re-centering of the dataset",
            ("table1.bn.dataset_recentering",),
        ),
    ),
    *_section(
        "Section 5.2",
        (
            "Learning, however, can behave very differently under different parameterizations, even though the models "
            "express the same underlying function.",
            ("text.norm_controls_learning_rate", "dynamics.gain_magnitude"),
        ),
        (
            "the normalization scalar σ can implicitly reduce learning rate and makes learning more stable",
            ("text.norm_controls_learning_rate", "text.implicit_early_stopping"),
        ),
    ),
    *_section(
        "Section 5.2.1",
        (
            "The learnable parameters in a statistical model form a smooth manifold that consists of all possible "
            "input-output relations of the model.",
            ("text.riemannian",),
        ),
        (
            "a natural way to measure the separation of two points on this manifold is the Kullback-Leibler divergence",
            NO_MEASURE,
        ),
        ("Under the KL divergence metric, the parameter space is a Riemannian manifold.", ("text.riemannian",)),
        (
            "The curvature of a Riemannian manifold is entirely captured by its Riemannian metric",
            "It is a theorem of differential geometry.",
        ),
        (
            "it measures the changes in the model output from the parameter space along a tangent direction",
            ("equation.8",),
        ),
        (
            "The Riemannian metric under KL … was shown to be well approximated under second order Taylor expansion "
            "using the Fisher information matrix: [Eq. 8]",
            ("equation.8",),
        ),
        ("[Eq. 9]", ("equation.9",)),
        (
            "The following analysis of the Riemannian metric provides some insight into how normalization methods "
            "could help in training neural networks.",
            NO_MEASURE,
        ),
    ),
    *_section(
        "Section 5.2.2",
        (
            "The results from the following analysis can be easily applied to understand deep neural networks with "
            "block-diagonal approximation to the Fisher information matrix",
            "It names no quantity. The size of such blocks in trained networks is measured by `python -m analysis`.",
        ),
        ("c(·) is the log partition function [Eq. 10]", ("equation.10_wording",)),
        (
            "[Eq. 11] f(·) is the transfer function that is the analog of the non-linearity in neural networks",
            ("equation.11",),
        ),
        (
            "The Fisher information matrix for the multi-dimensional GLM … is simply the expected Kronecker product of "
            "the data features and the output covariance matrix: [Eq. 12]",
            ("equation.12",),
        ),
        (
            "Without loss of generality, we denote F̄ as the Fisher information matrix under the normalized "
            "multi-dimensional GLM [Eqs. 13, 14]",
            ("equation.13_14.bn", "equation.13_14.wn", "equation.13_14.ln"),
        ),
        (
            "the block F̄_ij along the weight vector w_i direction is scaled by the gain parameters and the "
            "normalization scalar σ_i",
            ("statements.gains_scale_blocks", "scaling.unit"),
        ),
        (
            "If the norm of the weight vector w_i grows twice as large, even though the model's output remains the "
            "same, the Fisher information matrix will be different.",
            (
                "scaling.unit",
                "scaling.matrix",
                "scaling.no_power_law.ln",
            ),
        ),
        (
            "The curvature along the w_i direction will change by a factor of ½ because the σ_i will also be twice as "
            "large.",
            ("text.factor_half",),
        ),
        (
            "for the same parameter update in the normalized model, the norm of the weight vector effectively controls "
            "the learning rate for the weight vector",
            ("text.norm_controls_learning_rate", "dynamics.norm_doubling"),
        ),
        (
            "it is harder to change the orientation of the weight vector with large norm",
            ("text.norm_controls_learning_rate", "dynamics.angle"),
        ),
        (
            "The normalization methods, therefore, have an implicit “early stopping” effect on the weight vectors and "
            "help to stabilize learning towards convergence.",
            ("text.implicit_early_stopping", "dynamics.sgd_norm_growth"),
        ),
        (
            "In normalized models, the magnitude of the incoming weights is explicitly parameterized by the gain "
            "parameters.",
            ("statements.gain_is_magnitude",),
        ),
        (
            "The direction along the gain parameters in F̄ captures the geometry for the magnitude of the incoming "
            "weights.",
            ("equation.33", "equation.34"),
        ),
        (
            "Riemannian metric along the magnitude of the incoming weights for the standard GLM is scaled by the norm "
            "of its input",
            ("text.robust_to_scaling",),
        ),
        (
            "learning the gain parameters for the batch normalized and layer normalized models depends only on the "
            "magnitude of the prediction error",
            ("text.prediction_error_only",),
        ),
        (
            "Learning the magnitude of incoming weights in the normalized model is therefore, more robust to the "
            "scaling of the input and its parameters than in the standard model.",
            ("text.robust_to_scaling", "dynamics.gain_magnitude"),
        ),
    ),
    *_section(
        "Section 6",
        (
            "the default initialization of layer normalization is to set the adaptive gains to 1 and the biases to 0",
            ("supplement.initialization",),
        ),
    ),
    *_section(
        "Section 6.1",
        ("layer normalization offers a per-iteration speedup …", ("experiments.order_embeddings",)),
        ("… across all metrics", "On the small task the curves are compared by one metric, image R@1."),
        (
            "converges to its best validation model in 60% of the time it takes the baseline model to do so",
            ("experiments.order_embeddings.sixty_percent",),
        ),
        (
            "layer normalization also results in improved generalization over the original model",
            FULL_SIZE,
        ),
        ("The results we report are state-of-the-art for RNN embedding models", BACKGROUND),
        (
            "they evaluate under different conditions (1 test set instead of the mean over 5) and are thus not "
            "directly comparable",
            BACKGROUND,
        ),
    ),
    *_section(
        "Section 6.2",
        (
            "layer normalization not only trains faster but converges to a better validation result over both the "
            "baseline …",
            ("experiments.attentive_reader",),
        ),
        ("… and BN variants", ("experiments.attentive_reader.batch_norm",)),
        (
            "We experimented with layer normalization for both 1.0 and 0.1 scale initialization and found that the "
            "former model performed significantly better.",
            ("experiments.attentive_reader.gain",),
        ),
        (
            "layer normalization is not sensitive to the initial scale in the same way that recurrent BN is",
            RECURRENT_GAIN,
        ),
    ),
    *_section(
        "Section 6.3",
        ("training this model is time-consuming, requiring several days of training", SPEED),
        ("provided CNMeM is used, there was no significant difference between the two models", SPEED),
        ("applying layer normalization results both in speedup over the baseline …", ("experiments.skip_thoughts",)),
        (
            "… as well as better final results after 1M iterations are performed as shown in Table 3",
            ("experiments.skip_thoughts.final", "experiments.skip_thoughts.classification"),
        ),
        ("resulting in further performance gains across all but one task", FULL_SIZE),
        (
            "differences between the original reported results and ours are likely due to the fact that the publicly "
            "available code does not condition at each timestep of the decoder",
            FULL_SIZE,
        ),
    ),
    *_section(
        "Section 6.4",
        ("has previously achieved the state-of-the-art performance on modeling the distribution", BACKGROUND),
        (
            "the layer normalized DRAW converges almost twice as fast than the baseline model",
            ("experiments.draw", "experiments.draw.twice_as_fast"),
        ),
        (
            "After 200 epoches, the baseline model converges to a variational log likelihood of 82.36 nats on the test "
            "data and the layer normalization model obtains 82.09 nats.",
            ("experiments.draw.final",),
        ),
    ),
    *_section(
        "Section 6.5",
        (
            "The combination of small mini-batch size and very long sequences makes it important to have very stable "
            "hidden dynamics.",
            "No experiment here varies the stability alone.",
        ),
        (
            "layer normalization converges to a comparable log likelihood as the baseline model but is much faster",
            ("experiments.handwriting",),
        ),
    ),
    *_section(
        "Section 6.6",
        (
            "layer normalization is invariant to input re-scaling which is desirable for the internal hidden layers",
            ("table1.ln.dataset_rescaling", "equation.7"),
        ),
        (
            "this is unnecessary for the logit outputs where the prediction confidence is determined by the scale of "
            "the logits",
            ("experiments.no_ln_on_logits",),
        ),
        (
            "layer normalization is robust to the batch-sizes",
            "No bound says what is robust. The curves at batches of 128 and 4 are compared with batch norm's, not with "
            "each other.",
        ),
        (
            "exhibits a faster training convergence comparing to batch normalization that is applied to all layers",
            ("experiments.mnist",),
        ),
        (
            "[Figure 6:] model negative log likelihood and test error with layer normalization and batch normalization",
            ("experiments.mnist", "experiments.mnist.test_error_128", "experiments.mnist.test_error_4"),
        ),
    ),
    *_section(
        "Section 6.7",
        (
            "layer normalization offers a speedup over the baseline model without normalization",
            ("experiments.convolutions",),
        ),
        ("batch normalization outperforms the other methods", ("experiments.convolutions.batch_norm",)),
        (
            "With fully connected layers, all the hidden units in a layer tend to make similar contributions to the "
            "final prediction and re-centering and re-scaling the summed inputs to a layer works well.",
            NO_MEASURE,
        ),
        (
            "the assumption of similar contributions is no longer true for convolutional neural networks",
            NO_MEASURE,
        ),
        (
            "the hidden units whose receptive fields lie near the boundary of the image are rarely turned on and thus "
            "have very different statistics from the rest of the hidden units within the same layer",
            ("statements.units_at_the_boundary",),
        ),
    ),
    *_section(
        "Section 7",
        (
            "layer normalization is invariant to per training-case feature shifting …",
            ("text.feature_shifting",),
        ),
        ("… and scaling", ("equation.7", "table1.ln.single_case_rescaling")),
        ("recurrent neural networks benefit …", ("experiments.recurrent_digits",)),
        ("… the most from the proposed method", "The gains of different tasks have no common scale."),
        (
            "especially for long sequences and small mini-batches",
            "Each experiment here has one length. Its batch sizes are compared with the baseline, not with each other.",
        ),
    ),
    *_section(
        "Supplement",
        ("[Eqs. 15, 16]", ("supplement.cells",)),
        ("The basic LSTM equations used for these experiment are given by: [Eqs. 17–19]", ("supplement.cells",)),
        (
            "The version that incorporates layer normalization is modified as follows: [Eqs. 20–22]",
            ("equation.20", "supplement.cells"),
        ),
        (
            "Each α_i is initialized to a vector of zeros and each β_i is initialized to a vector of ones.",
            ("supplement.initialization",),
        ),
        (
            "These experiments utilize a variant of gated recurrent unit which is defined as follows: [Eqs. 23–28]",
            ("equation.23_28", "experiments.order_embeddings.printed"),
        ),
        (
            "just as before, α_i is initialized to a vector of zeros and each β_i is initialized to a vector of ones",
            ("supplement.initialization",),
        ),
        (
            "The layer norm is only applied to the output of the LSTM hidden states in this experiment: [Eqs. 29–31]",
            ("supplement.cells",),
        ),
        (
            "α is initialized to a vector of zeros and β is initialized to a vector of ones",
            ("supplement.initialization",),
        ),
        (
            "The magnitude of the weights are explicitly parameterized using the gain parameter in the normalized "
            "model.",
            ("statements.gain_is_magnitude",),
        ),
        (
            "The KL metric, ie how much the gradient update changes the model prediction, for the normalized model "
            "depends only on the magnitude of the prediction error.",
            ("text.prediction_error_only",),
        ),
        ("under batch normalization: [Eq. 32]", ("equation.32",)),
        ("Under layer normalization: [Eq. 33]", ("equation.33",)),
        ("Under weight normalization: [Eq. 34]", ("equation.34",)),
        (
            "the KL metric in the standard GLM is related to its activities …, that is depended on both its current "
            "weights and input data",
            ("equation.35", "text.robust_to_scaling"),
        ),
        (
            "We project the gradient updates to the gain parameter … in the standard GLM model: [Eq. 35]",
            ("equation.35",),
        ),
        (
            "The batch normalized and layer normalized models are therefore more robust to the scaling of the input "
            "and its parameters than the standard model.",
            ("text.robust_to_scaling",),
        ),
    ),
)
"""All statements, in the order of the paper."""
