"""How each benchmark's domains are read from its files, and split where the set has no split."""

from __future__ import annotations

import torch

from protofed.core.rng import rng
from protofed.core.site import ArrayDataset
from protofed.data import archive, digits_mini
from protofed.data.archive import ArchiveInfo
from protofed.data.benchmark import Domain

DIGIT_NAMES = tuple("0123456789")
CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""
OFFICE_NAMES = """
    backpack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"""
OFFICE_HOME_NAMES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
    Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops
    Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker
    Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin
    Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table
    Telephone ToothBrush Toys Trash_Can Webcam"""
PACS_NAMES = "dog elephant giraffe guitar horse house person"
PATHMNIST_NAMES = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
VLCS_NAMES = "bird car chair dog person"

CIFAR10 = ArchiveInfo("cifar10", "cifar10", tuple(CIFAR10_NAMES.split()))
CIFAR100 = ArchiveInfo("cifar100", "cifar100", tuple(CIFAR100_NAMES.split()))
DIGITS = ArchiveInfo("digits", "digits", DIGIT_NAMES)
OFFICE = ArchiveInfo("office-caltech", "office_caltech10", tuple(OFFICE_NAMES.split()))
OFFICE_HOME = ArchiveInfo("office-home", "office_home", tuple(OFFICE_HOME_NAMES.split()))
PACS = ArchiveInfo("pacs", "pacs", tuple(PACS_NAMES.split()))
PATHMNIST = ArchiveInfo("pathmnist", "pathmnist", PATHMNIST_NAMES)
VLCS = ArchiveInfo("vlcs", "vlcs", tuple(VLCS_NAMES.split()))


def read_stored_split(source: ArchiveInfo, domain: str) -> Domain:
    """A domain that is stored as a training and a test part."""
    file = f"{domain}.npz"
    train, test = archive.read_archive(source, file, ("train", "test"))
    return Domain(domain, train, test, archive.archive_note(source, file))


def read_digits_domain(domain: str) -> Domain:
    """A domain of digits; the synthetic ones are drawn, the others read."""
    if domain == "syn":
        return digits_mini.synthetic_digits()
    return read_stored_split(DIGITS, domain)


def split_80_20_ordered(source: ArchiveInfo, domain: str) -> Domain:
    """A domain of which, of ten images in order of class and file, eight are to train."""
    (everything,) = archive.read_archive(source, f"{domain}.npz", ("",))
    row = torch.arange(len(everything))
    return _split(domain, everything, test=row % 10 > 7)


def split_70_30_random(source: ArchiveInfo, domain: str) -> Domain:
    """A domain of which a random 30 % is to test, rounded up; the same in every run."""
    file = "art_painting" if (source, domain) == (PACS, "art") else domain
    (everything,) = archive.read_archive(source, f"{file}.npz", ("",))
    total = len(everything)
    order = torch.randperm(total, generator=rng(source.benchmark, "split", domain))
    test = torch.zeros(total, dtype=torch.bool)
    test[order[: (3 * total + 9) // 10]] = True
    return _split(domain, everything, test)


def _split(domain: str, everything: ArrayDataset, test: torch.Tensor) -> Domain:
    """Cut by a mask [N]; both parts keep the stored order."""
    train_rows, test_rows = (mask.nonzero().squeeze(1) for mask in (~test, test))
    return Domain(domain, everything.take(train_rows), everything.take(test_rows))
