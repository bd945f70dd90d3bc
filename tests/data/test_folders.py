import numpy as np
import pytest
from data_layouts import write_imagenet100, write_picture
from PIL import Image

from offsupport.core.errors import DataMissingError, FileError, InputError
from offsupport.data import load, stream
from offsupport.data.folders import IMAGENET100, imagenet_class_names, match_classes
from offsupport.data.pictures import decode_image, encode_jpeg, read_picture


def test_class_folders_in_sorted_order(tmp_path):
    for name in ("cat/b.png", "cat/a.png", "ant/z.PNG", "ant/.hidden.png", "ant/notes.txt", ".git/x.png"):
        write_picture((tmp_path / name).with_suffix(".png"))
        (tmp_path / name).with_suffix(".png").rename(tmp_path / name)
    folder = load("folder", tmp_path)
    assert folder.classes == ("ant", "cat")
    assert folder.files == ["ant/z.PNG", "cat/a.png", "cat/b.png"]
    assert folder.labels.tolist() == [0, 1, 1]
    assert folder.images([0, 2]).shape == (2, 32, 32, 3)


def test_flat_folder_has_no_labels(tmp_path):
    write_picture(tmp_path / "b.png")
    write_picture(tmp_path / "a.png", (250, 0, 0))
    batch = next(iter(stream("folder", tmp_path, order="sorted")))
    assert batch.y.tolist() == [-1, -1]
    assert load("folder", tmp_path).classes == ()


def test_sizes(tmp_path):
    write_picture(tmp_path / "a.png", size=(40, 32))
    write_picture(tmp_path / "b.png", size=(32, 32))
    with pytest.raises(InputError, match=r"several sizes: 32x32, 40x32\. Pass size=N"):
        load("folder", tmp_path).images([0, 1])
    assert load("folder", tmp_path, size=16).images([0, 1]).shape == (2, 16, 16, 3)


def test_resize_and_crop(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 30:50] = 255
    path = tmp_path / "x.png"
    Image.fromarray(pixels).save(path)
    assert np.array_equal(read_picture(path), pixels)
    assert np.array_equal(read_picture(path, crop=40), pixels[:, 20:60])
    halved = read_picture(path, resize=20, crop=20)
    assert halved.shape == (20, 20, 3)
    assert (halved[:, 8:12] > 200).all()
    with pytest.raises(FileError, match="smaller than 50"):
        read_picture(path, crop=50)


