"""The minimal change of statistics against a plain loop over images, layers and channels; and what it promises."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from parity_check import BATCH_NORM, assert_close, dense_network, network
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, ModelError
from offsupport.methods.minimal import MinimalConfig
from offsupport.testing import NETWORKS
from offsupport.testing.case import stream

CONFIG = MinimalConfig()


def images(count, seed, scale=1.0, offset=0.0):
    """Images of different colours and contrasts, so that not all of them are of one class."""
    draw = torch.Generator().manual_seed(seed)
    colour, contrast = (torch.rand(count, 3, 1, 1, generator=draw, dtype=torch.float64) for _ in range(2))
    noise = torch.rand(count, 3, 8, 8, generator=draw, dtype=torch.float64) - 0.5
    return offset + scale * (colour + contrast * noise).clamp(0, 1)


def made(build, clean):
    """A network that knows several classes among these images."""
    net = build("batch")
    with torch.no_grad():
        net.head.bias -= net(clean).transpose(0, 1).flatten(1).mean(1)
    return net


def moments_at(net, x, statistics):
    """Run image by image; return the logits and for each layer the moments of each channel, as lists of floats."""
    layers = [layer for layer in net if isinstance(layer, BATCH_NORM)]
    seen = [[] for _ in layers]

    def forward(z):
        for layer in net:
            if layer in layers:
                place = layers.index(layer)
                rows = z.flatten(2) if z.dim() > 2 else z[..., None]
                seen[place].append([(float(row.mean()), float((row**2).mean())) for row in rows[0]])
                mean, var = (torch.tensor(v, dtype=torch.float64) for v in statistics[place])
                shape = (1, -1) + (1,) * (z.dim() - 2)
                z = (z - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
                z = z * layer.weight.view(shape) + layer.bias.view(shape)
            else:
                z = layer(z)
        return z

    return torch.cat([forward(each[None]) for each in x]), seen


def settled_at(net, x, settle):
    """Run all images layer by layer, each of which asks what to normalise by; return the logits."""
    place, z = 0, x
    for layer in net:
        if isinstance(layer, BATCH_NORM):
            rows = z.flatten(2) if z.dim() > 2 else z[..., None]
            mean, var = (
                torch.tensor(v, dtype=torch.float64)
                for v in settle(place, [[(float(r.mean()), float((r**2).mean())) for r in image] for image in rows])
            )
            shape = (1, -1) + (1,) * (z.dim() - 2)
            z = (z - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
            z = z * layer.weight.view(shape) + layer.bias.view(shape)
            place += 1
        else:
            z = layer(z)
    return z


def came_with(net):
    layers = [layer for layer in net if isinstance(layer, BATCH_NORM)]
    return [(layer.running_mean.tolist(), layer.running_var.tolist()) for layer in layers]


class Plain:
    """The rule, one number at a time."""

    def __init__(self, net, clean, config):
        self.net, self.config, self.known = net, config, came_with(net)
        logits, seen = moments_at(net, clean, self.known)
        rows = logits.flatten(2).mean(2) if logits.dim() > 2 else logits
        labels, self.classes = rows.argmax(1).tolist(), logits.shape[1]
        self.law = [labels.count(k) / len(labels) for k in range(self.classes)]
        self.q, self.seen, self.squares, self.held, self.usual = list(self.law), 0, 0.0, [], 1.0
        self.restarts, self.faded, self.weight = 0, False, 0.0
        self.channels = []
        for place, layer in enumerate(seen):
            for c in range(len(layer[0])):
                mean, var = self.known[place][0][c], self.known[place][1][c]
                pair = [
                    self.describe([image[c][k] for image in layer], labels, least)
                    for k, least in enumerate((1e-6 * var, 1e-6 * var * (var + mean**2)))
                ]
                self.channels.append(
                    {"place": place, "c": c, "mean": mean, "var": var, "moment": pair, "R": [0.0, 0.0]}
                )

    def describe(self, values, labels, least):
        clean = sum(values) / len(values)
        of = {k: [v for v, label in zip(values, labels, strict=True) if label == k] for k in range(self.classes)}
        means = [sum(of[k]) / len(of[k]) - clean if of[k] else 0.0 for k in range(self.classes)]
        within = sum((v - clean - means[label]) ** 2 for v, label in zip(values, labels, strict=True)) / len(values)
        between = sum(share * m**2 for share, m in zip(self.law, means, strict=True))
        spread = sum((v - clean) ** 2 for v in values) / (len(values) - 1)
        return {
            "clean": clean, "means": means, "within": within + least, "between": between + least,
            "spread": math.sqrt(spread + least),
        }  # fmt: skip

    def without_classes(self, place, values, surplus):
        """Less what a surplus of classes explains, where these values (pairs, by channel) speak for it at all."""
        channels = [each["moment"] for each in self.channels if each["place"] == place]
        taken = [[sum(s * m for s, m in zip(surplus, k["means"], strict=True)) for k in moment] for moment in channels]
        told = sum(v[0] * t[0] / m[0]["within"] for v, t, m in zip(values, taken, channels, strict=True))
        whole = sum(t[0] ** 2 / m[0]["within"] for t, m in zip(taken, channels, strict=True))
        least = 1e-12 * len(channels)
        belief = self.config.trust * min(1.0, max(0.0, 8 * told / max(whole, least)))
        return [[a - belief * b for a, b in zip(v, t, strict=True)] for v, t in zip(values, taken, strict=True)]

    def statistics_of(self, place):
        config, surplus = self.config, [a - b for a, b in zip(self.q, self.law, strict=True)]
        channels = [each for each in self.channels if each["place"] == place]
        shifts = self.without_classes(place, [each["R"] for each in channels], surplus)
        doubted = (1 - config.trust) ** 2 * sum(s**2 for s in surplus)
        scores = sum(
            shift[0] ** 2 / (each["moment"][0]["within"] * self.squares + each["moment"][0]["between"] * doubted)
            for each, shift in zip(channels, shifts, strict=True)
        ) / len(channels)
        clean = [[moment["clean"] for moment in each["moment"]] for each in channels]
        full = [
            max((b + each["R"][1] - (a + each["R"][0]) ** 2) / (b - a**2), 0.001)
            for each, (a, b) in zip(channels, clean, strict=True)
        ]
        lost = sum(math.log(each) for each in full) / len(full) + 1
        score = sum(
            each["R"][1] ** 2 / (each["moment"][1]["within"] * self.squares + each["moment"][1]["between"] * doubted)
            for each in channels
        ) / len(channels)
        found = ([], [])
        for each, (a, b), (x, y), faded in zip(channels, clean, shifts, full, strict=True):
            share = 0.7 * max(0.0, 1 - (config.doubt + config.wary * sum(s**2 for s in surplus)) / scores)
            ratio = max((b + share * y - (a + share * x) ** 2) / (b - a**2), 0.05)
            given_up = config.standardise * share
            mean, var = each["mean"], each["var"]
            mean += given_up * max(-math.sqrt(var), min(math.sqrt(var), a - mean))
            var += given_up * (max(var / math.e, min(var * math.e, b - a**2)) - var)
            if place == 0 and lost < 0:
                self.faded = True
                share += (1 - math.exp(lost)) * (max(0.0, 1 - config.doubt / score) - share)
                ratio = min(ratio, faded**share)
                x += (1 - math.exp(lost)) * (each["R"][0] - x)
            found[0].append(a + share * x - (a - mean) * math.sqrt(ratio))
            found[1].append(var * ratio)
        return found

    def statistics(self):
        return [self.statistics_of(place) for place in range(len(self.known))] if self.seen else self.known

    def gather(self, logits, seen):
        self.held.append((logits, seen))
        if sum(len(each) for each, _ in self.held) >= min(self.config.group, 1 + self.seen // 4):
            layers = zip(*(each for _, each in self.held), strict=True)
            self.count(torch.cat([each for each, _ in self.held]), [list(itertools.chain(*layer)) for layer in layers])
            self.held = []

    def surprise(self, images, shares, seen):
        """The median over layers of the mean squared distance of a group, less what its classes explain, by chance.

        At most one and a half times that of the first layer, of both moments.
        """
        surplus = [s - q for s, q in zip(shares, self.q, strict=True)]
        doubted = (1 - self.config.trust) ** 2 * sum(s**2 for s in surplus)
        of = []
        for place in range(len(self.known)):
            moments = [each for each in self.channels if each["place"] == place]
            away = [
                [sum(self.clipped(each, k, [image[each["c"]][k] for image in seen[place]])) / images for k in range(2)]
                for each in moments
            ]
            rest = self.without_classes(place, away, surplus)
            chance = [
                [
                    moment["within"] * (1 / images + self.squares) + moment["between"] * doubted
                    for moment in each["moment"]
                ]
                for each in moments
            ]
            of.append([[r[k] ** 2 / c[k] for k in range(2)] for r, c in zip(rest, chance, strict=True)])
        median = sorted(sum(each[0] for each in layer) / len(layer) for layer in of)[(len(of) - 1) // 2]
        return min(median, 1.5 * sum(sum(each) for each in of[0]) / (2 * len(of[0])))

    def clipped(self, each, k, values):
        """How far values lie from what is known, each at most so far."""
        moment = each["moment"][k]
        bound, known = self.config.clip * moment["spread"], moment["clean"] + each["R"][k]
        return [max(-bound, min(bound, value - known)) for value in values]

    def count(self, logits, seen):
        config, images = self.config, len(logits)
        shares = logits.softmax(1).transpose(0, 1).flatten(1).mean(1).tolist()
        if self.seen >= 2 * config.group:
            surprise = self.surprise(images, shares, seen)
            if surprise > config.startle * max(1.0, self.usual):
                self.seen, self.squares, self.usual = 0, 1 / config.prior, 1.0
                self.restarts += 1
                self.begin()
            else:
                self.usual += 0.1 * (surprise - self.usual)
        fresh = config.haste * images
        gain = max(fresh / (config.prior + self.seen + fresh), 1 - (1 - 2 / config.memory) ** images)
        for each in self.channels:
            for k in range(2):
                away = self.clipped(each, k, [image[each["c"]][k] for image in seen[each["place"]]])
                each["R"][k] += gain * sum(away) / images
        self.weight += gain * (1 - self.weight)
        self.q = [(1 - gain) * q + gain * s for q, s in zip(self.q, shares, strict=True)]
        self.squares = (1 - gain) ** 2 * self.squares + gain**2 / images
        self.seen += images

    def begin(self):
        """Remember what is known before the images to come."""
        self.before, self.weight = ([list(each["R"]) for each in self.channels], list(self.q)), 0.0

    def settle(self, place, seen):
        """Count images anew, as a layer is given them when those before it have moved."""
        for each, before in zip(self.channels, self.before[0], strict=True):
            if each["place"] == place:
                each["R"] = list(before)
                fresh = [sum(self.clipped(each, k, [image[each["c"]][k] for image in seen])) for k in range(2)]
                each["R"] = [b + self.weight * f / len(seen) for b, f in zip(before, fresh, strict=True)]
        return self.statistics_of(place)

    def __call__(self, x):
        logits, poor, fine = [], False, 0
        self.begin()
        for group in x.split(self.config.group):
            before = self.seen
            found, seen = moments_at(self.net, group, self.statistics())
            self.gather(found, seen)
            logits.append(found)
            poor = poor or before < self.config.young or self.seen < before
            fine += 0 if poor else len(group)
        out = torch.cat(logits)
        if poor and len(x) >= 2:
            self.seen, self.held = self.seen + sum(len(each) for each, _ in self.held), []
            out[fine:] = settled_at(self.net, x[fine:], self.settle)
            shares = out[fine:].softmax(1).transpose(0, 1).flatten(1).mean(1).tolist()
            self.q = [(1 - self.weight) * q + self.weight * s for q, s in zip(self.before[1], shares, strict=True)]
        return out


@torch.no_grad()
@pytest.mark.parametrize("build", [network, dense_network])
def test_the_plain_loop_gives_the_same(build):
    clean = images(60, seed=1)
    net = made(build, clean)
    stats = offsupport.source_stats(net, [clean[:25], clean[25:]], method="minimal")
    assert "class_means" in stats.tensors
    adapted = offsupport.adapt(net, "minimal", source=stats, collapse="off")
    plain = Plain(net, clean, CONFIG)
    for seed, size in enumerate((1, 1, 1, 1, 1, 1, 1, 20, 7, 40, 1)):
        x = images(size, seed=10 + seed, scale=0.2, offset=0.8)
        assert_close(adapted(x), plain(x), f"batch {seed}")
    assert plain.held, "images wait to be counted"
    assert adapted.shift()[1].max() > CONFIG.doubt


@torch.no_grad()
def test_a_loss_of_contrast_is_made_good_at_the_first_layer():
    clean = images(60, seed=1)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")
    adapted, plain = offsupport.adapt(net, "minimal", source=stats), Plain(net, clean, CONFIG)
    stream = images(160, seed=2)
    faded = stream.mean((0, 2, 3), keepdim=True).lerp(stream, 0.05)
    for seed, x in enumerate(faded.split(40)):
        assert_close(adapted(x), plain(x), f"batch {seed}")
    assert plain.faded


@torch.no_grad()
def test_an_abrupt_change_begins_anew():
    clean = images(60, seed=1)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")
    adapted, plain = offsupport.adapt(net, "minimal", source=stats), Plain(net, clean, CONFIG)
    for seed, scale in enumerate((0.2, 0.2, 1.0, 1.0)):
        x = images(48, seed=10 + seed, scale=scale, offset=1 - scale)
        assert_close(adapted(x), plain(x), f"batch {seed}")
        assert (plain.restarts > 0) == (seed > 1)
    assert adapted.memory["evidence"][0] < 192


@torch.no_grad()
def test_clean_images_are_predicted_by_the_model_itself():
    clean, more = images(200, seed=1), images(96, seed=2)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")

    def moved(stream):
        adapted = offsupport.adapt(net, "minimal", source=stats)
        return (torch.cat([adapted(x) for x in stream.split(16)]) - net(stream)).abs().mean()

    assert moved(more) < 0.4 * moved(more * 0.2 + 0.8)


@torch.no_grad()
def test_the_size_of_a_batch_hardly_matters():
    net = network("batch")
    stats = offsupport.source_stats(net, [images(100, seed=1)], method="minimal")
    stream = images(192, seed=3, scale=0.4, offset=0.5)
    whole = offsupport.adapt(net, "minimal", source=stats, young=0)(stream)
    adapted = offsupport.adapt(net, "minimal", source=stats)
    assert_close(whole, torch.cat([adapted(x) for x in stream.split(16)]), "groups")


@torch.no_grad()
def test_one_image_moves_the_statistics_by_no_more_than_its_share():
    net = network("batch").float()
    stats = offsupport.source_stats(net, [images(200, seed=1).float()], method="minimal")
    mad = torch.ones(1, 3, 8, 8)
    mad[:, :, ::2] = 0.0
    shifts = []
    for first in (mad, images(1, seed=5).float()):
        adapted = offsupport.adapt(net, "minimal", source=stats)
        adapted(images(64, seed=4).float())
        for x in torch.cat([first, images(15, seed=6).float()]).split(1):
            adapted(x)
        assert adapted.memory["evidence"][0] == 80
        shifts.append(adapted.memory["shift"])
    gain = 16 * CONFIG.haste / (CONFIG.prior + 64 + 16 * CONFIG.haste)
    apart = (shifts[0] - shifts[1]).abs()
    assert (apart <= 2 * gain / 16 * CONFIG.clip * adapted.reference.spread * 1.001).all()
    assert apart.max() > 0


@torch.no_grad()
def test_single_images_are_counted_as_batches_are():
    net = network("batch")
    stats = offsupport.source_stats(net, [images(100, seed=1)], method="minimal")
    one, many = (offsupport.adapt(net, "minimal", source=stats) for _ in range(2))
    for each in (one, many):
        each(images(64, seed=2, scale=0.4, offset=0.5))
    stream = images(48, seed=3, scale=0.4, offset=0.5)
    singly = torch.cat([one(x) for x in stream.split(1)])
    assert_close(singly, torch.cat([many(x) for x in stream.split(16)]), "one by one")


@torch.no_grad()
def test_images_not_yet_counted_are_saved(tmp_path):
    net = network("batch")
    adapted = offsupport.adapt(net, "minimal")
    adapted(images(64, seed=1))
    for x in images(5, seed=2).split(1):
        adapted(x)
    assert adapted.memory["gathered"][0] == 5
    adapted.save(tmp_path / "a.safetensors")
    again = offsupport.load_adapted(net, tmp_path / "a.safetensors")
    for x in images(20, seed=3).split(1):
        assert torch.equal(adapted(x), again(x))
    adapted.reset()
    assert not adapted.memory["gathered"].numel()


@torch.no_grad()
def test_images_of_strangers_move_it_half_as_far():
    clean, stream = images(100, seed=1), images(64, seed=5, scale=0.2, offset=0.8)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")
    free, strict, halved = (
        offsupport.adapt(net, "minimal", source=stats, **options)
        for options in ({}, {"trusted": False}, {"amount": 0.35, "clip": 2.0})
    )
    answers = [adapted(stream) for adapted in (free, strict, halved)]
    assert_close(answers[1], answers[2], "half of amount and clip")
    assert not torch.allclose(answers[0], answers[1])


def test_methods_without_a_bound_are_refused_where_images_are_not_trusted():
    with pytest.raises(ConfigError, match="sets no bound"):
        offsupport.adapt(network("batch"), "tent", trusted=False)
    assert offsupport.adapt(network("batch"), "source", trusted=False).options.trusted is False


@torch.no_grad()
def test_mistrust_is_saved(tmp_path):
    net = network("batch")
    adapted = offsupport.adapt(net, "minimal", trusted=False)
    adapted(images(16, seed=1))
    adapted.save(tmp_path / "a.safetensors")
    assert offsupport.load_adapted(net, tmp_path / "a.safetensors").options.trusted is False


def test_layers_without_running_statistics_alone_are_refused():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 3)
    )
    with pytest.raises(ModelError, match="keep no running statistics"):
        offsupport.adapt(net, "minimal")


@torch.no_grad()
def test_images_that_show_nothing_are_not_counted():
    clean = images(100, seed=1)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")
    stream = images(48, seed=3, scale=0.4, offset=0.5)
    grey = torch.full((8, 3, 8, 8), 0.5, dtype=torch.float64)
    plain, mixed = (offsupport.adapt(net, "minimal", source=stats, group=64) for _ in range(2))
    assert_close(mixed(torch.cat([stream, grey]))[:48], plain(stream), "as without them")
    assert_close(mixed.memory["shift"], plain.memory["shift"], "shift")


def test_what_the_model_returned_is_never_written_into():
    """A model may hold on to its answer, or give the same place in memory to all images of a batch."""

    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.held, self.copies = NETWORKS["batch_norm"](), [], []

        def forward(self, x):
            self.held.append(self.inner(x)[:1].expand(len(x), -1))
            self.copies.append(self.held[-1].clone())
            return self.held[-1]

    model = Holding().eval()
    adapted = offsupport.adapt(model, "minimal", inplace=True)
    for x in stream(4, size=8):
        adapted(x)
    assert all(torch.equal(one, other) for one, other in zip(model.held, model.copies, strict=True))
