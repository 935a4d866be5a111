"""Messages that mean the same wherever they are raised: a table. ``{1}`` is a group."""

from __future__ import annotations

from nanlab.explanations.explanation import Meaning, says

MESSAGES: list[Meaning] = [
    says(
        r"Padding size should be less than the corresponding input dimension, but got: padding"
        r" \((\d+), (\d+)\) at dimension (\d+)",
        "shape-mismatch",
        "padding by reflection of {1} and {2} elements needs more elements than that in dimension"
        " {3}{inside}",
        "A reflection leaves the element of the edge itself out.",
        ("repeat the edge instead", 'x = F.pad(x, pad, mode="replicate")'),
        rewrite=((r"""mode=(['"])reflect['"]""", r"""mode=\1replicate\1"""),),
    ),
    says(
        r"view size is not compatible with input tensor's size and stride",
        "shape-mismatch",
        "view cannot join dimensions that do not lie next to each other in memory{inside}",
        "transpose, permute and slices leave the memory as it is.",
        ("let it copy where it must", "x = x.reshape(...)"),
        rewrite=((r"\.view\(", ".reshape("),),
    ),
    says(
        r"Expected more than 1 value per channel when training, got input size torch\.Size\(\[([\d,"
        r" ]+)\]\)",
        "empty-reduction",
        "batch norm has one value per channel, in an input of shape ({1}): it has no"
        " variance{inside}",
        "As a rule the last batch of an epoch holds one sample, or the feature map has shrunk to"
        " 1x1.",
        ("drop the last incomplete batch", "DataLoader(..., drop_last=True)"),
        ("normalise over the features instead", "nn.LayerNorm(features)  # or nn.GroupNorm"),
    ),
    says(
        r"all elements of target should be between 0 and 1",
        "not-a-probability",
        "the target of binary_cross_entropy has values outside of 0 to 1",
        "It is the probability of one class of two, 0 or 1; labels are often -1 and 1, or 1 and 2.",
        ("labels of 0 and 1", "target = (target > 0).float()"),
    ),
    says(
        r"all elements of input should be between 0 and 1",
        "not-a-probability",
        "the input of binary_cross_entropy has values outside of 0 to 1, or NaN",
        "It takes probabilities. Scores go into the form with logits, which is also the one that"
        " stays finite.",
        (
            "take the scores as they are",
            "loss = F.binary_cross_entropy_with_logits(scores, target)",
        ),
        rewrite=(
            (r"binary_cross_entropy\(", "binary_cross_entropy_with_logits("),
            (r"BCELoss\(", "BCEWithLogitsLoss("),
        ),
    ),
    says(
        r"(a (?:view of a )?leaf Variable that requires grad) is being used in an in-place"
        r" operation",
        "inplace-modification",
        "a parameter was changed in place while gradients are on{inside}",
        "{1} has no history to which the change could be added; an update by hand is no part of the"
        " model.",
        ("update it without gradient", "with torch.no_grad():\n    weight -= lr * weight.grad"),
        ("or compute a new tensor", "scaled = weight * 2"),
        rewrite=((r"^([^\n]+)$", r"with torch.no_grad():\n    \1"),),
    ),
    says(
        r"(?:One of the differentiated Tensors|The differentiated Tensor at index \d+) appears to"
        r" not have been used in the graph",
        "graph-cut",
        "torch.autograd.grad was asked for the gradient of a tensor that the loss does not"
        " depend on",
        "It is another tensor than the one that was computed with (a copy, a detached one), or that"
        " branch did not run.",
        (
            "take None for such tensors",
            "grads = torch.autograd.grad(loss, tensors, allow_unused=True)",
        ),
    ),
    says(
        r"Only Tensors created explicitly by the user \(graph leaves\) support the deepcopy"
        r" protocol",
        "deepcopy-of-graph",
        "deepcopy was called on a tensor that was computed with gradients, or on an object that"
        " holds one{inside}",
        "Such a tensor is bound to its graph. A module that keeps activations, losses or a hidden"
        " state as attributes holds some.",
        ("copy the values alone", "copied = x.detach().clone()"),
        ("or keep them detached in the module", "self.hidden = hidden.detach()"),
        rewrite=((r"(?:copy\.)?deepcopy\((\w[\w.]*)\)", r"\1.detach().clone()"),),
    ),
    says(
        r"optimizer got an empty parameter list",
        "optimizer-without-gradients",
        "the optimizer was given no parameters",
        "The model has none, they stand in a plain list or dict, or an iterator of them was used up"
        " before.",
        ("keep layers where the module finds them", "self.layers = nn.ModuleList(layers)"),
        ("make a list of the iterator", "parameters = list(model.parameters())"),
    ),
    says(
        r"can't optimize a non-leaf Tensor",
        "optimizer-of-a-result",
        "the optimizer was given a tensor that was computed, not a parameter",
        "An optimizer writes into leaves of the graph. What an operation returned is none, even if"
        " its operand requires gradient.",
        ("make the result a leaf of its own", "scale = (2 * torch.ones(3)).requires_grad_()"),
        ("or optimize what it was computed from", "torch.optim.SGD([weight], lr=0.1)"),
    ),
    says(
        r"unscale_\(\) is being called after step\(\)"
        r"|step\(\) has already been called since the last",
        "scaler-misuse",
        "the scaler was not updated after its last step",
        "scaler.update() ends the step; it comes once, after scaler.step() of every optimizer.",
        ("end each step", "scaler.step(optimizer)\nscaler.update()"),
    ),
    says(
        r"unscale_\(\) has already been called on this optimizer since the last update\(\)",
        "scaler-misuse",
        "unscale_ was called twice in one step",
        "The gradients are unscaled already. scaler.update() ends the step; it comes once, after"
        " scaler.step().",
        ("unscale once, before clipping", "scaler.unscale_(optimizer)"),
        ("end each step", "scaler.step(optimizer)\nscaler.update()"),
    ),
    says(
        r"Index tensor must have the same number of dimensions as (\w+) tensor",
        "shape-mismatch",
        "the index of gather or scatter has fewer dimensions than what it points into{inside}",
        "An index has one number for each element that is taken: for one of each row it is a"
        " column.",
        ("give it the missing dimension", "x.gather(1, index.unsqueeze(1)).squeeze(1)"),
    ),
    says(
        r"embed_dim must be divisible by num_heads",
        "shape-mismatch",
        "the width of the attention cannot be divided into its heads",
        "Each head takes an equal part of the features.",
        ("a number of heads that divides the width", "nn.MultiheadAttention(512, 8)"),
    ),
    says(
        r"weight tensor should be defined either for all (\d+) classes or no classes but got weight"
        r" tensor of shape: \[(\d+)\]",
        "shape-mismatch",
        "the loss has weights for {2} classes, the scores have {1}{inside}",
        "A weight is needed for each class, also for one that never occurs.",
        ("a weight for each class", "weight = torch.ones({1})"),
    ),
    says(
        r"(\w+) is not an Optimizer",
        "wrong-argument",
        "the schedule was given a {1}, not the optimizer",
        "A schedule changes the learning rate in the groups of an optimizer.",
        ("give it the optimizer", "torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)"),
    ),
    says(
        r"einsum\(\): subscript (\w) has size (\d+) for operand (\d+) which does not broadcast with"
        r" previously seen size (\d+)",
        "shape-mismatch",
        "in einsum `{1}` stands for size {4}, and in operand {3} (from 0) for size {2}{inside}",
        "A letter is one dimension of one size in every operand. Mostly two letters of that operand"
        " changed places.",
        ("letters in the order of the dimensions", 'torch.einsum("bqd,bkd->bqk", q, k)'),
    ),
    says(
        r"one_hot is only applicable to index tensor",
        "dtype-mismatch",
        "one_hot takes indices of int64{inside}",
        "Class numbers read from a table are often float.",
        ("make them integers", "F.one_hot(labels.long(), classes)"),
    ),
    says(
        r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)",
        "shape-mismatch",
        "the recurrent layer takes {1} features, its input has {2}{inside}",
        "Its last dimension holds the features.",
        ("let the layer take them", "nn.LSTM({2}, ...)"),
    ),
    says(
        r"Given normalized_shape=\[(\d+)\], expected input with shape \[\*, \d+\], but got input of"
        r" ?size\[[\d, ]*?(\d+)\]",
        "shape-mismatch",
        "the normalisation takes {1} features, its input has {2}{inside}",
        "It normalises over the last dimension.",
        ("let the layer take them", "nn.LayerNorm({2})"),
    ),
    says(
        r"0D or 1D target tensor expected, multi-target not supported",
        "target-of-two-dimensions",
        "the target has a second dimension; cross_entropy takes one class index for each"
        " sample{inside}",
        "Labels read as a column have shape (N, 1).",
        ("one index for each sample", "loss = F.cross_entropy(scores, target.squeeze(1))"),
    ),
    says(
        r"Boolean value of Tensor with more than one value is ambiguous",
        "ambiguous-condition",
        "a condition was made of a tensor of several values{inside}",
        "`if`, `while`, `and` and `not` want one truth value.",
        ("say of how many it must be true", "if (x > 0).any():  # or .all()"),
        ("or choose for each element", "y = torch.where(x > 0, x, 0.1 * x)"),
    ),
    says(
        r"(\w+)(?:\.__init__)?\(\) missing \d+ required (?:positional|keyword-only) arguments?:"
        r" (.+)",
        "missing-argument",
        "{1}() is called without {2}{inside}",
        "It has no default for what is missing.",
    ),
    says(
        r"(\w+)\(\): argument '(\w+)' \(position \d+\) must be (\w+), not (\S+)",
        "wrong-argument",
        "the {2} of {1} is a {4}, where {3} is needed{inside}",
        "A layer that returns several parts gives a tuple, and a batch of texts is one too.",
    ),
    says(
        r"(scatter|gather)\(\): Expected dtype int(?:32/int)?64 for index",
        "dtype-mismatch",
        "the indices of {1} must be integers{inside}",
        "Indices are int64. Numbers read from a table are often float.",
        ("make them integers", "x.{1}(dim, index.long())"),
    ),
    says(
        r"Expected key_padded_mask\.shape\[(\d)\] to be (\d+), but got (\d+)",
        "shape-mismatch",
        "key_padding_mask has size {3} in dimension {1}, where {2} is needed{inside}",
        "Its shape is (batch, keys), whatever batch_first says.",
        ("turn it around", "attention(q, k, v, key_padding_mask=mask.T)"),
    ),
    says(
        r"Length of all samples has to be greater than 0",
        "wrong-argument",
        "a sequence of the batch has no elements{inside}",
        "Packed sequences have at least one element each. A text of which all words were left out"
        " has none.",
        ("leave such samples out of the data", "rows = [row for row in rows if len(row)]"),
        ("read one element of the padding", "lengths = lengths.clamp(min=1)"),
    ),
    says(
        r"Batch norm got a batched tensor as input while the running_mean",
        "wrong-argument",
        "batch norm was mapped over the samples, and updates one mean for all of them{inside}",
        "It needs the whole batch; vmap takes the samples one by one.",
        ("normalise each sample", "nn.GroupNorm(1, channels)"),
        ("in modules of others", "torch.func.replace_all_batch_norm_modules_(model)"),
    ),
    says(
        r"For (un)?batched (\d)-D input, hx(?: and cx)? should also be \d-D but got \(?(\d)-D",
        "shape-mismatch",
        "the input of the recurrent layer has {2} dimensions, its hidden state {3}{inside}",
        "Both have a dimension for the batch, or none has. The state is (layers, batch, hidden)."
        " argmax, max and an index leave a dimension out.",
        ("keep the dimension", "token = logits[:, -1].argmax(-1, keepdim=True)"),
    ),
    says(
        r"No KL\(p \|\| q\) is implemented for p type (\w+) and q type (\w+)",
        "wrong-argument",
        "there is no formula for the divergence of {1} and {2}{inside}",
        "Both are mostly of one type: a distribution of vectors is Independent on either side.",
        ("make both of one type", "prior = Independent(Normal(loc, scale), 1)"),
        ("estimate it by samples", "z = p.rsample()\nkl = p.log_prob(z) - q.log_prob(z)"),
    ),
    says(
        r"loaded state dict (?:has a different number of parameter groups"
        r"|contains a parameter group that doesn't match the size)",
        "wrong-argument",
        "the optimizer's parameter groups are not those of the state that it loads",
        "A state belongs to an optimizer of the same groups, of as many parameters each in the same"
        " order.",
        (
            "make the optimizer as that one was made",
            "optimizer = torch.optim.AdamW([{'params': decay}, {'params': rest}], lr=1e-3)",
        ),
        ("begin with a fresh state", "# no optimizer.load_state_dict(...)"),
    ),
    says(
        r"offsets\[0\] has to be 0",
        "wrong-argument",
        "the first bag of the embedding does not start at 0{inside}",
        "The offsets say where each bag starts, not how long it is or where it ends.",
        ("count the elements before each bag", "offsets = lengths.cumsum(0) - lengths"),
    ),
]