def test_unreadable_image_is_named(tmp_path):
    for name in "abc":
        write_picture(tmp_path / f"{name}.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:300])
    folder = load("folder", tmp_path)
    assert len(folder.images([0, 2])) == 2
    with pytest.raises(FileError, match=r"b\.jpg cannot be read"):
        folder.images([0, 1, 2])


def test_empty_and_absent_folders(tmp_path):
    with pytest.raises(DataMissingError, match=r"Neither .* hold images"):
        load("folder", tmp_path)
    with pytest.raises(DataMissingError, match="not a folder"):
        load("folder", tmp_path / "nowhere")


def test_hash_sees_names_sizes_and_crop(tmp_path):
    write_picture(tmp_path / "a.png")
    before = load("folder", tmp_path).sha256
    assert load("folder", tmp_path).sha256 == before
    assert load("folder", tmp_path, size=16).sha256 != before
    write_picture(tmp_path / "b.png")
    assert load("folder", tmp_path).sha256 != before


def test_imagenet100_reads_its_classes_only(tmp_path):
    write_imagenet100(tmp_path)
    clean = load("imagenet100", tmp_path)
    assert clean.classes == IMAGENET100
    assert list(IMAGENET100) == sorted(IMAGENET100)
    assert len(set(IMAGENET100)) == 100
    assert clean.labels.tolist() == list(range(100))
    assert clean.images([0]).shape == (1, 224, 224, 3)
    assert load("imagenet100", tmp_path / "val").sha256 == clean.sha256
    with pytest.raises(DataMissingError, match=r"1000 class folders.*found 101"):
        load("imagenet", tmp_path)
    (tmp_path / "val" / IMAGENET100[5]).rename(tmp_path / "elsewhere")
    with pytest.raises(DataMissingError, match="100 class folders"):
        load("imagenet100", tmp_path)


def test_imagenet_has_a_thousand_classes(tmp_path):
    for number in range(1000):
        (tmp_path / "imagenet" / "val" / f"n{number:08d}").mkdir(parents=True)
    write_picture(tmp_path / "imagenet" / "val" / "n00000007" / "x.JPEG", size=(260, 300))
    clean = load("imagenet", tmp_path)
    assert (len(clean), clean.labels.tolist(), len(clean.classes)) == (1, [7], 1000)
    assert clean.images([0]).shape == (1, 224, 224, 3)


@pytest.mark.parametrize("top", ["ImageNet-C", "ImageNet-C/weather", "", "weather", "ImageNet100-C"])
def test_imagenet_c_trees(tmp_path, top):
    for wnid in IMAGENET100:
        (tmp_path / top / "fog" / "3" / wnid).mkdir(parents=True)
    write_picture(tmp_path / top / "fog" / "3" / IMAGENET100[9] / "x.JPEG", size=(224, 224))
    stored = load("imagenet100-c", tmp_path, corruption="fog", severity=3)
    assert (stored.source, stored.labels.tolist()) == ("files", [9])
    expected = read_picture(tmp_path / top / "fog" / "3" / IMAGENET100[9] / "x.JPEG")
    assert np.array_equal(stored.images([0])[0], expected)  # never resized: it is 224 pixels wide already
    with pytest.raises(DataMissingError, match="Neither fog"):
        load("imagenet100-c", tmp_path, corruption="fog", severity=4)


def test_imagenet_c_with_classes_missing(tmp_path):
    write_picture(tmp_path / "fog" / "5" / IMAGENET100[0] / "x.JPEG", size=(224, 224))
    with pytest.raises(DataMissingError, match="found 1 in"):
        load("imagenet-c", tmp_path, corruption="fog")


def test_generated_imagenet_c_passes_the_jpeg_of_the_release(tmp_path):
    write_imagenet100(tmp_path)
    made = load("imagenet100-c", tmp_path, corruption="contrast", severity=2)
    raw = load("imagenet100", tmp_path, corruption="contrast", severity=2)
    assert made.source == raw.source == "generated"
    assert np.array_equal(made.images([4])[0], decode_image(encode_jpeg(raw.images([4])[0], 85)))
    assert made.sha256 != raw.sha256


def test_the_classes_of_imagenet_are_in_the_order_of_their_numbers():
    known = imagenet_class_names()
    wnids = [names[0] for names in known]
    assert len(known) == 1000
    assert wnids == sorted(set(wnids))
    assert set(IMAGENET100) <= set(wnids)
    assert known[0] == ("n01440764", "tench", "Tinca tinca")
    assert known[701][:2] == ("n03888257", "parachute")


def test_class_folders_are_matched_by_wnid_or_name():
    known = imagenet_class_names()
    names = ["n03888257", "golf_ball", "English-Springer", "n03000684_chain_saw", "Tinca tinca", "n03394916 horn"]
    assert match_classes(names, known) == [701, 574, 217, 491, 0, 566]
    with pytest.raises(InputError, match=r"Several classes are called 'crane': n02012849, n03126707"):
        match_classes(["crane"], known)
    with pytest.raises(InputError, match=r"'golfball' is none of the model's 1,000 classes.*perhaps 'golf ball'"):
        match_classes(["tench", "golfball"], known)
    with pytest.raises(InputError, match="'n99999999' is none of the model's"):
        match_classes(["n99999999"], known)
    with pytest.raises(InputError, match="tench, n01440764 are the same class"):
        match_classes(["tench", "n01440764"], known)


def test_photographs_of_some_classes_are_numbered_among_all(tmp_path):
    for name in ("val/n03888257/a.jpg", "val/tench/b.jpg", "train/n03888257/c.jpg"):
        write_picture(tmp_path / name, size=(300, 280))
    found = load("imagenet-folder", tmp_path)
    assert found.labels.tolist() == [701, 0]
    assert len(found.classes) == 1000
    assert found.classes[701] == "parachute"
    assert found.images([0, 1]).shape == (2, 224, 224, 3)
    assert np.array_equal(found.images([0])[0], read_picture(tmp_path / "val/n03888257/a.jpg", 256, 224))
    assert load("imagenet-folder", tmp_path, "train").labels.tolist() == [701]
    flat = load("imagenet-folder", tmp_path / "val")
    assert flat.files == found.files
    foggy = load("imagenet-folder-c", tmp_path, corruption="contrast", severity=5)
    assert foggy.labels.tolist() == [701, 0]
    with pytest.raises(DataMissingError, match="needs class folders in"):
        load("imagenet-folder", tmp_path / "val", "train")
    (tmp_path / "val" / "my cat").mkdir()
    with pytest.raises(InputError, match="'my cat' is none"):
        load("imagenet-folder", tmp_path)
