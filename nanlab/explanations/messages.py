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
    ),
    says(
        r"view size is not compatible with input tensor's size and stride",
        "shape-mismatch",
        "view cannot join dimensions that do not lie next to each other in memory{inside}",
        "transpose, permute and slices leave the memory as it is.",
        ("let it copy where it must", "x = x.reshape(...)"),
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
        r"(\w+)\.forward\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)",
        "missing-argument",
        "a {1} was called without {2}{inside}",
        "It has no default for what is missing. The call of a class makes a layer, that of a layer"
        " runs it: in a table of classes, an instance is out of place.",
    ),
    says(
        r"promoteTypes with quantized|the 'Quantized\w+' backend|on quantized tensors"
        r"|Copying from quantized|requires quantized dtype|(?:ScalarType|match|Got) QU?Int\d",
        "dtype-mismatch",
        "an operator for plain numbers was given a quantized tensor{inside}",
        "It holds whole numbers and a scale, which few operators take.",
        ("what its numbers stand for", "error = weight - quantized.dequantize()"),
    ),
    says(
        r"grad can be implicitly created only for real scalar outputs but got torch\.(complex\d+)",
        "complex-loss",
        "the loss is a complex number ({1})",
        "Only a real one can become smaller. The difference of two spectra is complex, and its"
        " square is too: the square of its length is real.",
        ("the square of its length", "loss = (a - b).abs().square().mean()"),
    ),
    says(
        r"mutable default <class '(?:.*\.)?(\w+)'> for field (\w+) is not allowed",
        "shared-default",
        "the default of the field {2} is one {1}, which all instances would share",
        "What one of them changes in it would be changed in all of them. A factory makes another"
        " one for each.",
        ("one for each instance", "{2}: {1} = field(default_factory=lambda: ...)"),
    ),
    says(
        r"(\w+)(?:\.__init__)?\(\) missing \d+ required (?:positional|keyword-only) arguments?:"
        r" (.+)",
        "missing-argument",
        "{1}() is called without {2}{inside}",
        "It has no default for what is missing.",
    ),
    says(
        r"(\w+)(?:\.\w+)?\(\) got an unexpected keyword argument '(\w+)'",
        "wrong-argument",
        "{1} has no argument that is named `{2}`{inside}",
        "It is given the names of its own parameters alone: each key of what is given as"
        " **options is one, too.",
    ),
    says(
        r"unsupported operand type\(s\) for \|: "
        r"(?!.*'(?:Tensor|bool|int|float|dict|list|set|tuple)')(?:.* and )?"
        r"'(?:builtin_function_or_method|function|module|str|torch\.dtype)'",
        "wrong-argument",
        "an annotation joins something that is no class{inside}",
        "Annotations name classes, `torch.Tensor` and `np.ndarray`; `torch.tensor` and `np.array`"
        " are functions. A class that is not defined yet stands in quotes, with all of the"
        " annotation.",
        ("name the class", "mask: torch.Tensor | None = None"),
    ),
    says(
        r"symbolically traced variables cannot be used as inputs to control flow"
        r"|Proxy object cannot be iterated|is not supported in symbolic tracing"
        r"|'Proxy' object cannot be interpreted|not 'Proxy'$",
        "wrong-argument",
        "what the program does here depends on a value that is not there while the model is traced"
        "{inside}",
        "torch.fx records one graph for all inputs, with a Proxy for each tensor and size. What"
        " depends on them is to be one operation; a function that `torch.fx.wrap` names is recorded"
        " as one call.",
        ("choose by an operation", "x = torch.where(x.sum() > 0, f(x), x)"),
        ("record it as one call", "@torch.fx.wrap\ndef cut(x, n): ..."),
        ("fix a switch", 'fx.symbolic_trace(model, concrete_args={"return_features": False})'),
    ),
    says(
        r"builtin_function_or_method",
        "wrong-argument",
        "a method was only named where what it gives is meant{inside}",
        "Without brackets it is not called; what was kept or computed with is the method itself.",
        ("call it", "history.append(loss.item())  # not loss.item"),
    ),
    says(
        r"in_dims is not compatible with the structure of `inputs`",
        "wrong-argument",
        "in_dims has other than one entry for each argument of what vmap maps{inside}",
        "An entry says which dimension holds the samples, 0 as a rule; None is for what is the same"
        " for all of them, as parameters and buffers are.",
        ("one for each argument", "vmap(grad(loss), in_dims=(None, None, 0, 0))"),
    ),
    says(
        r"could not convert string to float: (.+)",
        "wrong-argument",
        "the text {1} was to be read as a number{inside}",
        "One text among its numbers makes a column of a table one of texts. Mostly it marks what"
        " is missing.",
        ("read it as missing", 'pd.read_csv(path, na_values="?").dropna()'),
    ),
    says(
        r"'len\(size\) == sparse_dim \+ dense_dim' is not satisfied: len\(size\) = (\d+),"
        r" sparse_dim = (\d+)",
        "shape-mismatch",
        "the indices of a sparse tensor of {1} dimensions have {2} rows{inside}",
        "They have a row for each dimension and a column for each entry. A list of pairs has them"
        " the other way round.",
        ("turn it", "torch.sparse_coo_tensor(torch.tensor(pairs).t(), values, size)"),
    ),
    says(
        r"elements of parameter_and_buffer_dicts to be dictionaries"
        r"|parameter_and_buffer_dicts to be a dict",
        "wrong-argument",
        "functional_call was given its tensors without their names{inside}",
        "It takes a dict: each tensor under the name that named_parameters() has for it.",
        ("keep the names", "{n: p - lr * g for (n, p), g in zip(parameters.items(), grads)}"),
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
        "Packed sequences have at least one element each. A text that loses all its words"
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
    says(
        r"(\w+) does not support (sparse|dense) gradients",
        "wrong-argument",
        "{1} was given {2} gradients",
        "A table made with sparse=True has sparse gradients, every other parameter dense ones."
        " SparseAdam takes the sparse ones alone, SGD and Adagrad take both.",
        ("let the table have dense gradients", "nn.Embedding(rows, width)  # without sparse=True"),
        ("an optimizer for each kind", "torch.optim.SparseAdam(table.parameters())"),
    ),
    says(
        r"some parameters appear in more than one parameter group",
        "wrong-argument",
        "a parameter stands in two groups of the optimizer",
        "Each parameter belongs to one group; the tests that choose them must exclude each other.",
        ("the rest in the other group", "rest = [p for p in parameters if p not in chosen]"),
    ),
    says(
        r"'initial_lr' is not specified in param_groups\[(\d+)\]",
        "missing-argument",
        "the schedule goes on after its first epoch, and the optimizer does not know the rate that"
        " it began with",
        "The optimizer's state has it. Load that state before the schedule is made.",
        ("load the state", 'optimizer.load_state_dict(checkpoint["optimizer"])'),
        ("or load the schedule's own", 'schedule.load_state_dict(checkpoint["schedule"])'),
    ),
    says(
        r"(\S+) is not a valid value for (reduction|compute_mode)",
        "wrong-argument",
        "`{1}` is no {2}{inside}",
        "A loss knows none, mean and sum; KLDivLoss also batchmean.",
        ("one of those", 'nn.KLDivLoss(reduction="batchmean")'),
    ),
    says(
        r"attribute '(\w+)' already exists",
        "wrong-argument",
        "the module already has something named `{1}`{inside}",
        "A name of a module, buffer or parameter is an attribute of what holds it: a ModuleDict"
        " has `type`, `keys`, `items` and all other methods of a module.",
        ("a prefix for the keys", 'nn.ModuleDict({"emb_" + name: layer for name in names})'),
    ),
    says(
        r"Torch not compiled with (\w+) enabled|No CUDA GPUs are available|no NVIDIA driver on your"
        r" system",
        "missing-device",
        "a device was asked for that is not here{inside}",
        "This build of torch, or this machine, has no such device.",
        ("where the operands are", "torch.arange(n, device=x.device)"),
        (
            "choose the device once",
            'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        ),
    ),
    says(
        r"num_samples should be a positive integer value, but got num_samples=0",
        "empty-data",
        "the dataset has no samples",
        "Nothing was found, or a test left out everything: a path, or the name of a split, is"
        " another than in the data.",
        ("see how many there are", "print(len(dataset))"),
    ),
    says(
        r"(\w+) option is mutually exclusive with|DataLoader with IterableDataset: expected"
        r" unspecified",
        "wrong-argument",
        "the loader was given options that exclude each other",
        "A sampler, or the dataset itself, chooses the order; a batch sampler the batches too.",
        ("leave the other out", "DataLoader(dataset, batch_size=32, sampler=sampler)"),
    ),
    says(
        r"(prefetch_factor|multiprocessing_context|persistent_workers) .*num_workers",
        "wrong-argument",
        "{1} is for workers, and the loader has none",
        "With num_workers=0 the samples are loaded in the process itself.",
        ("with workers", "DataLoader(dataset, num_workers=2, {1}=...)"),
    ),
    says(
        r"Nesterov momentum requires a momentum and zero dampening",
        "wrong-argument",
        "nesterov=True without momentum, or with dampening",
        "Nesterov's step looks ahead along the momentum.",
        ("with momentum", "torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)"),
    ),
    says(
        r"Invalid (learning rate|\w+ value|beta parameter at index \d|\w+): (\S+)",
        "wrong-argument",
        "the optimizer's {1} is {2}, outside of its range",
        "Rates, eps and decays are not negative; betas and momentum are below 1.",
    ),
    says(
        r"Either `probs` or `logits` must be specified|Exactly one of covariance_matrix or"
        r" precision_matrix or scale_tril",
        "wrong-argument",
        "the distribution was given its parameter twice, or not at all{inside}",
        "One form of it is enough: the other follows from it.",
        ("one of them", "Categorical(logits=scores)"),
    ),
    says(
        r"Value is not broadcastable with batch_shape\+event_shape"
        r"|The right-most size of value must match event_shape",
        "shape-mismatch",
        "log_prob of a value whose shape does not fit that of the distribution{inside}",
        "The shape of a value ends with the batch and the event of the distribution; samples come"
        " first.",
        ("samples first", "distribution.log_prob(x.unsqueeze(1))  # (samples, batch)"),
    ),
    says(
        r"must override the setup_context staticmethod|tried to vmap over (\w+), but",
        "wrong-argument",
        "an autograd.Function was given to a transformation of torch.func that it is not made for",
        "grad, jacrev and vmap need its forward without ctx, and what it keeps in setup_context;"
        " vmap also a rule.",
        (
            "keep in a function of its own",
            "@staticmethod\ndef setup_context(ctx, inputs, output):\n"
            "    ctx.save_for_backward(*inputs)",
        ),
        ("let torch make the rule", "generate_vmap_rule = True  # in the class"),
    ),
    says(
        r"Module \[(\w+)\] is missing the required \"forward\" function",
        "missing-argument",
        "{1} was called and has no forward(){inside}",
        "It is misspelt, indented into another function, or the module is a container.",
        ("name it so", "def forward(self, x):"),
    ),
    says(
        r"cannot assign '(.+)' as (child module|parameter|buffer) '(\w+)'",
        "wrong-argument",
        "`{3}` is a {2} of its module, and was given a {1}{inside}",
        "What was registered once is only replaced by its like.",
        ("write the values into it", "with torch.no_grad():\n    self.weight.copy_(values)"),
    ),
    says(
        r"Expected state_dict to be dict-like, got <class '(?:\w+\.)*(\w+)'>",
        "wrong-argument",
        "load_state_dict was given a {1}, not a state",
        "It takes the dict that state_dict() returns.",
        ("the state of the other", "model.load_state_dict(other.state_dict())"),
        ("a state from a file", "model.load_state_dict(torch.load(path))"),
    ),
    says(
        r"Only [\"`]zeros[\"`] padding mode is supported for (\w+)",
        "wrong-argument",
        "{1} pads with zeros alone{inside}",
        "Its padding takes elements away from the result.",
        ("without padding_mode", "nn.{1}(channels, width, 4, stride=2, padding=1)"),
    ),
    says(
        r"Got \dD input, but \w+ mode needs \dD input"
        r"|Input and output must have the same number of spatial dimensions",
        "shape-mismatch",
        "interpolate was given other dimensions than its mode or size is for{inside}",
        "linear is for (N, C, L), bilinear for (N, C, H, W), trilinear for (N, C, D, H, W).",
        ("the dimensions of a batch", "F.interpolate(x[None], size=size)[0]"),
    ),
    says(
        r"num_channels \((\d+)\) must be divisible by num_groups \((\d+)\)"
        r"|(in|out)_channels must be divisible by groups",
        "shape-mismatch",
        "the channels cannot be divided into the groups{inside}",
        "Each group has as many channels as every other.",
        ("a number that divides them", "nn.GroupNorm(8, 48)"),
    ),
    says(
        r"(\w+) expects all schedulers to belong to the same optimizer"
        r"|Expected (\d+) lr_lambdas, but got (\d+)|expected (\d+) min_lrs, got (\d+)",
        "wrong-argument",
        "the schedule was not made for the groups of this optimizer",
        "A list has one entry for each group; schedules that are joined share one optimizer.",
        ("one for each group", "LambdaLR(optimizer, [warm_up] * len(optimizer.param_groups))"),
    ),
    says(
        r"Tried to step (\d+) times\. The specified number of total steps is (\d+)",
        "wrong-argument",
        "the schedule was made for {2} steps, and was to step {1} times",
        "OneCycleLR steps after every batch, so often as it was told.",
        ("as many as there are", "OneCycleLR(optimizer, max_lr, total_steps=epochs * len(loader))"),
    ),
    says(
        r"Attempting to unscale FP16 gradients",
        "scaler-misuse",
        "the parameters are float16; a scaler works on float32 parameters",
        "autocast casts where that is safe, and the parameters stay float32.",
        (
            "leave the parameters as they are",
            'with torch.autocast("cuda", torch.float16):\n    loss = criterion(model(x), y)',
        ),
    ),
    says(
        r"Attempted (\w+) but _scale is None",
        "scaler-misuse",
        "{1} of a scaler that has scaled no loss",
        "The scaler scales the loss before backward, and takes that back in step().",
        ("scale the loss", "scaler.scale(loss).backward()"),
    ),
    says(
        r"expand\(.*\): the number of sizes provided \((\d+)\) must be greater or equal "
        r"to the number of dimensions in the tensor \((\d+)\)",
        "shape-mismatch",
        "expand was given {1} sizes for a tensor of {2} dimensions{inside}",
        "The last sizes stand for the dimensions that it has; new ones come first.",
        ("a size for each dimension", "x.expand(5, -1, -1)"),
    ),
    says(
        r"split_with_sizes expects split_sizes to sum exactly to (\d+) \(input tensor's "
        r"size at dimension (-?\d+)\), but got split_sizes=\[(.+)\]",
        "shape-mismatch",
        "the parts [{3}] do not add up to the size {1} of dimension {2}{inside}",
        "split takes everything apart; a number alone is the size of each part.",
        ("the rest as the last part", "x.split([n, x.size({2}) - n], dim={2})"),
    ),
    says(
        r"selected index k out of range|cannot sample n_sample > prob_dist\.size\(-1\) "
        r"samples without replacement",
        "wrong-argument",
        "more elements were asked for than there are{inside}",
        "topk, kthvalue and multinomial take no more than the dimension has.",
        ("no more than there are", "x.topk(min(k, x.size(-1)))"),
    ),
    says(
        r"Dimension out of range \(expected to be in range of \[(-?\d+), (-?\d+)\], but "
        r"got (-?\d+)\)",
        "shape-mismatch",
        "dimension {3} was asked for, and the tensor has those from {1} to {2}{inside}",
        "An operation before left a dimension out, as an index or a reduction does.",
        ("keep the dimension", "x.sum(1, keepdim=True)"),
    ),
    says(
        r"too many indices for tensor of dimension (\d+)",
        "shape-mismatch",
        "more indices than the {1} dimensions of the tensor{inside}",
        "An index that is a number leaves its dimension out.",
        ("see what is left", "print(x.shape)"),
    ),
    says(
        r"tensors used as indices must be long, int, byte or bool tensors",
        "dtype-mismatch",
        "an index is a tensor of another dtype than int64 or bool{inside}",
        "Numbers read from a table are often float.",
        ("make it integers", "x[index.long()]"),
    ),
    says(
        r"a Tensor with (\d+) elements cannot be converted to Scalar|only one element "
        r"tensors can be converted to Python scalars",
        "shape-mismatch",
        "a number was asked for, of a tensor with several elements{inside}",
        "item(), int() and float() take one element.",
        ("one number of all", "x.mean().item()"),
    ),
    says(
        r"Subtraction, the `-` operator, with (?:a|two) bool tensors? is not supported",
        "dtype-mismatch",
        "a mask was subtracted{inside}",
        "True and False are no numbers.",
        ("invert a mask", "~mask  # or 1 - mask.float()"),
    ),
    says(
        r"Expected reduction dim to be specified for input\.numel\(\) == 0|input tensor "
        r"must have at least 1 element|(?:stack|cat\(\):|meshgrid).* expects? a "
        r"non-empty (?:list of Tensors|TensorList)|expected a non-empty list of Tensors",
        "empty-data",
        "an operation was given no elements{inside}",
        "A selection, a split or a loop before gave nothing.",
        ("see what is left", "print(len(tensors))"),
    ),
    says(
        r"Calculated padded input size per channel: \((.+?)\)\. Kernel size: "
        r"\((.+?)\)|Given input size: \((.+?)\)\. Calculated output size: \((.+?)\)\. "
        r"Output size is too small",
        "shape-mismatch",
        "the input has become smaller than the kernel{inside}",
        "Each stride and each pooling divides its size.",
        ("pad, or pool less", "nn.Conv2d(8, 16, 3, padding=1)"),
    ),
    says(
        r"pixel_shuffle expects its input's 'channel' dimension to be divisible by the "
        r"square of upscale_factor, but input\.size\(-3\)=(\d+) is not divisible by "
        r"(\d+)",
        "shape-mismatch",
        "pixel_shuffle makes one channel of {2}, and was given {1}{inside}",
        "It needs channels times the square of its factor.",
        ("as many as it takes", "nn.Conv2d(width, channels * factor**2, 3, padding=1)"),
    ),
    says(
        r"Padding length must be divisible by 2|Only 2D, 3D, 4D, 5D padding with "
        r"non-constant padding",
        "wrong-argument",
        "pad was given the wrong number of sizes{inside}",
        "They come in pairs, for the last dimension first; other modes than constant "
        "leave the first two dimensions.",
        ("a pair for each dimension", "F.pad(x, (left, right, top, bottom))"),
    ),
    says(
        r"Output \d+ of (\w+)Backward\d+ is a view and is being modified inplace",
        "inplace-modification",
        "a part that {1} gave was changed in place{inside}",
        "It shares its memory with the other parts.",
        ("change a copy", "part = part.clone()"),
    ),
    says(
        r"Got unsupported ScalarType (\w+)",
        "dtype-mismatch",
        "NumPy has no {1}{inside}",
        "It has float16, float32 and float64.",
        ("convert first", "x.float().numpy()"),
    ),
    says(
        r"can't convert np\.ndarray of type numpy\.object_|too many dimensions "
        r"'str'|new\(\): invalid data type 'str'",
        "dtype-mismatch",
        "a tensor was made of texts, or of rows of several types{inside}",
        "A column of texts, or of missing values, makes the whole an object.",
        ("numbers alone", 'torch.tensor(frame[columns].to_numpy(dtype="float32"))'),
    ),
    says(
        r"expected sequence of length (\d+) at dim (\d+) \(got (\d+)\)",
        "unequal-sizes",
        "a list in the list has {3} elements, where the first has {1}{inside}",
        "A tensor has rows of one length.",
        (
            "pad them",
            "nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)",
        ),
    ),
    says(
        r"At least one stride in the given numpy array is negative",
        "wrong-argument",
        "the array was turned around, as by [::-1]{inside}",
        "torch has no negative strides.",
        ("copy it", "torch.from_numpy(image[:, ::-1].copy())"),
    ),
    says(
        r"expected Tensor as element (\d+) in argument \d+, but got (\w+)",
        "wrong-argument",
        "element {1} of the list is a {2}, not a tensor{inside}",
        "A function that returns nothing gives None.",
        ("tensors alone", "torch.stack([torch.as_tensor(each) for each in values])"),
    ),
    says(
        r"Tensors must have same number of dimensions: got (\d+) and (\d+)",
        "shape-mismatch",
        "tensors of {1} and of {2} dimensions were joined{inside}",
        "cat joins along a dimension that all of them have.",
        ("give it the missing one", "torch.cat([a, b.unsqueeze(1)], dim=1)"),
    ),
    says(
        r"batch[12] must be a 3D tensor|self must be a matrix|vector and matrix expected",
        "shape-mismatch",
        "a product of matrices was given other dimensions{inside}",
        "bmm takes two of three, mm two of two; matmul takes any.",
        ("whatever they have", "a @ b"),
    ),
    says(
        r"Expected (\d)D \(unbatched\) or (\d)D \(batched\) input to (\w+), but got "
        r"input of size: \[(.+)\]",
        "shape-mismatch",
        "{3} was given an input of shape [{4}]; it takes {1} or {2} dimensions{inside}",
        "Channels come before the dimensions that it moves over, the batch first.",
        ("add the channel", "x.unsqueeze(1)"),
    ),
    says(
        r"einsum\(\): the number of subscripts in the equation \((\d+)\) does not match "
        r"the number of dimensions \((\d+)\) for operand (\d+)",
        "shape-mismatch",
        "operand {3} (from 0) of einsum has {2} dimensions, and {1} letters{inside}",
        "Each dimension has a letter; `...` stands for any number of them.",
        ("any number of them", 'torch.einsum("...d,de->...e", x, w)'),
    ),
    says(
        r"Function (\w+) returned an invalid gradient at index (\d+) - got (.+?) but "
        r"expected shape compatible with (.+)",
        "shape-mismatch",
        "the backward of {1} returned a gradient of shape {3} for an input of shape {4}",
        "A gradient has the shape of its input: what was broadcast is summed.",
        ("sum over what was broadcast", "grad.sum_to_size(x.shape)"),
    ),
    says(
        r"[Ff]unction (\w+) returned an incorrect number of gradients \(expected (\d+), "
        r"got (\d+)\)",
        "wrong-argument",
        "the backward of {1} returned {3} gradients, its forward took {2} arguments",
        "Each argument has one, None if it needs none.",
        ("one for each argument", "return grad_x, None"),
    ),
    says(
        r"Legacy autograd function with non-static forward method",
        "wrong-argument",
        "an autograd.Function was called, or its forward is no static method{inside}",
        "It is never made an object.",
        ("apply it", "y = Square.apply(x)"),
    ),
    says(
        r"`lengths` array must be sorted in decreasing order when `enforce_sorted` is "
        r"True",
        "wrong-argument",
        "the lengths are not sorted{inside}",
        "It sorts them by itself where it may.",
        ("let it sort", "pack_padded_sequence(x, lengths, enforce_sorted=False)"),
    ),
    says(
        r"Expected `len\(lengths\)` to be equal to batch_size, but got (\d+) "
        r"\(batch_size=(\d+)\)",
        "shape-mismatch",
        "there are {1} lengths for a batch of {2}{inside}",
        "With batch_first=False the time comes first.",
        ("the batch first", "pack_padded_sequence(x, lengths, batch_first=True)"),
    ),
    says(
        r"number of dimensions in the tensor input does not match the length of the "
        r"desired ordering|Number of dimensions of repeat dims can not be smaller",
        "shape-mismatch",
        "permute or repeat was given other than a number for each dimension{inside}",
        "Every dimension is named, the batch too.",
        ("name all of them", "x.permute(0, 2, 1)"),
    ),
    says(
        r"unsupported operation: (?:more than one element of the written-to tensor|some "
        r"elements of the input tensor and the written-to tensor) refer",
        "inplace-modification",
        "a tensor was written whose elements share their memory{inside}",
        "expand and unfold repeat the same memory.",
        ("copy it first", "x = x.expand(4, -1).clone()"),
    ),
    says(
        r"unflatten: Provided sizes \[(.+?)\] don't multiply up to the size of dim "
        r"(-?\d+) \((\d+)\)",
        "shape-mismatch",
        "dimension {2} of size {3} cannot be taken apart into [{1}]{inside}",
        "Their product is the size; one of them may be -1.",
        ("leave one open", "x.unflatten({2}, (heads, -1))"),
    ),
    says(
        r"masked_fill\w* only supports boolean masks|where expected condition to be a "
        r"boolean tensor",
        "dtype-mismatch",
        "a mask is not bool{inside}",
        "Zeros and ones are compared first.",
        ("compare", 'x.masked_fill(mask == 0, float("-inf"))'),
    ),
    says(
        r"Index put requires the source and destination dtypes match, got (\w+) for the "
        r"destination and (\w+) for the source|Expected self\.dtype to be equal to "
        r"src\.dtype",
        "dtype-mismatch",
        "what was written into a tensor has another dtype{inside}",
        "Writing by an index converts nothing.",
        ("convert it", "x[index] = values.to(x.dtype)"),
    ),
    says(
        r"(?:len\(\) of|iteration over) a 0-d tensor|invalid index of a 0-dim tensor",
        "shape-mismatch",
        "a tensor of one number was indexed, gone through or asked for its length{inside}",
        "squeeze and a full reduction leave no dimension.",
        ("keep one", "x.reshape(-1)"),
    ),
    says(
        r"must be batches of square matrices, but they are (\d+) by (\d+) matrices",
        "wrong-argument",
        "the matrix is {1} by {2}, and must be square{inside}",
        "More equations than unknowns have a least-squares solution.",
        ("solve it so", "torch.linalg.lstsq(A, b).solution"),
    ),
    says(
        r"Expected (input_lengths|target_lengths) to have value at most (\d+), but got "
        r"value (\d+)",
        "wrong-argument",
        "one of the {1} is {3}, and there are {2} steps{inside}",
        "Strides make a sequence shorter; its length shrinks with it.",
        ("shrink the lengths too", "lengths = (lengths + 1) // 2"),
    ),
    says(
        r"vmap: called random operation while in randomness error mode",
        "wrong-argument",
        "a random operation, as dropout, ran within vmap{inside}",
        "vmap must know whether each sample has its own numbers.",
        ("say so", 'torch.func.vmap(f, randomness="different")'),
    ),
    says(
        r"vmap: It looks like you're (?:calling \.item\(\)|attempting to use a Tensor "
        r"in some data-dependent control flow)",
        "wrong-argument",
        "a value was read from a tensor within vmap{inside}",
        "Each sample has another one.",
        ("choose for each element", "torch.where(x > 0, x, 0.1 * x)"),
    ),
    says(
        r"Weights only load failed|PytorchStreamReader failed",
        "file-refused",
        "a file could not be loaded{inside}",
        "torch.load takes tensors and plain containers alone, unless told otherwise; a "
        "file that was not written to its end is none.",
        ("if you trust the file", "torch.load(path, weights_only=False)"),
    ),
    says(
        r"Default process group has not been initialized",
        "no-process-group",
        "a collective operation ran without a process group{inside}",
        "One process needs none.",
        ("in each process, first", 'torch.distributed.init_process_group("gloo")'),
    ),
    says(
        r"Expected to have finished reduction in the prior iteration",
        "unused-parameter",
        "parameters of a model under DistributedDataParallel got no gradient in the step before",
        "Each process waits for the gradient of each parameter. A part of the model that a step"
        " does not use has none.",
        ("find them in each step", "DistributedDataParallel(model, find_unused_parameters=True)"),
        ("or take what is never used out", "model.auxiliary = None"),
    ),
    says(
        r"Cannot re-initialize CUDA in forked subprocess",
        "device-failure",
        "a worker used CUDA after a fork{inside}",
        "A fork cannot go on with CUDA: data is moved in the loop, not in the dataset.",
        ("move it in the loop", "x = x.to(device)"),
    ),
    says(
        r"An attempt has been made to start a new process before",
        "worker-died",
        "workers were started while the script was imported",
        "Each worker imports the script again.",
        ("guard what runs", 'if __name__ == "__main__":\n    main()'),
    ),
    says(
        r"cudnn RNN backward can only be called in training mode",
        "wrong-mode",
        "backward through a recurrent layer in evaluation mode{inside}",
        "cuDNN keeps what backward needs only in training mode.",
        ("train", "model.train()"),
    ),
    says(
        r"Integers to negative integer powers are not allowed",
        "wrong-argument",
        "a tensor of integers was raised to a negative power{inside}",
        "The result would be no integer.",
        ("convert first", "x.float() ** -1"),
    ),
    says(
        r"Cannot copy out of meta tensor; no data!|Tensor on device \w+ is not on the "
        r"expected device meta",
        "missing-values",
        "a tensor of the meta device has no values{inside}",
        "It has a shape alone, until its values are loaded.",
        ("give it memory", 'model.to_empty(device="cpu")'),
    ),
    says(
        r"you can only change requires_grad flags of leaf variables",
        "graph-cut",
        "requires_grad was set on a tensor that was computed{inside}",
        "Whether a result has a gradient follows from its operands.",
        ("cut it from the graph", "h = h.detach()"),
    ),
]
