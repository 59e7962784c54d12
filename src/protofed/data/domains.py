"""How each benchmark's domains are read from its files, and split where the set has no split."""

from __future__ import annotations

import torch

from protofed.core.rng import rng
from protofed.core.site import Dataset
from protofed.data import archive, digits_mini
from protofed.data.archive import Archive
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

CIFAR10 = Archive("cifar10", "cifar10", tuple(CIFAR10_NAMES.split()))
CIFAR100 = Archive("cifar100", "cifar100", tuple(CIFAR100_NAMES.split()))
DIGITS = Archive("digits", "digits", DIGIT_NAMES)
OFFICE = Archive("office-caltech", "office_caltech10", tuple(OFFICE_NAMES.split()))
OFFICE_HOME = Archive("office-home", "office_home", tuple(OFFICE_HOME_NAMES.split()))
PACS = Archive("pacs", "pacs", tuple(PACS_NAMES.split()))
PATHMNIST = Archive("pathmnist", "pathmnist", PATHMNIST_NAMES)
VLCS = Archive("vlcs", "vlcs", tuple(VLCS_NAMES.split()))


def stored_parts(source: Archive, domain: str) -> Domain:
    """A domain that is stored as a training and a test part."""
    file = f"{domain}.npz"
    train, test = archive.read(source, file, ("train", "test"))
    return Domain(domain, train, test, archive.note(source, file))


def digits(domain: str) -> Domain:
    """A domain of digits; the synthetic ones are drawn, the others read."""
    if domain == "syn":
        return digits_mini.synthetic_digits()
    return stored_parts(DIGITS, domain)


def eight_of_ten(source: Archive, domain: str) -> Domain:
    """A domain of which, of ten images in order of class and file, eight are to train."""
    (everything,) = archive.read(source, f"{domain}.npz", ("",))
    row = torch.arange(len(everything))
    return _split(domain, everything, test=row % 10 > 7)


def seventy_thirty(source: Archive, domain: str) -> Domain:
    """A domain of which a random 30 % is to test, rounded up; the same in every run."""
    file = "art_painting" if (source, domain) == (PACS, "art") else domain
    (everything,) = archive.read(source, f"{file}.npz", ("",))
    total = len(everything)
    order = torch.randperm(total, generator=rng(source.benchmark, "split", domain))
    test = torch.zeros(total, dtype=torch.bool)
    test[order[: (3 * total + 9) // 10]] = True
    return _split(domain, everything, test)


def _split(domain: str, everything: Dataset, test: torch.Tensor) -> Domain:
    """Cut by a mask [N]; both parts keep the stored order."""
    train_rows, test_rows = (mask.nonzero().squeeze(1) for mask in (~test, test))
    return Domain(domain, everything.rows(train_rows), everything.rows(test_rows))
